"""Programs about memory: freed while it is used, taken again, given back, grown; on the device, and pinned."""

from __future__ import annotations

import torch
from litmus import ONE, TWO, Run, litmus, settle, tidy
from programs_order import LARGE, SMALL

GIB = 1 << 30


@litmus()
def freed_while_another_stream_reads(run: Run) -> None:
    for size in (SMALL, LARGE, 8 * LARGE):  # of the small and of the large pool
        owner, reader = torch.fl.Stream(ONE), torch.fl.Stream(ONE)
        v = run.values(size)
        x = run.on(owner, v)
        reader.wait_stream(owner)
        with torch.fl.stream(reader):
            y = x * 2
            z = x + y
        x.record_stream(reader)
        del x
        run.overwrite(owner, size)
        with torch.fl.stream(reader):
            run.check(z.cpu(), v * 3, f"{size} elements")


@litmus()
def freed_while_several_streams_read(run: Run) -> None:
    owner = torch.fl.Stream(ONE)
    readers = [torch.fl.Stream(ONE) for _ in range(3)]
    v = run.values(SMALL)
    x = run.on(owner, v)
    results = []
    for number, reader in enumerate(readers):
        reader.wait_stream(owner)
        with torch.fl.stream(reader):
            results.append(x * (number + 1))
        x.record_stream(reader)
    del x
    run.overwrite(owner, SMALL)
    for number, reader in enumerate(readers):
        with torch.fl.stream(reader):
            run.check(results[number].cpu(), v * (number + 1), f"reader {number}")


@litmus()
def freed_while_its_own_stream_writes(run: Run) -> None:
    """Memory that one stream has freed is not another stream's, however long the queue."""
    owner, other = torch.fl.Stream(ONE), torch.fl.Stream(ONE)
    v = run.values(SMALL)
    y = run.on(other, v)
    x = run.on(owner, run.values(SMALL))
    with torch.fl.stream(owner):
        x.fill_(-1)
        x.mul_(2)
    del x
    with torch.fl.stream(other):
        z = y + 1
        run.check(z.cpu(), v + 1, "on the other stream")
        settle()
        run.check(z.cpu(), v + 1, "when all is done")


@litmus()
def freed_on_a_stream_that_only_copied(run: Run) -> None:
    """A pinned target that a copy still fills, and its source on the device, are both dropped."""
    stream, copier = torch.fl.Stream(ONE), torch.fl.Stream(ONE)
    v = run.values(SMALL)
    x = run.on(stream, v)
    host = torch.zeros(SMALL, pin_memory=True)
    copier.wait_stream(stream)
    with torch.fl.stream(copier):
        host.copy_(x, non_blocking=True)
        done = copier.record_event()
    x.record_stream(copier)
    del x
    run.overwrite(stream, SMALL)
    done.synchronize()
    run.check(host.clone(), v, "the copy")


@litmus()
def pinned_memory_freed_while_read(run: Run) -> None:
    stream = torch.fl.Stream(ONE)
    values = [run.values(SMALL) for _ in range(4)]
    with torch.fl.stream(stream):
        on_chip = [v.pin_memory().to(ONE, non_blocking=True) for v in values]  # each buffer may become the next one's
        for number, (x, v) in enumerate(zip(on_chip, values, strict=True)):
            run.check(x.cpu(), v, f"buffer {number}")


@litmus()
def pinned_memory_freed_while_written(run: Run) -> None:
    stream = torch.fl.Stream(ONE)
    v, w = run.values(SMALL), run.values(SMALL)
    x = run.on(stream, v)
    with torch.fl.stream(stream):
        host = torch.zeros(SMALL, pin_memory=True)
        host.copy_(x, non_blocking=True)
        del host
        other = w.pin_memory()
    settle()
    run.check(other.clone(), w, "the next buffer")


