"""Arms the reference chip's faults from Python: ngFaultSet of the very library that the adapter has opened."""

from __future__ import annotations

import ctypes
import os

import torch

import torch_fl


class Faults:
    """Arms and disarms; see chips/ninguang/sdk/README.md for the names."""

    def __init__(self) -> None:
        torch.fl.init()
        already_open = 4  # RTLD_NOLOAD
        self._sdk = ctypes.CDLL("libninguang.so", mode=os.RTLD_NOW | already_open)

    def arm(self, text: str) -> None:
        assert self._sdk.ngFaultSet(text.encode()) == 0, text

    def disarm(self) -> None:
        assert self._sdk.ngFaultSet(None) == 0


def small_model(device: str, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    ).to(device)


def train(model: torch.nn.Module, steps: int = 2, batch: int = 8) -> list[float]:
    """Trains with data from the host each step, on a side stream too, so that every kind of adapter call happens."""
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    source = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        raw = torch.randn(batch, 8, generator=source).pin_memory().to(device, non_blocking=True)
        y = torch.randint(4, (batch,), generator=source).to(device)
        side = torch.fl.Stream(device)
        side.wait_stream(torch.fl.current_stream(device))
        with torch.fl.stream(side):
            x = raw * 1.0
            raw.record_stream(side)  # made on the current stream, read on the side stream, and the other way round
        torch.fl.current_stream(device).wait_stream(side)
        x.record_stream(torch.fl.current_stream(device))
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


__all__ = ["Faults", "small_model", "torch_fl", "train"]
