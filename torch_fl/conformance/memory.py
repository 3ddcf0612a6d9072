"""Cases of memory: allocation, alignment, copies in every direction, running out and going on."""

from __future__ import annotations

import torch

from torch_fl.conformance.case import Context, NotApplicable, case, expect, expect_equal

SIZES = (1, 3, 511, 512, 513, 4096, 65_537, 1 << 20)
DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
)


def pattern(count: int, seed: int = 0) -> torch.Tensor:
    """Return bytes that no other seed or position repeats soon."""
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@case("memory")
def properties(context: Context) -> None:
    """The device names itself and its memory."""
    for field in ("name", "arch", "uuid"):
        expect(context.info[field], f"{field} is empty")
    expect(context.info["total_memory"] > 0, "total_memory is 0")
    alignment = context.info["alignment"]
    expect(alignment > 0 and alignment & (alignment - 1) == 0, f"alignment {alignment} is no power of two")


@case("memory")
def uuids_differ(context: Context) -> None:
    """Every device has a uuid of its own."""
    import torch_fl

    uuids = [found["uuid"] for found in torch_fl.list_devices()]
    expect(len(uuids) == len(set(uuids)), f"uuids repeat: {', '.join(uuids)}")


@case("memory")
def free_and_total(context: Context) -> None:
    """memory_info counts what is allocated."""
    from torch_fl import _C

    torch.accelerator.empty_cache()
    free, total = _C.memory_info(context.device.index)
    expect(0 < free <= total, f"free {free}, total {total}")
    size = min(64 << 20, free // 4)
    block = torch.empty(size, dtype=torch.uint8, device=context.device)
    held = free - _C.memory_info(context.device.index)[0]
    expect(held >= size, f"{size} bytes were allocated, free memory shrank by {held}")
    del block
    torch.accelerator.empty_cache()
    after = _C.memory_info(context.device.index)[0]
    expect(after >= free, f"{free - after} bytes are not given back")


@case("memory")
def alignment(context: Context) -> None:
    """Every allocation starts at a multiple of the alignment."""
    held = []
    for size in SIZES * 2:
        held.append(torch.empty(size, dtype=torch.uint8, device=context.device))
        place = held[-1].data_ptr()
        expect(place % context.info["alignment"] == 0, f"{size} bytes at {place:#x}")


@case("memory")
def blocks_are_apart(context: Context) -> None:
    """Allocations that live together do not overlap: each keeps what was written to it."""
    sources = [pattern(size, seed) for seed, size in enumerate(SIZES * 3)]
    blocks = [source.to(context.device) for source in sources]
    for number, (source, block) in enumerate(zip(sources, blocks, strict=True)):
        expect_equal(block, source, f"block {number} of {source.numel()} bytes")


@case("memory")
def round_trip(context: Context) -> None:
    """Host to device and back keeps every bit, for each data type and size."""
    for dtype in DTYPES:
        for size in (1, 7, 4096, 100_003):
            source = pattern(size * dtype.itemsize, size)
            source = source % 2 == 1 if dtype == torch.bool else source.view(dtype)
            source = source[:size]
            back = source.to(context.device).cpu()
            same = torch.equal(back.view(torch.uint8), source.view(torch.uint8))
            expect(same, f"{size} elements of {dtype} came back changed")


@case("memory")
def large_round_trip(context: Context) -> None:
    """A copy of 64 MiB, or an eighth of the memory, keeps every bit."""
    source = pattern(min(64 << 20, context.info["total_memory"] // 8), 5)
    expect_equal(source.to(context.device), source, "64 MiB")


@case("memory")
def device_to_device(context: Context) -> None:
    """Copies on one device, also of parts at odd offsets."""
    source = pattern(100_000)
    block = source.to(context.device)
    target = torch.empty_like(block)
    target.copy_(block)
    expect_equal(target, source, "a whole copy")
    for start, end, to in ((0, 1, 1), (3, 70, 1001), (513, 90_001, 7)):
        target[to : to + end - start].copy_(block[start:end])
        expected = target.cpu()
        expect_equal(expected[to : to + end - start], source[start:end], f"bytes {start} to {end} at {to}")


@case("memory")
def parts_from_and_to_host(context: Context) -> None:
    """Copies between host and a part of a device block touch that part only."""
    block = torch.zeros(1000, dtype=torch.uint8).to(context.device)
    part = pattern(77, 3)
    block[501:578].copy_(part)
    expected = torch.zeros(1000, dtype=torch.uint8)
    expected[501:578] = part
    expect_equal(block, expected, "77 bytes at 501")
    host = torch.zeros(77, dtype=torch.uint8)
    host.copy_(block[501:578])
    expect_equal(host, part, "77 bytes from 501")


@case("memory")
def strided_copies(context: Context) -> None:
    """Transposed operands are copied in logical order, in both directions."""
    source = torch.arange(60 * 33, dtype=torch.float32).reshape(60, 33)
    expect_equal(source.t().to(context.device), source.t().contiguous(), "a transposed host tensor")
    expect_equal(source.to(context.device).t().cpu(), source.t().contiguous(), "a transposed device tensor")


@case("memory")
def fill(context: Context) -> None:
    """zeros() and bytes filled with a value."""
    for size in SIZES:
        block = pattern(size).to(context.device)
        block.zero_()
        expect_equal(block, torch.zeros(size, dtype=torch.uint8), f"zero_ of {size} bytes")


@case("memory")
def pinned_copies(context: Context) -> None:
    """Asynchronous copies from and to pinned memory are complete after a synchronize."""
    source = pattern(4 << 20, 9).pin_memory()
    target = torch.empty_like(source).pin_memory()
    block = torch.empty(source.numel(), dtype=torch.uint8, device=context.device)
    block.copy_(source, non_blocking=True)
    target.copy_(block, non_blocking=True)
    torch.accelerator.synchronize(context.device)
    expect_equal(target, source, "there and back")


@case("memory")
def pageable_source_may_change(context: Context) -> None:
    """A copy from pageable memory has read it when it returns."""
    for seed in range(8):
        source = pattern(1 << 20, seed)
        block = source.to(context.device, non_blocking=True)
        expected = source.clone()
        source.zero_()
        expect_equal(block, expected, "what was in host memory at the call")


@case("memory")
def peer_copy(context: Context) -> None:
    """A copy between two devices of the chip, in both directions."""
    other = context.second()
    source = pattern(1 << 20, 4)
    there = source.to(context.device).to(other)
    expect(there.device == other, f"the copy is on {there.device}")
    expect_equal(there, source, f"{context.device} to {other}")
    expect_equal(there.to(context.device), source, f"{other} to {context.device}")


@case("memory")
def out_of_memory(context: Context) -> None:
    """A request that cannot be met is refused with OutOfMemoryError, and the device goes on."""
    kept = pattern(1000).to(context.device)
    try:
        torch.empty(context.info["total_memory"] * 2, dtype=torch.uint8, device=context.device)
    except torch.OutOfMemoryError as error:
        expect("out of memory" in str(error), f'"out of memory" is not in the text: {error}')
    else:
        expect(False, "twice the device's memory was allocated")
    expect_equal(kept, pattern(1000), "what was there before")
    expect_equal(pattern(5000, 1).to(context.device), pattern(5000, 1), "a new block")


@case("memory")
def memory_can_be_used_again(context: Context) -> None:
    """After the memory ran full piece by piece, releasing the pieces makes room."""
    if context.info["total_memory"] < 1 << 20:
        raise NotApplicable("less than 1 MiB")
    for _ in range(2):
        held = []
        try:
            for _ in range(32):  # the chip may allow more than it says, but not for ever
                held.append(torch.empty(context.info["total_memory"] // 8, dtype=torch.uint8, device=context.device))
        except torch.OutOfMemoryError:
            pass
        expect(1 <= len(held) <= 16, f"{len(held)} blocks of an eighth of the memory were allocated")
        held.clear()
    torch.accelerator.empty_cache()
    expect_equal(pattern(5000, 1).to(context.device), pattern(5000, 1), "a new block")
