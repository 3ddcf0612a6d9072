"""Device memory seen from Python: statistics, reuse, limits, pinned memory, storages, resize."""

from __future__ import annotations

import gc

import pytest
import torch

DEVICE = "fl:1"
MB = 1 << 20
pytestmark = pytest.mark.timeout(120)


def test_statistics_follow_tensors() -> None:
    gc.collect()
    base = torch.fl.memory_allocated(DEVICE)
    torch.fl.reset_peak_memory_stats(DEVICE)
    x = torch.empty(3 * MB, dtype=torch.uint8, device=DEVICE)
    y = torch.empty(2 * MB, dtype=torch.uint8, device=DEVICE)
    assert torch.fl.memory_allocated(DEVICE) - base == 5 * MB
    del y
    assert torch.fl.memory_allocated(DEVICE) - base == 3 * MB
    assert torch.fl.max_memory_allocated(DEVICE) - base == 5 * MB
    assert torch.fl.memory_reserved(DEVICE) >= torch.fl.memory_allocated(DEVICE)
    assert torch.accelerator.memory_allocated(DEVICE) == torch.fl.memory_allocated(DEVICE)
    stats = torch.fl.memory_stats(DEVICE)
    assert stats["allocated_bytes.all.current"] == torch.fl.memory_allocated(DEVICE)
    summary = torch.fl.memory_summary(DEVICE)
    (row,) = [line for line in summary.splitlines() if "Allocated memory" in line]
    assert int(row.split("|")[3].split()[0]) == torch.fl.max_memory_allocated(DEVICE) >> 10
    assert {len(line) for line in summary.splitlines()} == {77} and "small pool" in summary
    assert "small pool" not in torch.fl.memory_summary(DEVICE, abbreviated=True)
    del x
    assert torch.fl.memory_allocated(DEVICE) == base
    torch.fl.empty_cache()
    free, total = torch.fl.mem_get_info(DEVICE)
    assert 0 < free <= total == torch.fl.get_device_properties(DEVICE).total_memory


def test_statistics_tell_the_pools_apart() -> None:
    gc.collect()
    before = torch.accelerator.memory_stats(DEVICE)
    small = torch.empty(MB, dtype=torch.uint8, device=DEVICE)
    large = torch.empty(MB + 1, dtype=torch.uint8, device=DEVICE)
    now = torch.accelerator.memory_stats(DEVICE)

    def grown(name: str) -> int:
        return now[name] - before[name]

    assert grown("allocation.small_pool.current") == grown("allocation.large_pool.current") == 1
    assert grown("requested_bytes.large_pool.current") == MB + 1 and grown("allocated_bytes.small_pool.current") == MB
    for quantity in ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes",
                     "active_bytes", "inactive_split_bytes", "requested_bytes"):
        for metric in ("current", "allocated", "freed"):
            total = now[f"{quantity}.small_pool.{metric}"] + now[f"{quantity}.large_pool.{metric}"]
            assert total == now[f"{quantity}.all.{metric}"], (quantity, metric)
        assert now[f"{quantity}.all.peak"] >= now[f"{quantity}.all.current"]
    torch.fl.empty_cache()
    counters = ("num_sync_all_streams", "num_device_alloc", "num_device_free", "num_alloc_retries", "num_ooms")
    assert all(isinstance(now[name], int) for name in counters)
    assert torch.accelerator.memory_stats(DEVICE)["num_sync_all_streams"] == now["num_sync_all_streams"] + 1
    del small, large


def test_the_snapshot_shows_the_tensor() -> None:
    x = torch.empty(3000, device=DEVICE)
    blocks = [b for s in torch.fl.memory_snapshot(DEVICE) for b in s["blocks"] if b["address"] == x.data_ptr()]
    assert len(blocks) == 1 and blocks[0]["requested_size"] == 12000 and blocks[0]["state"] == "active_allocated"


def test_freed_memory_is_reused() -> None:
    addresses = set()
    for _ in range(10):
        addresses.add(torch.empty(5 * MB, dtype=torch.uint8, device=DEVICE).data_ptr())
    assert len(addresses) == 1


def test_training_does_not_grow() -> None:
    model = torch.nn.Linear(64, 64).to(DEVICE)

    def step() -> None:
        model.zero_grad()
        model(torch.ones(16, 64, device=DEVICE)).sum().backward()

    step()
    gc.collect()
    torch.fl.synchronize(DEVICE)
    before = torch.fl.memory_allocated(DEVICE), torch.fl.memory_reserved(DEVICE)
    for _ in range(30):
        step()
    torch.fl.synchronize(DEVICE)
    assert (torch.fl.memory_allocated(DEVICE), torch.fl.memory_reserved(DEVICE)) == before


