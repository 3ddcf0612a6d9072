"""Programs about order: streams, events, copies in every direction, reads by the host."""

from __future__ import annotations

import time

import torch
from litmus import ONE, TWO, Run, litmus, other_chip

from torch_fl import routing

SMALL, LARGE = 4096, 48 << 10  # elements: below and above what a chip's caller copies by itself


@litmus()
def consume_after_event(run: Run) -> None:
    producer, consumer = torch.fl.Stream(ONE), torch.fl.Stream(ONE)
    v = run.values(SMALL)
    x = run.on(producer, v)
    with torch.fl.stream(producer):
        y = x * 2
    done = producer.record_event()
    consumer.wait_event(done)
    with torch.fl.stream(consumer):
        z = y + 1
        read = z.cpu()
    run.check(read, v * 2 + 1, "z")


@litmus()
def diamond_of_streams(run: Run) -> None:
    a, b, c, d = (torch.fl.Stream(ONE) for _ in range(4))
    v = run.values(SMALL)
    x = run.on(a, v)
    b.wait_stream(a)
    c.wait_stream(a)
    with torch.fl.stream(b):
        left = x + 1
    with torch.fl.stream(c):
        right = x * 3
    d.wait_stream(b)
    d.wait_stream(c)
    with torch.fl.stream(d):
        read = (left - right).cpu()
    run.check(read, (v + 1) - v * 3, "left - right")


@litmus()
def event_recorded_again(run: Run) -> None:
    """Each wait is for the record before it."""
    producer, first, second = (torch.fl.Stream(ONE) for _ in range(3))
    v, w = run.values(SMALL), run.values(SMALL)
    done = torch.fl.Event(device=ONE)
    x = run.on(producer, v)
    done.record(producer)
    first.wait_event(done)
    y = run.on(producer, w)
    done.record(producer)
    second.wait_event(done)
    with torch.fl.stream(first):
        a = x + 1
    with torch.fl.stream(second):
        b = y + 2
        b_read = b.cpu()
    with torch.fl.stream(first):
        a_read = a.cpu()
    run.check(a_read, v + 1, "after the first record")
    run.check(b_read, w + 2, "after the second record")


@litmus()
def read_after_write_in_place(run: Run) -> None:
    """A reader between two writers of the same memory: both sides wait."""
    writer, reader = torch.fl.Stream(ONE), torch.fl.Stream(ONE)
    v, w = run.values(SMALL), run.values(SMALL)
    x = run.on(writer, v)
    more = run.on(writer, w)
    reader.wait_stream(writer)
    with torch.fl.stream(reader):
        old = x * 1
    writer.wait_stream(reader)
    with torch.fl.stream(writer):
        x.copy_(more)
        new = x.cpu()
    with torch.fl.stream(reader):
        read = old.cpu()
    run.check(read, v, "before the second write")
    run.check(new, w, "after it")


@litmus()
def device_copy_while_writing(run: Run) -> None:
    writer, copier = torch.fl.Stream(ONE), torch.fl.Stream(ONE)
    v = run.values(LARGE)
    source = run.on(writer, v)
    copier.wait_stream(writer)
    with torch.fl.stream(copier):
        target = torch.empty_like(source)
        target.copy_(source)
        read = target.cpu()
    run.check(read, v, "the copy")


@litmus()
def upload_of_pageable_memory(run: Run) -> None:
    """The host may write again as soon as the call returns, whatever non_blocking says."""
    streams = [torch.fl.Stream(ONE), torch.fl.Stream(TWO)]
    for stream in streams:
        with torch.fl.stream(stream):
            for size in (3, 40, SMALL, LARGE):
                v = run.values(size)
                wanted = v.clone()
                x = v.to(stream.device, non_blocking=True)
                v.fill_(-1)
                run.check(x.cpu(), wanted, f"{size} elements")


@litmus()
def upload_of_pinned_memory(run: Run) -> None:
    """A blocking copy has read its source; one that does not block has read it when an event says so."""
    stream = torch.fl.Stream(ONE)
    with torch.fl.stream(stream):
        v, w, u = (run.values(SMALL) for _ in range(3))
        pinned = v.pin_memory()
        x = pinned.to(ONE)
        pinned.copy_(w)
        y = pinned.to(ONE, non_blocking=True)
        stream.record_event().synchronize()
        pinned.copy_(u)
        z = pinned.to(ONE, non_blocking=True)
        run.check(z.cpu(), u, "last")
        run.check(x.cpu(), v, "blocking")
        run.check(y.cpu(), w, "until the event")


