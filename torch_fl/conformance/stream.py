"""Cases of streams: order on one, order across several by events, queries that never block."""

from __future__ import annotations

import threading
import time

import torch

from torch_fl.conformance.case import Context, case, expect, expect_equal
from torch_fl.conformance.memory import pattern

BYTES = 4 << 20


def blocks(context: Context, count: int) -> list[torch.Tensor]:
    return [torch.zeros(BYTES, dtype=torch.uint8).to(context.device) for _ in range(count)]


@case("stream")
def order_on_one_stream(context: Context) -> None:
    """What is queued on one stream runs in that order."""
    sources = [pattern(BYTES, seed).pin_memory() for seed in range(3)]
    x, y = blocks(context, 2)
    with torch.Stream(context.device) as stream:
        x.copy_(sources[0], non_blocking=True)
        x.copy_(sources[1], non_blocking=True)
        y.copy_(x)
        x.copy_(sources[2], non_blocking=True)
    stream.synchronize()
    expect_equal(y, sources[1], "the copy between two writes")
    expect_equal(x, sources[2], "the last write")


@case("stream")
def wait_event_orders_streams(context: Context) -> None:
    """A stream that waits for an event sees all that was queued before it."""
    first, second = torch.Stream(context.device), torch.Stream(context.device)
    x, y = blocks(context, 2)
    torch.accelerator.synchronize(context.device)
    for seed in range(20):
        source = pattern(BYTES, seed).pin_memory()
        with first:
            x.copy_(source, non_blocking=True)
            event = first.record_event()
        second.wait_event(event)
        with second:
            y.copy_(x)
        done = second.record_event()
        first.wait_event(done)
        second.synchronize()
        expect_equal(y, source, f"round {seed}")


@case("stream")
def wait_stream(context: Context) -> None:
    """wait_stream() orders after all work of the other stream so far."""
    first, second = torch.Stream(context.device), torch.Stream(context.device)
    x, y = blocks(context, 2)
    torch.accelerator.synchronize(context.device)
    source = pattern(BYTES, 1).pin_memory()
    with first:
        for _ in range(4):
            x.copy_(source, non_blocking=True)
    second.wait_stream(first)
    with second:
        y.copy_(x)
    second.synchronize()
    expect_equal(y, source, "the second stream's copy")


@case("stream")
def query(context: Context) -> None:
    """query() tells idle from busy and does not wait."""
    stream = torch.Stream(context.device)
    stream.synchronize()
    expect(stream.query() is True, "an idle stream is said to be busy")
    x, y = (torch.empty(32 << 20, dtype=torch.uint8, device=context.device) for _ in range(2))
    torch.accelerator.synchronize(context.device)
    with stream:
        for _ in range(40):
            x.copy_(y)
    start = time.perf_counter()
    idle = stream.query()
    asked = time.perf_counter() - start
    stream.synchronize()
    waited = time.perf_counter() - start - asked
    expect(idle is False or waited < 0.05, f"a stream with {waited:.2f} s of work was said to be idle")
    expect(asked < max(0.05, waited / 4), f"query() took {asked:.2f} s")
    expect(stream.query() is True, "a stream that was waited for is said to be busy")


@case("stream")
def host_reads_wait(context: Context) -> None:
    """A read by the host sees what was queued on the current stream."""
    for seed in range(10):
        source = pattern(BYTES, seed).pin_memory()
        (x,) = blocks(context, 1)
        x.copy_(source, non_blocking=True)
        expect_equal(x, source, f"round {seed}")


@case("stream")
def many_streams(context: Context) -> None:
    """Twelve streams with work of their own do not disturb each other."""
    streams = [torch.Stream(context.device) for _ in range(12)]
    targets = blocks(context, len(streams))
    torch.accelerator.synchronize(context.device)
    sources = [pattern(BYTES, seed).pin_memory() for seed in range(len(streams))]
    for _ in range(3):
        for stream, source, target in zip(streams, sources, targets, strict=True):
            with stream:
                target.copy_(source, non_blocking=True)
    for number, (stream, source, target) in enumerate(zip(streams, sources, targets, strict=True)):
        stream.synchronize()
        expect_equal(target, source, f"stream {number}")


@case("stream")
def threads(context: Context) -> None:
    """Four threads use the device at the same time."""
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with torch.Stream(context.device) as stream:
                for turn in range(10):
                    source = pattern(200_001, number * 100 + turn)
                    block = source.to(context.device)
                    copy = torch.empty_like(block)
                    copy.copy_(block)
                    expect_equal(copy, source, f"thread {number}, turn {turn}")
            stream.synchronize()
        except BaseException as error:
            failures.append(error)

    started = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if failures:
        raise failures[0]


@case("stream")
def device_synchronize(context: Context) -> None:
    """synchronize() of the device waits for all of its streams."""
    streams = [torch.Stream(context.device) for _ in range(3)]
    x, y = (torch.empty(8 << 20, dtype=torch.uint8, device=context.device) for _ in range(2))
    torch.accelerator.synchronize(context.device)
    for stream in streams:
        with stream:
            x.copy_(y)
    torch.accelerator.synchronize(context.device)
    expect(all(stream.query() for stream in streams), "a stream is still busy")