def test_device_memory_is_where_it_should_be() -> None:
    for index in range(2):
        x = torch.empty(10, device=f"fl:{index}")
        assert x.device == x.untyped_storage().device == torch.device("fl", index)
        assert x.view(2, 5).t().untyped_storage().device.index == index
        assert x.new_empty(3).device.index == index
        assert torch.empty_like(x).untyped_storage().device.index == index
        assert x.resize_(100_000).untyped_storage().device.index == index


def test_resize_keeps_contents() -> None:
    x = torch.arange(6.0, device=DEVICE)
    x.resize_(2, 5)
    assert x.flatten()[:6].tolist() == [0, 1, 2, 3, 4, 5]
    x.resize_(3)
    assert x.tolist() == [0, 1, 2]
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0
    x.untyped_storage().resize_(12)
    x.fill_(4)
    assert x.tolist() == [4, 4, 4]
    y = torch.empty(0, device=DEVICE)
    y.set_(x)
    y.add_(1)
    assert x.tolist() == [5, 5, 5]


def test_empty_tensors_have_no_memory_and_work() -> None:
    before = torch.fl.memory_allocated(DEVICE)
    x = torch.empty(0, 3, device=DEVICE)
    assert torch.fl.memory_allocated(DEVICE) == before
    assert (x + 1).shape == (0, 3) and x.sum().item() == 0 and x.cpu().shape == (0, 3)
    assert (x @ torch.ones(3, 2, device=DEVICE)).shape == (0, 2)


def test_pinned_memory() -> None:
    x = torch.arange(1000.0)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned() and pinned[10:].is_pinned() and torch.equal(pinned, x)
    assert torch.empty(10, pin_memory=True).is_pinned()
    device = pinned.to(DEVICE, non_blocking=True)
    back = torch.empty(1000, pin_memory=True)
    back.copy_(device, non_blocking=True)
    torch.fl.synchronize(DEVICE)
    assert torch.equal(back, x)
    with pytest.raises(RuntimeError):
        device.pin_memory()
    for _ in range(20):  # freed while the copy is queued
        torch.full((1 << 16,), 2.0).pin_memory().to(DEVICE, non_blocking=True)
    torch.fl.synchronize(DEVICE)
    torch.fl.host_memory_empty_cache()


def test_the_host_cannot_read_device_memory_by_accident() -> None:
    x = torch.ones(3, device=DEVICE)
    with pytest.raises(TypeError):
        x.numpy()
    assert x.tolist() == [1, 1, 1] and float(x[0]) == 1.0 and bool(x[1] == 1)
    assert "device='fl:1'" in repr(x)


def test_memory_limits(run_python) -> None:
    run_python(
        """
        import gc, torch
        assert torch.fl.get_device_properties(0).total_memory == 32 << 20
        kept = []
        try:
            while True: kept.append(torch.empty(3 << 20, dtype=torch.uint8, device="fl:0"))
        except torch.OutOfMemoryError as error:
            assert "out of memory" in str(error)
        assert 5 <= len(kept) <= 10, len(kept)
        del kept; gc.collect()
        big = torch.empty(30 << 20, dtype=torch.uint8, device="fl:0")     # cached pieces were given back
        assert torch.fl.memory_stats(0)["num_alloc_retries"] >= 1
        torch.empty(30 << 20, dtype=torch.uint8, device="fl:1")            # the other device is another memory
    """,
        NINGUANG_MEMORY_MB="32",
    )


def test_the_fraction_is_set_at_run_time(run_python) -> None:
    run_python(
        """
        import torch
        total = torch.fl.mem_get_info(1)[1]
        assert total == torch.fl.get_device_properties(1).total_memory == 64 << 20
        assert torch.fl.get_per_process_memory_fraction(1) == 1.0
        torch.fl.set_per_process_memory_fraction(0.25, "fl:1")
        assert [torch.fl.get_per_process_memory_fraction(i) for i in (0, 1)] == [1.0, 0.25]
        kept = torch.empty(10 << 20, dtype=torch.uint8, device="fl:1")
        assert torch.fl.mem_get_info(1) == torch.accelerator.get_memory_info(1) == (6 << 20, 16 << 20)
        try:
            torch.empty(7 << 20, dtype=torch.uint8, device="fl:1")
        except torch.OutOfMemoryError as error:
            assert "this process may use 16.00 MiB" in str(error) and "raise this process's share" in str(error), error
        else:
            raise AssertionError("7 MiB of 6")
        torch.empty(40 << 20, dtype=torch.uint8, device="fl:0")
        torch.fl.set_per_process_memory_fraction(1.0, 1)
        torch.empty(50 << 20, dtype=torch.uint8, device="fl:1")
        for bad in (0.0, -0.5, 1.5, float("nan")):
            try:
                torch.fl.set_per_process_memory_fraction(bad, 1)
            except RuntimeError as error:
                assert "more than 0 and at most 1" in str(error)
            else:
                raise AssertionError(bad)
    """,
        NINGUANG_MEMORY_MB="64",
    )