@litmus()
def download_into_pageable_memory(run: Run) -> None:
    stream = torch.fl.Stream(ONE)
    with torch.fl.stream(stream):
        for size in (3, SMALL, LARGE):
            v = run.values(size)
            x = run.on(stream, v) + 1
            host = torch.zeros(size)
            host.copy_(x)
            run.check(host, v + 1, f"{size} elements")
            host.copy_(x * 2, non_blocking=True)  # pageable: waited for nevertheless
            run.check(host, (v + 1) * 2, f"{size} elements, non_blocking")


@litmus()
def download_into_pinned_memory(run: Run) -> None:
    stream = torch.fl.Stream(ONE)
    with torch.fl.stream(stream):
        v = run.values(SMALL)
        x = run.on(stream, v)
        host = torch.zeros(SMALL, pin_memory=True)
        host.copy_(x)
        run.check(host.clone(), v, "blocking")
        host.copy_(x * 3, non_blocking=True)
        done = stream.record_event()
        done.synchronize()
        run.check(host.clone(), v * 3, "after the event")
        host.copy_(x * 5, non_blocking=True)
        stream.synchronize()
        run.check(host.clone(), v * 5, "after the stream")
        host.copy_(x * 7, non_blocking=True)
        torch.fl.synchronize(ONE)
        run.check(host.clone(), v * 7, "after the device")


@litmus()
def queries_until_done(run: Run) -> None:
    stream = torch.fl.Stream(ONE)
    v = run.values(SMALL)
    x = run.on(stream, v)
    host = torch.zeros(SMALL, pin_memory=True)
    with torch.fl.stream(stream):
        host.copy_(x + 1, non_blocking=True)
        done = stream.record_event()
    while not done.query():
        time.sleep(1e-4)
    run.check(host.clone(), v + 1, "when the event is there")
    with torch.fl.stream(stream):
        host.copy_(x * 2, non_blocking=True)
    while not stream.query():
        time.sleep(1e-4)
    run.check(host.clone(), v * 2, "when the stream is idle")


@litmus()
def two_streams_then_the_device(run: Run) -> None:
    v, w = run.values(SMALL), run.values(SMALL)
    a, b = torch.fl.Stream(ONE), torch.fl.Stream(ONE)
    left, right = (torch.zeros(SMALL, pin_memory=True) for _ in range(2))
    for stream, values, host in ((a, v, left), (b, w, right)):
        x = run.on(stream, values)
        with torch.fl.stream(stream):
            host.copy_(x * 2, non_blocking=True)
    torch.fl.synchronize(ONE)
    run.check(left.clone(), v * 2, "a")
    run.check(right.clone(), w * 2, "b")


@litmus()
def host_reads_of_busy_data(run: Run) -> None:
    """item(), tolist(), bool() and shapes that depend on data read what their own stream has queued."""
    stream = torch.fl.Stream(ONE)
    v = run.values(SMALL)
    x = run.on(stream, v)
    with torch.fl.stream(stream):
        total = x.sum().item()
        run.check(torch.tensor(total), v.sum(), "item")
        first = (x[:4] + 1).tolist()
        run.check(torch.tensor(first), v[:4] + 1, "tolist")
        some = bool((x * 2 > 125).any())
        run.check(torch.tensor(some), (v * 2 > 125).any(), "bool")
        places = torch.nonzero(x == x.max())
        run.check(places.cpu(), torch.nonzero(v == v.max()), "nonzero")


@litmus()
def between_two_devices(run: Run) -> None:
    """A copy waits for what reads its target, and who comes later waits for the copy; there and back."""
    source, target = torch.fl.Stream(ONE), torch.fl.Stream(TWO)
    v, old = run.values(SMALL), run.values(SMALL)
    x = run.on(source, v)
    y = run.on(target, old)
    with torch.fl.stream(source), torch.fl.stream(target):
        kept = y * 2
        y.copy_(x, non_blocking=True)
        x.zero_()
        z = y + 1
        x.copy_(z, non_blocking=True)
        z.zero_()
        back = x * 3
        run.check(kept.cpu(), old * 2, "what read the target before")
        run.check(back.cpu(), (v + 1) * 3, "there and back")
        run.check(y.cpu(), v, "the target")
        run.check(z.cpu(), torch.zeros(SMALL), "overwritten after the copy")