@litmus()
def ring_of_pinned_buffers(run: Run) -> None:
    """Two buffers that the host fills in turn; an event says when each may be filled again."""
    stream = torch.fl.Stream(ONE)
    buffers = [torch.empty(SMALL, pin_memory=True) for _ in range(2)]
    free = [torch.fl.Event(device=ONE) for _ in buffers]
    values = [run.values(SMALL) for _ in range(5)]
    with torch.fl.stream(stream):
        total = torch.zeros(SMALL, device=ONE)
        for number, v in enumerate(values):
            free[number % 2].synchronize()
            buffers[number % 2].copy_(v)
            total = total * 2 + buffers[number % 2].to(ONE, non_blocking=True)
            free[number % 2].record(stream)
        wanted = torch.zeros(SMALL)
        for v in values:
            wanted = wanted * 2 + v
        run.check(total.cpu(), wanted, "sum")


@litmus()
def empty_cache_while_busy(run: Run) -> None:
    """What is given back to the chip is no longer used by anybody."""
    owner, other = torch.fl.Stream(ONE), torch.fl.Stream(ONE)
    v = run.values(LARGE)
    tidy()
    x = run.on(owner, run.values(8 * LARGE))
    with torch.fl.stream(owner):
        for _ in range(3):
            x.fill_(-1)
    del x
    torch.fl.empty_cache()
    fresh = []
    with torch.fl.stream(other):
        for _ in range(4):  # among them what was given back
            y = torch.empty(8 * LARGE, device=ONE)
            y[:LARGE].copy_(v)
            fresh.append(y)
        settle()
        for y in fresh:
            run.check(y[:LARGE].cpu(), v, "taken after it")


@litmus()
def empty_cache_while_another_stream_reads(run: Run) -> None:
    owner, reader, other = (torch.fl.Stream(ONE) for _ in range(3))
    v = run.values(8 * LARGE)
    tidy()
    x = run.on(owner, v)
    reader.wait_stream(owner)
    with torch.fl.stream(reader):
        y = x + 1
        z = x + y
    x.record_stream(reader)
    del x
    torch.fl.empty_cache()
    run.overwrite(other, 8 * LARGE)
    with torch.fl.stream(reader):
        run.check(z.cpu(), v * 2 + 1, "read before it was given back")


@litmus()
def pinned_cache_emptied_while_busy(run: Run) -> None:
    stream = torch.fl.Stream(ONE)
    v = run.values(LARGE)
    with torch.fl.stream(stream):
        x = v.pin_memory().to(ONE, non_blocking=True)
        torch.fl.host_memory_empty_cache()
        others = [torch.full((LARGE,), -1.0).pin_memory() for _ in range(4)]  # what was given back may be among them
        run.check(x.cpu(), v, "copied from memory that was given back")
        assert len(others) == 4


@litmus()
def no_room_while_another_stream_reads(run: Run) -> None:
    """The device is full: memory that somebody still reads comes back only when that is done."""
    owner, reader = torch.fl.Stream(ONE), torch.fl.Stream(ONE)
    v = run.values(SMALL)
    with torch.fl.stream(owner):
        x = torch.empty(5 * GIB, dtype=torch.uint8, device=ONE)
        part = x[: 4 * SMALL].view(torch.float32)
        part.copy_(v)
    reader.wait_stream(owner)
    with torch.fl.stream(reader):
        y = part * 2
        z = part + y
    x.record_stream(reader)
    del x, part
    with torch.fl.stream(owner):
        taken = torch.empty(5 * GIB, dtype=torch.uint8, device=ONE)
        taken[: 4 * SMALL].fill_(77)
    with torch.fl.stream(reader):
        run.check(z.cpu(), v * 3, "read while the device was full")
    del taken
    tidy()


@litmus()
def no_room_while_its_own_stream_writes(run: Run) -> None:
    owner, other = torch.fl.Stream(ONE), torch.fl.Stream(ONE)
    v = run.values(SMALL)
    with torch.fl.stream(owner):
        x = torch.empty(5 * GIB, dtype=torch.uint8, device=ONE)
        for _ in range(3):
            x[: 4 * SMALL].fill_(-1)
    del x
    with torch.fl.stream(other):
        taken = torch.empty(6 * GIB, dtype=torch.uint8, device=ONE)  # another segment
        part = taken[: 4 * SMALL].view(torch.float32)
        part.copy_(v)
        settle()
        run.check(part.cpu(), v, "taken while the owner was writing")
    del taken, part
    tidy()