def test_memory_of_the_chips_own_library_is_counted_and_found_room_for(run_python) -> None:
    run_python(
        """
        import torch
        cached = torch.empty(60 << 20, dtype=torch.uint8, device="fl:1")
        x = torch.empty(8, device="fl:1")
        del cached                                             # all but 2 MiB is reserved, and free
        assert torch.fl.mem_get_info(1)[0] < 16 << 20
        x.fill_(2)                                             # the first launch: the library takes its 16 MiB
        assert x.tolist() == [2.0] * 8
        assert torch.fl.memory_outside_pool(1) == 16 << 20
        free, total = torch.fl.mem_get_info(1)
        assert (free, total) == torch.accelerator.get_memory_info(1)
        assert free == total - (16 << 20) - torch.fl.memory_reserved(1)
        try:
            torch.empty(50 << 20, dtype=torch.uint8, device="fl:1")
        except torch.OutOfMemoryError as error:
            assert "16.00 MiB is held outside the pool" in str(error), error
        full = torch.empty(60 << 20, dtype=torch.uint8, device="fl:0")
        try:
            torch.empty(8, device="fl:0").fill_(1)             # nothing can be given back
        except torch.OutOfMemoryError as error:
            text = str(error)
            assert "fill" in text and "kernel library's workspace" in text and " is out of memory. " in text, text
        else:
            raise AssertionError("the workspace found room")
        del full
        assert torch.ones(8, device="fl:0").sum().item() == 8
    """,
        NINGUANG_MEMORY_MB="64",
        NINGUANG_WORKSPACE_MB="16",
    )


@pytest.mark.parametrize("expandable", ["1", "0"])
def test_out_of_memory_over_and_over(run_python, expandable: str) -> None:
    """The same drill with 1,000 cycles is part of `make test-long`."""
    run_python(
        "import torch, oom_drill; oom_drill.drill(torch.device('fl', 1), 12)",
        NINGUANG_MEMORY_MB="96",
        TORCH_FL_ALLOC_EXPANDABLE_SEGMENTS=expandable,
    )


def test_segments_grow_and_shrink(run_python) -> None:
    run_python(
        """
        import torch
        MB = 1 << 20
        properties = torch.fl.get_device_properties(1)
        assert properties.expandable_segments and properties.min_block_bytes == 512 and properties.prealloc_bytes == 0
        parts = [torch.full((4 * MB,), i, dtype=torch.uint8, device="fl:1") for i in range(6)]
        assert parts[1].data_ptr() == parts[0].data_ptr() + 4 * MB and torch.fl.memory_reserved(1) == 24 * MB
        del parts[1:4]
        torch.fl.empty_cache()                                  # the hole has no memory now
        assert torch.fl.memory_reserved(1) == 12 * MB == 64 * MB - torch.fl.mem_get_info(1)[0]
        segments = [s for s in torch.fl.memory_snapshot(1) if s["total_size"] >= 4 * MB]
        assert [s["total_size"] for s in segments] == [4 * MB, 8 * MB]
        hole = torch.full((12 * MB,), 9, dtype=torch.uint8, device="fl:1")
        assert hole.data_ptr() == parts[0].data_ptr() + 4 * MB
        assert hole.sum().item() == 9 * 12 * MB and [int(p[-1]) for p in parts] == [0, 4, 5]
        side = torch.Stream("fl:1")
        with side:
            other = torch.ones(20 * MB, dtype=torch.uint8, device="fl:1")
        side.synchronize()
        copy = other.to("fl:0")
        assert copy.sum().item() == 20 * MB
        del parts, hole, other
        assert torch.empty(60 * MB, dtype=torch.uint8, device="fl:1").numel() == 60 * MB
    """,
        NINGUANG_MEMORY_MB="64",
        NINGUANG_CHECK_BOUNDS="1",
    )
