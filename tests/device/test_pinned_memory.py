"""Pinned host memory: statistics, the cache, reuse while copies are queued, several chips, DataLoader."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from constrained_chip import Chip, drop_aliases
from ninguang_faults import Faults

DEVICE = torch.device("fl:1")
MB = 1 << 20
KEYS = {f"{key}.{kind}" for key in ("active_requests", "active_bytes", "allocations", "allocated_bytes")
        for kind in ("current", "peak", "allocated", "freed")} | {
       f"{key}.{kind}" for key in ("host_alloc_time", "host_free_time")
       for kind in ("total", "max", "min", "count", "avg")} | {"num_host_alloc", "num_host_free"}  # fmt: skip
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def nothing_cached() -> None:
    gc.collect()
    for index in range(torch.fl.device_count()):
        torch.fl.synchronize(index)
    torch.accelerator.empty_host_cache()
    torch.fl.reset_accumulated_host_memory_stats()
    torch.fl.reset_peak_host_memory_stats()


@pytest.fixture(scope="module", params=[(), ("-DOPAQUE",)], ids=["pointers", "handles"])
def other(request, tmp_path_factory) -> Iterator[torch.device]:
    chip = Chip(tmp_path_factory.mktemp("adapters"), "pageable" + "_opaque" * bool(request.param), *request.param)
    yield chip.device
    drop_aliases()


def _change(before: dict, *keys: str) -> tuple[int, ...]:
    after = torch.fl.host_memory_stats()
    return tuple(after[key] - before[key] for key in keys)


def test_statistics() -> None:
    before = torch.fl.host_memory_stats()
    assert set(before) == KEYS and before["num_host_alloc"] == 0
    kept = ("active_requests.current", "active_bytes.current", "allocations.current", "allocated_bytes.current")
    x = torch.empty(MB, dtype=torch.uint8, pin_memory=True)
    y = torch.empty(MB, dtype=torch.uint8, pin_memory=True)
    assert _change(before, *kept) == (2, 2 * MB, 2, 2 * MB)
    del x
    assert _change(before, *kept) == (1, MB, 2, 2 * MB)
    z = torch.empty(MB - 5, dtype=torch.uint8, pin_memory=True)  # of the cache
    stats = torch.fl.host_memory_stats()
    assert (stats["num_host_alloc"], stats["host_alloc_time.count"], stats["num_host_free"]) == (2, 2, 0)
    assert (stats["active_requests.allocated"], stats["active_requests.freed"]) == (3, 1)
    assert 0 <= stats["host_alloc_time.min"] <= stats["host_alloc_time.avg"] <= stats["host_alloc_time.max"]
    assert stats["active_bytes.peak"] == before["active_bytes.current"] + 2 * MB
    del y, z
    torch.fl.empty_cache()
    assert _change(before, *kept) == (0, 0, 2, 2 * MB)  # PyTorch has another function for the host's
    torch.accelerator.empty_host_cache()
    assert _change(before, *kept, "num_host_free") == (0, 0, 0, 0, 2)
    torch.fl.reset_accumulated_host_memory_stats()
    torch.fl.reset_peak_host_memory_stats()
    stats = torch.fl.host_memory_stats()
    assert stats["active_requests.allocated"] == stats["num_host_free"] == stats["host_free_time.count"] == 0
    assert stats["active_bytes.peak"] == stats["active_bytes.current"] == before["active_bytes.current"]
    assert torch.fl.host_memory_stats_as_nested_dict()["allocations"]["freed"] == 0


def test_active_until_the_copy_is_done(faults: Faults) -> None:
    faults.arm("slow_copy:1000000@1")
    before = torch.fl.host_memory_stats()
    x = torch.full((MB,), 7.0).pin_memory()
    y = x.to(DEVICE, non_blocking=True)
    del x
    assert _change(before, "active_requests.current") == (1,)
    again = torch.zeros(MB).pin_memory()  # must not get the same memory
    assert _change(before, "num_host_alloc") == (2,)
    faults.disarm()
    torch.fl.synchronize(DEVICE)
    del again
    torch.empty(16, pin_memory=True)  # the next request looks what is done
    assert _change(before, "active_requests.current") == (0,)
    assert y.cpu().eq(7).all()


def test_too_much_is_told() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="pinned host memory for fl:0.*ulimit -l"):
        torch.empty(1 << 45, dtype=torch.uint8, pin_memory=True)
    assert torch.empty(10, pin_memory=True).is_pinned()


def test_a_pinned_tensor_of_one_chip_used_by_another(other: torch.device) -> None:
    """The other adapter did not pin it: to it, the memory is pageable, and results are right all the same."""
    for pinning, using in ((DEVICE, other), (other, DEVICE)):
        with torch.fl.device(pinning):
            for step in range(20):
                x = torch.full((100_000,), float(step)).pin_memory()
                assert x.is_pinned()
                y = x.to(using, non_blocking=True)
                del x
                into = torch.empty(100_000).pin_memory()
                into.copy_(y, non_blocking=True)
                torch.fl.synchronize(using)
                assert into.eq(step).all(), (pinning, using, step)
                part = torch.zeros(300, pin_memory=True)
                part[100:200].copy_(y[:100], non_blocking=True)
                torch.fl.synchronize(using)
                assert part.sum().item() == 100 * step


def test_memory_freed_while_another_chip_copies(other: torch.device) -> None:
    results = []
    for step in range(30):
        x = torch.full((50_000,), float(step)).pin_memory()
        results.append((x.to(other, non_blocking=True), x.to(DEVICE, non_blocking=True)))
        del x
    for step, (a, b) in enumerate(results):
        assert a.eq(step).all().item() and b.eq(step).all().item()


class _Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict:
        return {"x": torch.full((1000,), float(index)), "label": index}


@pytest.mark.parametrize("workers", [0, 1])
def test_data_loader(workers: int) -> None:
    with torch.fl.device(DEVICE):
        loader = torch.utils.data.DataLoader(_Numbers(), batch_size=4, pin_memory=True, num_workers=workers)
        sums = []
        for batch in loader:
            assert batch["x"].is_pinned() and batch["label"].is_pinned()
            x = batch["x"].to(DEVICE, non_blocking=True)
            sums.append((x.sum(dim=1) / 1000).to(torch.int64).eq(batch["label"].to(DEVICE, non_blocking=True)).all())
        assert len(sums) == 6 and all(s.item() for s in sums)


def test_pinning_everything_at_once() -> None:
    batch = torch.utils.data._utils.pin_memory.pin_memory([torch.ones(3), (torch.zeros(2), {"a": torch.ones(1)})])
    assert batch[0].is_pinned() and batch[1][0].is_pinned() and batch[1][1]["a"].is_pinned()
    x = torch.ones(5).pin_memory()
    assert x.pin_memory() is x and x.is_pinned() and not x.clone().is_pinned()
    assert torch.empty_like(x, pin_memory=True).is_pinned() and torch.ones(3, pin_memory=True).is_pinned()
    assert torch.empty(0).pin_memory().numel() == 0
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.ones(2, 3, 1), [3, 2], batch_first=True).pin_memory()
    assert packed.data.is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ones(2, device=DEVICE).pin_memory()