@litmus()
def storage_grows_while_busy(run: Run) -> None:
    stream = torch.fl.Stream(ONE)
    v = run.values(SMALL)
    x = run.on(stream, v)
    with torch.fl.stream(stream):
        x.add_(1)
        x.resize_(3 * SMALL)
        x[SMALL:].fill_(5)
        y = torch.full((SMALL,), -1.0, device=ONE)  # may lie where x lay
        x[:SMALL].mul_(2)
        x.untyped_storage().resize_(4 * 6 * SMALL)
        read = x.cpu()
        run.check(read[:SMALL], (v + 1) * 2, "what was there")
        run.check(read[SMALL:], torch.full((2 * SMALL,), 5.0), "what was added")
        run.check(y.cpu(), torch.full((SMALL,), -1.0), "what took the old place")


@litmus()
def grown_on_a_side_stream(run: Run) -> None:
    """A storage of the main stream grows on a side stream: who reads the old one is waited for."""
    main, side = torch.fl.Stream(ONE), torch.fl.Stream(ONE)
    v = run.values(SMALL)
    x = run.on(main, v)
    with torch.fl.stream(main):
        y = x * 2
    side.wait_stream(main)
    x.record_stream(side)
    with torch.fl.stream(side):
        x.resize_(2 * SMALL)
        x[SMALL:].fill_(3)
    run.overwrite(main, SMALL)  # the old place belongs to the main stream
    main.wait_stream(side)
    with torch.fl.stream(main):
        run.check(x.cpu(), torch.cat([v, torch.full((SMALL,), 3.0)]), "grown")
        run.check(y.cpu(), v * 2, "read before")


@litmus()
def key_value_cache(run: Run) -> None:
    """Keys come from one stream, the cache grows on a second, attention reads it on a third and may be late."""
    project, grow, attend = (torch.fl.Stream(ONE) for _ in range(3))
    steps = [run.values(16, 64, high=8) for _ in range(5)]
    weight = run.values(64, 64, high=4)
    with torch.fl.stream(project):
        w = weight.to(ONE)
    with torch.fl.stream(grow):
        cache = torch.empty(0, 64, device=ONE)
    results, wanted, cpu_cache = [], [], torch.empty(0, 64)
    for step in steps:
        x = run.on(project, step)
        with torch.fl.stream(project):
            keys = x @ w
        grow.wait_stream(project)
        with torch.fl.stream(grow):
            keys.record_stream(grow)
            cache = torch.cat([cache, keys])
        attend.wait_stream(grow)
        with torch.fl.stream(attend):
            cache.record_stream(attend)
            results.append(cache.sum(0) + cache[0])
        del keys, x
        cpu_cache = torch.cat([cpu_cache, step @ weight])
        wanted.append(cpu_cache.sum(0) + cpu_cache[0])
    with torch.fl.stream(attend):
        for number, (result, want) in enumerate(zip(results, wanted, strict=True)):
            run.check(result.cpu(), want, f"step {number}")
    with torch.fl.stream(grow):
        run.check(cache.cpu(), cpu_cache, "the cache")


@litmus()
def freed_after_a_copy_to_another_device(run: Run) -> None:
    """The source may be dropped at once, and the target's old memory too."""
    source, target = torch.fl.Stream(ONE), torch.fl.Stream(TWO)
    v = run.values(SMALL)
    x = run.on(source, v)
    with torch.fl.stream(source), torch.fl.stream(target):
        old = torch.full((SMALL,), 9.0, device=TWO)
        kept = old * 2
        del old
        y = x.to(TWO, non_blocking=True)  # may lie where `old` lay
        del x
        run.overwrite(source, SMALL)
        run.check(y.cpu(), v, "the copy")
        run.check(kept.cpu(), torch.full((SMALL,), 18.0), "what was computed before")
