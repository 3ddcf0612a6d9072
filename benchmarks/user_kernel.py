"""What torch_fl.kernel() costs: calls of an operator on a device that has no kernel of the user's, while another device
has one, against calls while nobody has; and a call of the kernel itself. Alternating in one process, medians.

    .venv/bin/python benchmarks/user_kernel.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import torch_fl

ROUNDS, CALLS = 41, 2000


def ns(call: Callable[[], object]) -> float:
    """Nanoseconds of one call."""
    begin = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    passed = (time.perf_counter_ns() - begin) / CALLS
    torch.fl.synchronize(0)
    torch.fl.synchronize(1)
    return passed


def measure(name: str, kernel: Callable[..., torch.Tensor], make: Callable[[str], Callable[[], object]]) -> str:
    """One line of the table."""
    here, there, cpu = make("fl:0"), make("fl:1"), make("cpu")
    times: dict[str, list[float]] = {"nobody": [], "other": [], "own": [], "cpu": []}
    for _ in range(ROUNDS):
        times["cpu"].append(ns(cpu))
        times["nobody"].append(ns(here))
        with torch_fl.kernel(name, kernel, device="fl:1"):
            times["other"].append(ns(here))
            times["own"].append(ns(there))
    cpu_ns, nobody, other, own = (statistics.median(times[k]) for k in ("cpu", "nobody", "other", "own"))
    return (f"{name:16} {nobody:8.0f} {other:8.0f} {other / nobody:8.2f} {other / cpu_ns:8.2f} {own:8.0f}")


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("ns per call on fl:0, 8 elements; its own: on fl:1, of a kernel that returns torch.empty_like")
    print(f"{'operator':16} {'nobody':>8} {'another':>8} {'ratio':>8} {'to CPU':>8} {'its own':>8}")

    def add(device: str) -> Callable[[], object]:
        x = torch.ones(8, device=device)
        return lambda: x + x

    def gelu(device: str) -> Callable[[], object]:
        x = torch.ones(8, device=device)
        return lambda: torch.nn.functional.gelu(x)

    def mm(device: str) -> Callable[[], object]:
        x = torch.ones(4, 4, device=device)
        return lambda: torch.mm(x, x)

    print(measure("aten::add.Tensor", lambda x, y, *, alpha=1: torch.empty_like(x), add))
    print(measure("aten::gelu", lambda x, *, approximate="none": torch.empty_like(x), gelu))
    print(measure("aten::mm", lambda x, y: torch.empty_like(x), mm))


if __name__ == "__main__":
    main()
