"""Fill the device until it is out of memory, free, go on; over and over. Exits with an error if anything is lost.

    NINGUANG_MEMORY_MB=192 python tests/device/oom_drill.py [--cycles 1000] [--device fl:1]

Each cycle fills the device with blocks of mixed sizes on two streams until torch.OutOfMemoryError, frees a part, checks
that what is left holds what was written and that an operator computes right, and frees the rest. Then one block of nine
tenths of the memory must fit. Memory in use must come back to where it was each time, and later cycles must get as
much into the device as early ones did.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys

import torch

MIB = 1 << 20


def size_of(rng: random.Random) -> int:
    """Bytes: a few KiB, some hundred KiB, or some MiB."""
    return rng.choice((rng.randint(1, 8 << 10), rng.randint(8 << 10, MIB), rng.randint(MIB, 9 * MIB)))


def fill(device: torch.device, streams: list[torch.Stream], rng: random.Random) -> list[tuple[int, torch.Tensor]]:
    """Allocate and write until the device is full."""
    held: list[tuple[int, torch.Tensor]] = []
    while True:
        value = rng.randint(0, 255)
        try:
            with rng.choice(streams):
                held.append((value, torch.full((size_of(rng),), value, dtype=torch.uint8, device=device)))
        except torch.OutOfMemoryError as error:
            text = str(error)
            assert " out of memory." in text and "held outside the pool" in text, text
            return held


def check(held: list[tuple[int, torch.Tensor]], rng: random.Random) -> None:
    """Compare some blocks with what was written; on the host, because there is no memory for it on the device."""
    for value, tensor in rng.sample(held, min(8, len(held))):
        assert bool((tensor.cpu() == value).all()), "a block does not hold what was written to it"


def cycle(device: torch.device, streams: list[torch.Stream], rng: random.Random) -> int:
    """One cycle; returns the bytes that were allocated when memory ran out."""
    a = torch.arange(64.0, device=device).reshape(8, 8)
    product = torch.empty_like(a)
    held = fill(device, streams, rng)
    filled = torch.accelerator.memory_allocated(device)
    rng.shuffle(held)
    del held[len(held) // 2 :]
    torch.accelerator.synchronize(device)
    check(held, rng)
    torch.mm(a, a, out=product).add_(1)
    assert torch.equal(product.cpu(), a.cpu() @ a.cpu() + 1), "an operator computed wrong after memory ran out"
    held += fill(device, streams, rng)
    torch.accelerator.synchronize(device)
    check(held, rng)
    return filled


def drill(device: torch.device, cycles: int) -> None:
    rng = random.Random(7)
    streams = [torch.Stream(device), torch.Stream(device)]
    total = torch.accelerator.get_memory_info(device)[1]
    whole = total // 10 * 9
    filled: list[int] = []
    before = None
    for number in range(cycles):
        filled.append(cycle(device, streams, rng))
        gc.collect()
        large = torch.empty(whole, dtype=torch.uint8, device=device)
        large[:: 1 << 20].fill_(number % 256)
        assert int(large[0]) == number % 256
        del large
        torch.accelerator.empty_cache()
        stats = torch.accelerator.memory_stats(device)
        state = (stats["allocated_bytes.all.current"], stats["active.all.current"], stats["reserved_bytes.all.current"],
                 stats["inactive_split_bytes.all.current"], torch.accelerator.get_memory_info(device)[0])
        before = state if number == 1 else before
        assert number < 2 or state == before, f"cycle {number}: (allocated, active, reserved, split, free) {state}, " \
                                              f"after the second it was {before}"
    part = max(1, cycles // 5)
    early, late = sum(filled[:part]) / part, sum(filled[-part:]) / part
    print(f"{cycles} cycles; filled to {early / total:.3f} at first, {late / total:.3f} at last, least "
          f"{min(filled) / total:.3f}; retries {stats['num_alloc_retries']}, out of memory {stats['num_ooms']}")
    assert late > 0.97 * early, "later cycles get less into the device than early ones"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--device", default="fl:1")
    arguments = parser.parse_args()
    drill(torch.device(arguments.device), arguments.cycles)
    return 0


if __name__ == "__main__":
    sys.exit(main())
