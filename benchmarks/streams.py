"""Copies against memcpy, and what copy and compute cost together, in ratios within one run.

    python benchmarks/streams.py [--device ninguang] [--mib 64] [--json]

Copies: a blocking copy between pinned and device memory, against memmove() of libc over as many bytes, on as many
threads as the chip's copy engine uses (NINGUANG_THREADS), each with its own part. Both sides have memory in huge pages
that was written before. They take turns; the share is the ratio of the medians.

Overlap: copies on one stream and matrix products on another, started together, against the longer of the two alone. The
copy engine and the compute units of the reference chip are threads of this machine, so this is measured with
NINGUANG_THREADS=1, where each has one core (two are needed): with more, either alone already takes all cores.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

import torch_fl

LIBC = ctypes.CDLL(None)
LIBC.memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="ninguang")
    parser.add_argument("--mib", type=int, default=64, help="size of a copy")
    parser.add_argument("--repeats", type=int, default=41)
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)  # in a process of its own
    return parser.parse_args()


class Memcpy:
    """memmove() between two buffers of the host in huge pages, on several threads."""

    def __init__(self, size: int, threads: int) -> None:
        self._buffers = [mmap.mmap(-1, size + (4 << 20)) for _ in range(2)]
        for buffer in self._buffers:
            buffer.madvise(mmap.MADV_HUGEPAGE)
            buffer.write(b"\1" * len(buffer))
        begins = [ctypes.addressof(ctypes.c_char.from_buffer(buffer)) for buffer in self._buffers]
        to, source = (begin + -begin % (2 << 20) for begin in begins)
        part = size // threads
        self._parts = [(to + i * part, source + i * part, part) for i in range(threads)]
        self._pool = ThreadPoolExecutor(max(1, threads - 1))

    def __call__(self) -> None:
        others = [self._pool.submit(LIBC.memmove, *part) for part in self._parts[1:]]
        LIBC.memmove(*self._parts[0])
        for other in others:
            other.result()


def times(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each; they take turns."""
    found: dict[str, list[float]] = {name: [] for name in functions}
    for repeat in range(repeats + 3):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            if repeat >= 3:
                found[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in found.items()}


def measure_copies(device: torch.device, size: int, threads: int, repeats: int) -> dict[str, float]:
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True).fill_(1)
    there = host.to(device)
    found = times({"memcpy": Memcpy(size, threads), "h2d": lambda: there.copy_(host),
                   "d2h": lambda: host.copy_(there)}, repeats)  # fmt: skip
    return {"memcpy_gb_per_s": size / found["memcpy"] / 1e9, "h2d_share": found["memcpy"] / found["h2d"],
            "d2h_share": found["memcpy"] / found["d2h"]}  # fmt: skip


def measure_overlap(device: torch.device, size: int, repeats: int) -> dict[str, float]:
    copier, computer = torch.Stream(device), torch.Stream(device)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True).fill_(1)
    there = host.to(device)
    a, b = (torch.rand(256, 256).to(device) for _ in range(2))
    out = torch.empty_like(a)

    def copy() -> None:
        with copier:
            for _ in range(2):
                there.copy_(host, non_blocking=True)
                host.copy_(there, non_blocking=True)

    def compute(count: int) -> None:
        with computer:
            for _ in range(count):
                torch.mm(a, b, out=out)

    def done(*queue: Callable[[], None]) -> None:
        for one in queue:
            one()
        copier.synchronize()
        computer.synchronize()

    alone = times({"copy": lambda: done(copy), "compute": lambda: done(lambda: compute(100))}, 5)
    count = max(1, round(100 * alone["copy"] / alone["compute"]))  # as long as the copies
    work = lambda: compute(count)  # noqa: E731
    kinds = {"copy": lambda: done(copy), "compute": lambda: done(work), "both": lambda: done(copy, work)}
    found = times(kinds, repeats)
    return {"copy_ms": found["copy"] * 1e3, "compute_ms": found["compute"] * 1e3, "both_ms": found["both"] * 1e3,
            "both_to_longer": found["both"] / max(found["copy"], found["compute"])}  # fmt: skip


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    device = torch_fl.register_device(arguments.device)[0]
    found = measure_copies(device, arguments.mib << 20, arguments.threads, arguments.repeats)
    if arguments.threads == 1:
        found |= measure_overlap(device, arguments.mib << 20, arguments.repeats)
    return found


def in_process(threads: int) -> dict[str, float]:
    """The chip reads NINGUANG_THREADS once in a process."""
    command = [sys.executable, __file__, *sys.argv[1:], "--threads", str(threads)]
    environment = {**os.environ, "NINGUANG_THREADS": str(threads), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        print(json.dumps(measure(arguments)))
        return
    cores = os.cpu_count() or 1
    results = {threads: in_process(threads) for threads in sorted({1, cores})}
    if arguments.json:
        print(json.dumps(results))
        return
    print(f"{arguments.device}, {arguments.mib} MiB, pinned; {cores} cores")
    for threads, found in results.items():
        print(f"copies, {threads} thread(s): H2D {found['h2d_share']:.1%} and D2H {found['d2h_share']:.1%} of memcpy's "
              f"{found['memcpy_gb_per_s']:.1f} GB/s")
    one = results[1]
    print(f"overlap, 1 thread: copy {one['copy_ms']:.1f} ms, compute {one['compute_ms']:.1f} ms, both "
          f"{one['both_ms']:.1f} ms: {one['both_to_longer']:.2f} of the longer")


if __name__ == "__main__":
    main()