@litmus()
def blocking_copy_between_devices(run: Run) -> None:
    source = torch.fl.Stream(ONE)
    v = run.values(SMALL)
    x = run.on(source, v)
    with torch.fl.stream(source), torch.fl.stream(torch.fl.Stream(TWO)):
        y = x.to(TWO)
    other = torch.fl.Stream(TWO)
    with torch.fl.stream(other):  # a blocking copy is done for everybody
        read = (y + 1).cpu()
    run.check(read, v + 1, "on a third stream")


@litmus()
def streams_of_two_devices(run: Run) -> None:
    source, target = torch.fl.Stream(ONE), torch.fl.Stream(TWO)
    first, second = torch.fl.Stream(ONE), torch.fl.Stream(TWO)
    v = run.values(SMALL)
    x = run.on(first, v)
    source.wait_stream(first)
    with torch.fl.stream(source), torch.fl.stream(target):
        y = x.to(TWO, non_blocking=True)
    second.wait_stream(target)
    with torch.fl.stream(second):
        read = (y * 2).cpu()
    run.check(read, v * 2, "on the other device's other stream")


@litmus()
def between_two_chips(run: Run) -> None:
    """Another adapter's device at one end: the two do not know each other's streams, and the host is between them."""
    other = other_chip()
    stream = torch.fl.Stream(ONE)
    for size in (SMALL, 24 * LARGE):  # the second goes in several pieces
        v, w = run.values(size), run.values(size)
        x, target = run.on(stream, v), run.on(stream, w)
        with torch.fl.stream(stream):
            kept = target + 1
            y = (x * 2).to(other, non_blocking=True)
            x.zero_()
            target.copy_(y + 1, non_blocking=True)
            y.zero_()
            run.check(target.cpu(), v * 2 + 1, f"{size} elements, there and back")
            run.check(kept.cpu(), w + 1, f"{size} elements, what read the target before")


@litmus()
def staged_layouts(run: Run) -> None:
    """Copies that change type or layout on the way."""
    stream = torch.fl.Stream(ONE)
    v = run.values(64, 64)
    with torch.fl.stream(stream):
        x = run.on(stream, v).t().to(torch.float64)
        run.check(x.cpu(), v.t().double(), "transposed")
        host = torch.zeros(64, 64)
        host.t().copy_(x[:, :])
        run.check(host, v, "into a transposed target of another type")
        y = torch.zeros(64, 128, device=ONE)
        y[:, ::2].copy_(v)
        run.check(y[:, ::2].cpu(), v, "into every second column")


@litmus()
def cpu_tier(run: Run) -> None:
    """An operator that the CPU computes reads what is queued before it, and what comes later reads its result."""
    stream = torch.fl.Stream(ONE)
    v = run.values(SMALL)
    x = run.on(stream, v)
    routing.pin("aten::mul.Tensor", "cpu", device=torch.device(ONE).index)
    try:
        with torch.fl.stream(stream):
            y = x + 1
            z = y * y
            run.check((z - 1).cpu(), (v + 1) ** 2 - 1, "through the CPU")
    finally:
        routing.unpin_all()


@litmus(unified=True)
def cpu_tier_in_unified_memory(run: Run) -> None:
    """The CPU works in the device's own memory: it waits for those who write there, and in-place results stay there."""
    stream, other = torch.fl.Stream(ONE), torch.fl.Stream(ONE)
    v = run.values(SMALL)
    x = run.on(other, v)
    stream.wait_stream(other)
    routing.pin("aten::mul_.Tensor", "cpu", device=torch.device(ONE).index)
    try:
        with torch.fl.stream(stream):
            y = x + 1
            y.mul_(x)
            run.check((y - 1).cpu(), (v + 1) * v - 1, "in place")
    finally:
        routing.unpin_all()
