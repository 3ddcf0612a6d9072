"""One OpenCL device through PyTorch: memory, copies, streams, events, errors, the profiler. Run by test_opencl.py in a
process of its own, once for each memory mode (FL_OPENCL_MODE)."""

from __future__ import annotations

import gc
import os
import threading

import pytest
import torch

import torch_fl

DEVICE = torch.device(os.environ.get("FL_TEST_DEVICE", "fl:0"))
MODE = os.environ.get("FL_OPENCL_MODE")


def test_the_device_says_what_it_is() -> None:
    info = torch_fl.list_devices()[DEVICE.index]
    assert info["adapter"] == "opencl" and info["total_memory"] > 0 and info["uuid"] and info["arch"]
    assert 0 < info["max_allocation"] <= info["total_memory"] or info["max_allocation"] == 0
    if MODE is not None:
        assert ("pointers" in info["capabilities"]) == (MODE != "buffer")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8,
                                   torch.uint8, torch.bool])  # fmt: skip
def test_round_trip(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (5, 7, 3)).to(dtype)
    for view in (x, x.transpose(0, 2), x[1:, ::2], x[:, 3], x[:0]):
        there = view.to(DEVICE)
        assert there.device == DEVICE and torch.equal(there.cpu(), view)
        again = torch.zeros_like(there)
        again.copy_(there)
        assert torch.equal(again.cpu(), view)


def test_views_share_their_memory() -> None:
    x = torch.arange(60.0, device=DEVICE).reshape(3, 4, 5)
    x[1, 2:, ::2] = -1.0
    x.view(-1)[7:9].mul_(10)
    x.as_strided((4,), (3,), 17).add_(0.5)
    y = torch.arange(60.0).reshape(3, 4, 5)
    y[1, 2:, ::2] = -1.0
    y.view(-1)[7:9].mul_(10)
    y.as_strided((4,), (3,), 17).add_(0.5)
    assert torch.equal(x.cpu(), y)


def test_empty_tensors() -> None:
    x = torch.empty(0, 3, device=DEVICE)
    assert (x + 1).shape == (0, 3) and x.sum().item() == 0 and torch.cat([x, x]).shape == (0, 3)
    assert torch.mm(x, torch.ones(3, 2, device=DEVICE)).shape == (0, 2)
    assert torch.mm(torch.ones(2, 0, device=DEVICE), torch.ones(0, 3, device=DEVICE)).cpu().tolist() == [[0.0] * 3] * 2
    assert torch.cat([x, torch.ones(1, 3, device=DEVICE)]).cpu().tolist() == [[1.0] * 3]


def test_resized_storage_keeps_its_data() -> None:
    x = torch.arange(5.0, device=DEVICE)
    x.resize_(4000)
    assert x[:5].cpu().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_pinned_copies_are_asynchronous_and_ordered() -> None:
    source = torch.arange(1 << 20, dtype=torch.float32).pin_memory()
    assert source.is_pinned()
    for _ in range(3):
        there = source.to(DEVICE, non_blocking=True)
        there += 1
        back = torch.empty(1 << 20, pin_memory=True)
        back.copy_(there, non_blocking=True)
        torch.accelerator.synchronize(DEVICE)
        assert torch.equal(back, source + 1)


def test_streams_wait_for_events() -> None:
    side = torch.Stream(DEVICE)
    x = torch.zeros(1 << 20, device=DEVICE)
    for _ in range(10):
        x += 1
    done = torch.Event(DEVICE)
    done.record()
    side.wait_event(done)
    with side:
        y = x * 2
    side.synchronize()
    assert done.query() and y.sum().item() == 20 << 20
    torch.accelerator.current_stream(DEVICE).wait_stream(side)
    assert (y + x)[:3].cpu().tolist() == [30.0] * 3


