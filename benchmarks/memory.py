"""What allocating and freeing a cached block costs, as a ratio to PyTorch's CPU allocator in the same process.

    python benchmarks/memory.py [--device ninguang] [--json]

Through c10's interface (a loop in C++, compiled here: needs g++), through the same with one more thread that allocates
on the same device, and through torch.empty. The CPU and the device take turns; each figure is the median over
`--rounds` rounds. The bar is a ratio of at most 1.0.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import torch_fl

SIZES = [64, 512, 4 << 10, 64 << 10, 512 << 10, 1 << 20, 3 << 20, 16 << 20, 64 << 20]
CPU, PRIVATE_USE_1 = 0, 20  # c10::DeviceType


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="ninguang")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--times", type=int, default=20_000, help="pairs of allocate and free in a round")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    return parser.parse_args()


def compile_loop(folder: str) -> ctypes.CDLL:
    """Compile memory_loop.cpp against the torch that is imported."""
    home = Path(torch.__file__).parent
    library = Path(folder, "memory_loop.so")
    flags = ["-O2", "-std=c++17", "-shared", "-fPIC"]
    subprocess.run(
        ["g++", *flags, "-I", home / "include", Path(__file__).with_name("memory_loop.cpp"), "-o", library,
         "-L", home / "lib", "-lc10", "-pthread"],
        check=True,
    )
    loaded = ctypes.CDLL(str(library))
    loaded.cached_block_ns.restype = ctypes.c_double
    loaded.cached_block_ns.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int64, ctypes.c_int]
    return loaded


def empty_ns(device: torch.device, size: int, times: int) -> float:
    """Nanoseconds for torch.empty and the free that follows it."""
    empty, uint8 = torch.empty, torch.uint8
    start = time.perf_counter_ns()
    for _ in range(times):
        empty(size, dtype=uint8, device=device)
    return (time.perf_counter_ns() - start) / times


def measure(loop: ctypes.CDLL, device: torch.device, size: int, arguments: argparse.Namespace) -> dict[str, object]:
    """Return the medians of both sides, in nanoseconds, and their ratios."""
    cpu = torch.device("cpu")
    # The CPU allocator asks the system for large blocks each time: fewer of those are enough.
    times = arguments.times if size < 1 << 20 else max(1, arguments.times // 10)
    ways = {
        "c10": lambda kind, where: loop.cached_block_ns(kind, size, times, 0),
        "c10, 2 threads": lambda kind, where: loop.cached_block_ns(kind, size, times, 1),
        "torch.empty": lambda kind, where: empty_ns(where, size, times // 4),
    }
    row: dict[str, object] = {"bytes": size}
    for name, way in ways.items():
        rounds: dict[str, list[float]] = {"cpu": [], "device": []}
        for _ in range(arguments.rounds):
            rounds["cpu"].append(way(CPU, cpu))
            rounds["device"].append(way(PRIVATE_USE_1, device))
        medians = {side: statistics.median(values) for side, values in rounds.items()}
        row[name] = {**medians, "ratio": medians["device"] / medians["cpu"]}
    return row


def main() -> int:
    arguments = parse_arguments()
    device = torch_fl.device(arguments.device)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, torch.fl.device(device):
        loop = compile_loop(folder)
        rows = [measure(loop, device, size, arguments) for size in SIZES]
    names = [name for name in rows[0] if name != "bytes"]
    worst = {name: max(row[name]["ratio"] for row in rows) for name in names}
    if arguments.json:
        print(json.dumps({"sizes": rows, "largest_ratio": worst}))
        return 0
    print(f"{'bytes':>10}" + "".join(f"{name + ': cpu ns':>24}{'fl ns':>8}{'ratio':>7}" for name in names))
    for row in rows:
        cells = (row[name] for name in names)
        print(f"{row['bytes']:>10}" + "".join(f"{c['cpu']:>24.0f}{c['device']:>8.0f}{c['ratio']:>7.2f}" for c in cells))
    print("largest ratio: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in worst.items()) + " (bar: 1.0)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
