"""Streams and events: order, waiting across streams and devices, query that never blocks, timing, priorities."""

from __future__ import annotations

import time

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
    torch.fl.set_stream(side)
    try:
        assert torch.accelerator.current_stream(DEVICE) == side
    finally:
        torch.fl.set_stream(default)
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
    assert urgent.device.index == 1
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
