"""Cases of events: state, waiting, time between two."""

from __future__ import annotations

import time

import torch

from torch_fl.conformance.case import Context, case, expect, expect_equal
from torch_fl.conformance.memory import pattern


@case("event")
def never_recorded_is_complete(context: Context) -> None:
    """An event that was never recorded is complete and waiting for it is free."""
    event = torch.Event(context.device)
    expect(event.query(), "it is said to be pending")
    event.synchronize()


@case("event")
def complete_after_its_work(context: Context) -> None:
    """After synchronize() the event is complete and so is the work before it."""
    stream = torch.Stream(context.device)
    source = pattern(8 << 20).pin_memory()
    block = torch.empty(source.numel(), dtype=torch.uint8, device=context.device)
    back = torch.empty_like(source).pin_memory()
    torch.accelerator.synchronize(context.device)
    with stream:
        block.copy_(source, non_blocking=True)
        back.copy_(block, non_blocking=True)
        event = stream.record_event()
    event.synchronize()
    expect(event.query(), "it is said to be pending")
    expect_equal(back, source, "pinned memory")


@case("event")
def query_does_not_wait(context: Context) -> None:
    """query() of a pending event returns at once."""
    x, y = (torch.empty(32 << 20, dtype=torch.uint8, device=context.device) for _ in range(2))
    torch.accelerator.synchronize(context.device)
    for _ in range(40):
        x.copy_(y)
    event = torch.accelerator.current_stream(context.device).record_event()
    start = time.perf_counter()
    event.query()
    asked = time.perf_counter() - start
    event.synchronize()
    waited = time.perf_counter() - start - asked
    expect(asked < max(0.05, waited / 4), f"query() took {asked:.2f} s of {waited:.2f} s")


@case("event")
def can_be_recorded_again(context: Context) -> None:
    """A second record moves the event behind the later work."""
    stream = torch.Stream(context.device)
    event = torch.Event(context.device)
    x = torch.empty(8 << 20, dtype=torch.uint8, device=context.device)
    torch.accelerator.synchronize(context.device)
    for seed in range(5):
        source = pattern(8 << 20, seed).pin_memory()
        with stream:
            x.copy_(source, non_blocking=True)
        event.record(stream)
        event.synchronize()
        expect_equal(x, source, f"round {seed}")


@case("event")
def elapsed(context: Context) -> None:
    """elapsed_time() is positive around work, grows with it, and is no more than the host saw."""
    x, y = (torch.empty(16 << 20, dtype=torch.uint8, device=context.device) for _ in range(2))
    stream = torch.accelerator.current_stream(context.device)
    events = [torch.Event(context.device, enable_timing=True) for _ in range(3)]
    torch.accelerator.synchronize(context.device)
    start = time.perf_counter()
    events[0].record(stream)
    for _ in range(10):
        x.copy_(y)
    events[1].record(stream)
    for _ in range(10):
        x.copy_(y)
    events[2].record(stream)
    events[2].synchronize()
    seen = (time.perf_counter() - start) * 1e3
    first, both = events[0].elapsed_time(events[1]), events[0].elapsed_time(events[2])
    expect(first > 0, f"{first} ms for ten copies of 16 MiB")
    expect(first <= both, f"{first} ms for the first half of {both} ms")
    expect(both <= seen * 1.5 + 5, f"{both:.1f} ms, while the host saw {seen:.1f} ms")


@case("event")
def elapsed_needs_timing(context: Context) -> None:
    """elapsed_time() of events without timing is refused."""
    first, second = torch.Event(context.device), torch.Event(context.device)
    stream = torch.accelerator.current_stream(context.device)
    first.record(stream)
    second.record(stream)
    second.synchronize()
    try:
        first.elapsed_time(second)
    except (RuntimeError, ValueError):
        return
    expect(False, "a time was given")


@case("event")
def across_devices(context: Context) -> None:
    """A stream of another device waits for an event."""
    other = context.second()
    here, there = torch.Stream(context.device), torch.Stream(other)
    for seed in range(5):
        source = pattern(4 << 20, seed).pin_memory()
        with here:
            x = torch.empty(source.numel(), dtype=torch.uint8, device=context.device)
            x.copy_(source, non_blocking=True)
        there.wait_event(here.record_event())
        with there:
            y = x.to(other)
        there.synchronize()
        expect_equal(y, source, f"round {seed}")
