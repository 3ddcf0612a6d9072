"""What the race finder costs while it is on: the same work with and without it, in one process, by turns.

    .venv/bin/python benchmarks/race_check.py

Prints, for one small operator and for a training step of a small model, the time with the finder over the time without.
Off, it costs what TORCH_FL_SYNC_DEBUG costs when that is off: both are one test of one flag.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import torch_fl


def seconds(act: Callable[[], None], repeat: int) -> float:
    torch.fl.synchronize()
    begin = time.perf_counter()
    for _ in range(repeat):
        act()
    torch.fl.synchronize()
    return (time.perf_counter() - begin) / repeat


def small_operator() -> Callable[[], None]:
    x = torch.ones(16, device="fl")
    return lambda: x.add_(1.0)


def training_step() -> Callable[[], None]:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True).to("fl")
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3, fused=True)
    x = torch.randn(8, 32, 64).to("fl")

    def step() -> None:
        layer(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    for name, make, repeat in (("x.add_(1), 16 elements", small_operator, 2000), ("training step", training_step, 10)):
        act = make()
        act()
        off, on = [], []
        for _ in range(7):
            off.append(seconds(act, repeat))
            with torch_fl.race_check("raise"):
                on.append(seconds(act, repeat))
        base, checked = statistics.median(off), statistics.median(on)
        print(f"{name}: {base * 1e6:.1f} us without, {checked * 1e6:.1f} us with the race finder, "
              f"ratio {checked / base:.2f}")


if __name__ == "__main__":
    main()
