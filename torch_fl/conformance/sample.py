"""One call that a kernel must compute as the CPU does, and the making of operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Make", "Sample"]


@dataclass(frozen=True)
class Sample:
    """`function(*operands)` gives the same on the device as on the CPU; it may also change its operands in place.

    Attributes:
        rough: factor on the tolerance, for long sums.
        expected: computed another way than by the function on the CPU; used where CPU and device differ by design.
    """

    label: str
    function: Callable[..., Any]
    operands: tuple[Any, ...]
    rough: float = 1.0
    expected: Callable[[], Any] | None = None


class Make:
    """Makes operands of one data type, the same ones every time."""

    def __init__(self, dtype: torch.dtype, seed: int = 0):
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    @property
    def is_float(self) -> bool:
        return self.dtype.is_floating_point or self.dtype.is_complex

    def __call__(self, *shape: int, low: float = -3, high: float = 3, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a tensor of values in [low, high): whole numbers for integer types, not below 0 for unsigned ones."""
        dtype = dtype or self.dtype
        if dtype == torch.bool:
            return torch.randint(0, 2, shape, generator=self._generator) == 1
        if dtype.is_complex:
            parts = torch.rand(*shape, 2, generator=self._generator) * (high - low) + low
            return torch.view_as_complex(parts.contiguous()).to(dtype)
        if dtype.is_floating_point:
            values = torch.rand(shape, generator=self._generator, dtype=torch.float64)
            return (values * (high - low) + low).to(dtype)
        low = max(low, 0) if dtype == torch.uint8 else low
        return torch.randint(int(low), max(int(high), int(low) + 1), shape, generator=self._generator).to(dtype)

    def indices(self, *shape: int, below: int) -> torch.Tensor:
        """Return int64 indices in [0, below)."""
        return torch.randint(0, below, shape, generator=self._generator)

    def special(self) -> torch.Tensor:
        """Return the values that are easily got wrong: infinities, NaN, both zeros, ones."""
        inf = float("inf")
        return torch.tensor([0.0, -0.0, 1.0, -1.0, inf, -inf, float("nan"), 0.5], dtype=self.dtype)
