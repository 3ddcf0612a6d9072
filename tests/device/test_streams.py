"""Streams and events: order, waiting across streams and devices, query that never blocks, timing, priorities."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from ninguang_faults import Faults

DEVICE = "fl:1"
pytestmark = pytest.mark.timeout(120)


def busy(stream: torch.Stream, faults: Faults, seconds: float = 0.3) -> torch.Tensor:
    """Queues a slow copy; the tensor is complete when it is done."""
    pinned = torch.ones(1 << 18).pin_memory()
    faults.arm(f"slow_copy:{int(seconds * 1e6)}")
    with torch.fl.stream(stream):
        return pinned.to(stream.device, non_blocking=True)


def test_current_default_and_side_streams() -> None:
    default = torch.fl.default_stream(DEVICE)
    assert torch.fl.current_stream(DEVICE) == default and default.device == torch.device(DEVICE)
    side = torch.fl.Stream(DEVICE)
    assert side != default and side.device == torch.device(DEVICE)
    with torch.fl.stream(side):
        assert torch.fl.current_stream(DEVICE) == side
        assert torch.fl.current_device() == 1
        with torch.fl.stream(default):
            assert torch.fl.current_stream(DEVICE) == default
        with torch.fl.stream(None):
            assert torch.fl.current_stream(DEVICE) == side
    assert torch.fl.current_stream(DEVICE) == default and torch.fl.current_device() == 0
    with side:  # torch.Stream is a context manager too
        assert torch.fl.current_stream(DEVICE) == side
    torch.fl.set_stream(side)  # and its device, as torch.cuda.set_stream() does
    try:
        assert torch.accelerator.current_stream(DEVICE) == side
        assert torch.fl.current_stream() == side and torch.fl.current_device() == 1
    finally:
        torch.fl.set_stream(default)
        torch.fl.set_device(0)
    assert isinstance(side, torch.Stream) and isinstance(torch.fl.current_stream(), torch.fl.Stream)


def test_query_does_not_block(faults: Faults) -> None:
    side = torch.fl.Stream(DEVICE)
    assert side.query()
    result = busy(side, faults)
    begin = time.monotonic()
    assert not side.query()
    assert time.monotonic() - begin < 0.2
    side.synchronize()
    assert side.query() and result.sum().item() == 1 << 18


def test_an_event_orders_the_stream_it_names(faults: Faults) -> None:
    side = torch.fl.Stream(DEVICE)
    result = busy(side, faults)
    done = torch.fl.Event()
    side.record_event(done)
    other = torch.fl.Stream(DEVICE)
    begin = time.monotonic()
    other.wait_event(done)
    assert time.monotonic() - begin < 0.2 and not done.query()
    with torch.fl.stream(other):
        assert (result + 1).sum().item() == 2 << 18
    assert done.query()


def test_wait_stream_across_devices(faults: Faults) -> None:
    source, sink = torch.fl.Stream("fl:0"), torch.fl.Stream("fl:1")
    result = busy(source, faults)
    sink.wait_stream(source)
    with torch.fl.stream(source), torch.fl.stream(sink):
        copied = result.to("fl:1", non_blocking=True)
    sink.synchronize()
    assert copied.sum().item() == 1 << 18


def test_unused_events_and_streams_are_complete() -> None:
    event = torch.fl.Event()
    assert event.query()
    event.synchronize()
    torch.fl.current_stream(DEVICE).wait_event(event)
    torch.fl.synchronize(DEVICE)


def test_elapsed_time(faults: Faults) -> None:
    start, end = torch.fl.Event(enable_timing=True, device=DEVICE), torch.fl.Event(enable_timing=True, device=DEVICE)
    stream = torch.fl.Stream(DEVICE)
    start.record(stream)
    kept = busy(stream, faults, 0.1)
    end.record(stream)
    with pytest.raises(RuntimeError, match="complete"):
        start.elapsed_time(end)
    end.synchronize()
    assert 90 <= start.elapsed_time(end) < 10_000 and kept.shape == (1 << 18,)
    plain = torch.fl.Event(device=DEVICE)
    plain.record(stream)
    with pytest.raises((RuntimeError, ValueError), match="timing"):
        start.elapsed_time(plain)


def test_an_event_belongs_to_one_device() -> None:
    event = torch.fl.Event(device="fl:0")
    event.record(torch.fl.current_stream("fl:0"))
    with pytest.raises(RuntimeError, match="fl:0.*fl:1"):
        event.record(torch.fl.current_stream("fl:1"))
    with pytest.raises(NotImplementedError):
        torch.fl.Event(interprocess=True)


def test_priorities_and_many_streams() -> None:
    urgent = torch.fl.Stream(DEVICE, priority=-1)
    assert urgent.device.index == 1 and urgent.priority == -1
    least, most = torch.fl.Stream.priority_range()
    assert least == 0 > most
    assert torch.fl.Stream(DEVICE, priority=most - 5).priority == most
    assert torch.fl.Stream(DEVICE, priority=7).priority == torch.fl.default_stream(DEVICE).priority == least
    streams = [torch.fl.Stream(DEVICE) for _ in range(70)]  # more than the pool holds
    results = []
    for number, stream in enumerate(streams):
        with torch.fl.stream(stream):
            results.append(torch.full((8,), float(number), device=DEVICE) * 2)
    torch.fl.synchronize(DEVICE)
    assert [r[0].item() for r in results] == [2.0 * n for n in range(70)]


def test_record_stream_keeps_memory_until_the_other_stream_is_done(faults: Faults) -> None:
    side = torch.fl.Stream(DEVICE)
    x = torch.full((1 << 18,), 3.0, device=DEVICE)
    side.wait_stream(torch.fl.current_stream(DEVICE))
    slow = busy(side, faults)
    with torch.fl.stream(side):
        y = x + slow
    x.record_stream(side)
    address = x.data_ptr()
    del x
    z = torch.zeros(1 << 18, device=DEVICE)
    assert z.data_ptr() != address
    side.synchronize()
    assert y.sum().item() == 4 << 18


def test_autograd_runs_on_the_streams_of_forward() -> None:
    side = torch.fl.Stream(DEVICE)
    w = torch.ones(32, 32, device=DEVICE, requires_grad=True)
    side.wait_stream(torch.fl.current_stream(DEVICE))
    with torch.fl.stream(side):
        loss = (w @ w).sum()
    loss.backward()
    torch.fl.current_stream(DEVICE).wait_stream(side)
    assert torch.equal(w.grad.cpu(), torch.full((32, 32), 64.0))


def test_generic_stream_and_event() -> None:
    stream, event = torch.Stream(DEVICE), torch.Event(DEVICE)
    with stream:
        x = torch.ones(4, device=DEVICE) * 2
        event.record()
    event.synchronize()
    assert event.query() and x.sum().item() == 8
    torch.accelerator.synchronize(DEVICE)


def test_each_thread_has_its_own_current_streams_and_device() -> None:
    main = torch.fl.current_stream(DEVICE)
    barrier = threading.Barrier(4)

    def work(number: int) -> tuple[bool, float]:
        fresh = torch.fl.current_stream(DEVICE) == torch.fl.default_stream(DEVICE) and torch.fl.current_device() == 0
        stream = torch.fl.Stream(DEVICE)
        with torch.fl.stream(stream):
            barrier.wait()  # all four have set theirs by now
            kept = torch.fl.current_stream(DEVICE) == stream and torch.fl.current_device() == 1
            x = torch.full((64,), float(number), device=DEVICE)
            return fresh and kept, (x * 2).sum().item()

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))
    assert results == [(True, 128.0 * n) for n in range(4)]
    assert torch.fl.current_stream(DEVICE) == main and torch.fl.current_device() == 0


def test_nested_generic_streams_restore_device_and_stream() -> None:
    first, second = torch.Stream("fl:0"), torch.Stream(DEVICE)
    before = torch.accelerator.current_stream("fl:0"), torch.accelerator.current_stream(DEVICE)
    with first:
        assert torch.accelerator.current_device_index() == 0
        with second:
            assert torch.accelerator.current_device_index() == 1
            assert torch.accelerator.current_stream() == second
            assert torch.accelerator.current_stream("fl:0") == first
        assert torch.accelerator.current_device_index() == 0 and torch.accelerator.current_stream() == first
    assert (torch.accelerator.current_stream("fl:0"), torch.accelerator.current_stream(DEVICE)) == before
    torch.accelerator.set_stream(second)
    assert torch.accelerator.current_device_index() == 1 and torch.fl.current_stream() == second
    torch.accelerator.set_stream(before[1])
    torch.accelerator.set_device_index(0)


def test_a_wait_refers_to_the_record_before_it(faults: Faults) -> None:
    slow, quick, sink = (torch.fl.Stream(DEVICE) for _ in range(3))
    event = torch.fl.Event(device=DEVICE)
    event.record(quick)
    sink.wait_event(event)
    kept = busy(slow, faults)
    event.record(slow)  # recorded again: the wait before it stays as it was, query() is of the new one
    sink.synchronize()
    assert not event.query()
    sink.wait_event(event)
    assert not sink.query()
    sink.synchronize()
    assert event.query() and kept.sum().item() == 1 << 18


LAYOUTS = {
    "as it lies": lambda t: t,
    "another type": lambda t: t.to(torch.int32),
    "strided": lambda t: t.view(512, -1).t(),
}


def elapsed(act: Callable[[], object]) -> float:
    begin = time.monotonic()
    act()
    return time.monotonic() - begin


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_from_and_to_pinned_memory_do_not_wait(faults: Faults, layout: str) -> None:
    change = LAYOUTS[layout]
    source = torch.arange(1 << 18, dtype=torch.float32).pin_memory()
    target = change(torch.zeros(1 << 18)).clone(memory_format=torch.contiguous_format).pin_memory()
    there = torch.empty_like(target, device=DEVICE)
    back = torch.empty_like(source).pin_memory()
    torch.fl.synchronize(DEVICE)
    faults.arm("slow_copy:400000")
    shaped = source.view(target.shape) if layout != "strided" else change(source)
    assert elapsed(lambda: there.copy_(shaped, non_blocking=True)) < 0.2
    returned = back.view(target.shape) if layout != "strided" else change(back)
    assert elapsed(lambda: returned.copy_(there, non_blocking=True)) < 0.2
    assert not torch.fl.current_stream(DEVICE).query()
    torch.fl.synchronize(DEVICE)
    assert torch.equal(back, source) and torch.equal(there.cpu(), shaped.to(there.dtype))


def test_blocking_and_pageable_copies_are_done_when_they_return(faults: Faults) -> None:
    x = torch.ones(1 << 18, device=DEVICE)
    pageable = torch.zeros(1 << 18)
    pinned = torch.zeros(1 << 18).pin_memory()
    faults.arm("slow_copy:200000")
    pageable.copy_(x, non_blocking=True)
    assert pageable.sum().item() == 1 << 18
    pinned.copy_(x)
    assert pinned.sum().item() == 1 << 18
    assert elapsed(lambda: x.to(torch.float64).cpu()) > 0.19
    source = torch.full((1 << 18,), 2.0)
    x.copy_(source, non_blocking=True)
    source.zero_()  # pageable memory has been read
    assert x.sum().item() == 2 << 18


def test_a_pinned_buffer_is_not_reused_too_early(faults: Faults) -> None:
    faults.arm("slow_copy:100000")
    results = []
    for number in range(3):
        buffer = torch.full((1 << 18,), float(number)).pin_memory()
        results.append(buffer.to(DEVICE, torch.float64, non_blocking=True))
        del buffer
    assert [r[-1].item() for r in results] == [0.0, 1.0, 2.0]


def test_a_slow_stream_does_not_hold_up_others(faults: Faults) -> None:
    slow, quick = torch.fl.Stream(DEVICE), torch.fl.Stream(DEVICE)
    kept = busy(slow, faults, 0.6)
    faults.disarm()  # what is queued stays slow
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(slow.synchronize)
        time.sleep(0.05)
        with torch.fl.stream(quick):
            assert elapsed(lambda: (torch.ones(1 << 18, device=DEVICE) * 2).sum().item()) < 0.4
        kept.record_stream(slow)
        event = torch.fl.Event(device=DEVICE)
        event.record(quick)
        assert elapsed(lambda: (event.query(), slow.query())) < 0.2
        waiting.result()
    assert kept.sum().item() == 1 << 18


def test_memory_freed_while_its_stream_is_waited_for_comes_back(faults: Faults) -> None:
    """The fence cannot be put while another thread holds the stream: it is put later, and the memory is not lost."""
    side = torch.fl.Stream(DEVICE)
    x = torch.ones(1 << 18, device=DEVICE)
    side.wait_stream(torch.fl.current_stream(DEVICE))
    kept = busy(side, faults, 0.5)
    with torch.fl.stream(side):
        y = x + kept
    x.record_stream(side)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(side.synchronize)
        time.sleep(0.1)
        before = torch.fl.memory_stats(DEVICE)["active_bytes.all.current"]
        del x
        assert torch.fl.memory_stats(DEVICE)["active_bytes.all.current"] == before
        waiting.result()
    torch.zeros(3 << 18, device=DEVICE)  # an allocation looks at what has passed
    assert torch.fl.memory_stats(DEVICE)["active_bytes.all.current"] < before
    assert y.sum().item() == 2 << 18


def test_gradients_are_accumulated_from_several_streams() -> None:
    w = torch.ones(64, 64, device=DEVICE, requires_grad=True)
    streams = [torch.fl.Stream(DEVICE) for _ in range(3)]
    losses = []
    for number, stream in enumerate(streams):
        stream.wait_stream(torch.fl.current_stream(DEVICE))
        with torch.fl.stream(stream):
            losses.append((w * (number + 1)).sum())
    for loss, stream in zip(losses, streams, strict=True):
        torch.fl.current_stream(DEVICE).wait_stream(stream)
        loss.record_stream(torch.fl.current_stream(DEVICE))
    sum(losses).backward()
    assert torch.equal(w.grad.cpu(), torch.full((64, 64), 6.0))  # on the current stream, without another wait


def test_a_future_orders_its_callbacks(faults: Faults) -> None:
    future = torch.futures.Future(devices=[DEVICE])
    side = torch.fl.Stream(DEVICE)
    chained = future.then(lambda done: done.value() * 2)
    value = busy(side, faults)
    with torch.fl.stream(side):
        future.set_result(value)
    assert chained.wait().sum().item() == 2 << 18
    assert future.wait().sum().item() == 1 << 18