def test_elapsed_time_is_the_devices() -> None:
    x = torch.rand(512, 512, device=DEVICE)
    x @ x
    start, end = (torch.Event(DEVICE, enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(10):
        x @ x
    end.record()
    end.synchronize()
    assert 0 < start.elapsed_time(end) < 60_000


def test_the_profiler_shows_device_times() -> None:
    x = torch.rand(256, 256, device=DEVICE)
    x @ x
    with torch.autograd.profiler.profile(use_device="fl") as seen:
        for _ in range(3):
            torch.relu(x @ x)
    times = {event.key: event.device_time_total for event in seen.key_averages()}
    assert times["aten::mm"] > 0 and times["aten::relu"] > 0


def test_memory_is_counted_and_given_back() -> None:
    gc.collect()
    torch.accelerator.empty_cache()
    before = torch.accelerator.memory_allocated(DEVICE)
    x = torch.empty(8 << 20, dtype=torch.uint8, device=DEVICE)
    assert torch.accelerator.memory_allocated(DEVICE) - before == 8 << 20
    del x
    assert torch.accelerator.memory_allocated(DEVICE) == before
    torch.accelerator.empty_cache()


def test_too_much_memory() -> None:
    info = torch_fl.list_devices()[DEVICE.index]
    with pytest.raises(torch.OutOfMemoryError, match="out of memory") as caught:
        torch.empty(info["total_memory"] + (1 << 30), dtype=torch.uint8, device=DEVICE)
    if info["max_allocation"] and info["max_allocation"] + (2 << 20) < info["total_memory"]:
        with pytest.raises(torch.OutOfMemoryError, match="largest single allocation"):
            torch.empty(info["max_allocation"] + (2 << 20), dtype=torch.uint8, device=DEVICE)
    assert "Tried to allocate" in str(caught.value)
    assert torch.ones(3, device=DEVICE).sum().item() == 3


def test_all_the_memory_there_is() -> None:
    """The runtime itself would hand out more than it has: the allocator knows the limit."""
    held = []
    info = torch_fl.list_devices()[DEVICE.index]
    piece = info["max_allocation"] or info["total_memory"] // 4
    with pytest.raises(torch.OutOfMemoryError):
        for _ in range(info["total_memory"] // piece + 1):
            held.append(torch.empty(piece & ~0xFFFFF, dtype=torch.uint8, device=DEVICE))
    assert sum(x.numel() for x in held) <= info["total_memory"]
    held.clear()
    torch.accelerator.empty_cache()


def test_an_index_out_of_range_is_an_index_error() -> None:
    x = torch.arange(5.0, device=DEVICE)
    with pytest.raises((IndexError, RuntimeError)):
        x[torch.tensor([7], device=DEVICE)].cpu()
        torch.accelerator.synchronize(DEVICE)
    assert x.sum().item() == 10


def test_threads_share_a_stream() -> None:
    results: dict[int, float] = {}

    def work(number: int) -> None:
        x = torch.zeros(1000, device=DEVICE)
        for _ in range(200):
            x += number
        results[number] = x.sum().item()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: 200_000.0 * n for n in range(1, 5)}


def test_the_same_random_numbers_as_the_reference_chip() -> None:
    """Philox, seed 4: the first numbers are the same on every chip."""
    torch.manual_seed(4)
    first = torch.rand(8, device=DEVICE).cpu()
    torch.manual_seed(4)
    assert torch.equal(torch.rand(8, device=DEVICE).cpu(), first)
    assert first.unique().numel() == 8


def test_dlpack_and_numpy() -> None:
    x = torch.arange(6.0, device=DEVICE)
    assert x.cpu().numpy().tolist() == list(range(6))
    capsule = torch.utils.dlpack.to_dlpack(x)
    y = torch.utils.dlpack.from_dlpack(capsule)
    y += 1
    assert x.cpu().tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_autograd_and_an_optimizer() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x = torch.randn(16, 4).to(DEVICE)
    first = None
    for _ in range(20):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        first = first or loss.item()
    assert loss.item() < 0.5 * first
