"""Counters: calls by device, ATen overload and tier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch_fl import _C

TIERS = ("native", "decompose", "library", "cpu")


@dataclass
class RoutingStats:
    """Calls by (device index, tier, overload name), e.g. calls[0]["native"]["aten::add.Tensor"] == 12.

    Attributes:
        calls: device index -> tier -> overload -> number of calls.
        bytes_moved: device index -> bytes copied between host and device for the CPU tier, and within users' kernels.
    """

    calls: dict[int, dict[str, dict[str, int]]] = field(default_factory=dict)
    bytes_moved: dict[int, int] = field(default_factory=dict)

    def ops(self, tier: str) -> dict[str, int]:
        """Return the calls of one tier by overload, over all devices."""
        merged: dict[str, int] = {}
        for by_tier in self.calls.values():
            for name, calls in by_tier.get(tier, {}).items():
                merged[name] = merged.get(name, 0) + calls
        return dict(sorted(merged.items(), key=lambda item: (-item[1], item[0])))

    def __getitem__(self, tier: str) -> dict[str, int]:
        return self.ops(tier)

    @property
    def native(self) -> dict[str, int]:
        """Overloads that ran as kernels of the chip."""
        return self.ops("native")

    @property
    def decompose(self) -> dict[str, int]:
        """Overloads that ran decomposed into others."""
        return self.ops("decompose")

    @property
    def library(self) -> dict[str, int]:
        """Overloads that a kernel library, or a kernel of the user's, ran."""
        return self.ops("library")

    @property
    def cpu_fallback(self) -> dict[str, int]:
        """Overloads that ran on the CPU."""
        return self.ops("cpu")

    def __str__(self) -> str:
        parts = [f"native={len(self.native)}", f"decompose={len(self.decompose)}"]
        if self.library:
            parts.append(f"library={len(self.library)}")
        parts.append(f"cpu_fallback={len(self.cpu_fallback)}")
        return "[Torch-FL] Operator routing: " + ", ".join(parts)

    def __sub__(self, earlier: RoutingStats) -> RoutingStats:
        result = RoutingStats()
        for device, by_tier in self.calls.items():
            for tier, by_name in by_tier.items():
                for name, calls in by_name.items():
                    change = calls - earlier.calls.get(device, {}).get(tier, {}).get(name, 0)
                    if change > 0:
                        result.calls.setdefault(device, {}).setdefault(tier, {})[name] = change
        for device, moved in self.bytes_moved.items():
            if change := moved - earlier.bytes_moved.get(device, 0):
                result.bytes_moved[device] = change
        return result


def stats() -> RoutingStats:
    """Return all counts since the start or reset()."""
    result = RoutingStats()
    for device, name, tier, calls in _C.counts():
        result.calls.setdefault(device, {}).setdefault(tier, {})[name] = calls
    for device, by_tier in enumerate(_C.bytes_moved()):
        if moved := sum(by_tier):
            result.bytes_moved[device] = moved
    return result


def reset() -> None:
    """Set all counts to zero."""
    _C.reset_counts()


@contextmanager
def track() -> Iterator[RoutingStats]:
    """Count a scope: the yielded stats are filled when it ends."""
    before, result = stats(), RoutingStats()
    try:
        yield result
    finally:
        after = stats() - before
        result.calls, result.bytes_moved = after.calls, after.bytes_moved


def summary() -> str:
    """Return the one-line summary: distinct operators by tier."""
    return str(stats())
