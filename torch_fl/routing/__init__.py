"""Routes: which tier runs an operator, why, and how often. Everything that ran is counted.

    with torch_fl.routing.track() as routes:
        model(x)
    print(routes)                       # [Torch-FL] Operator routing: native=31, decompose=2, cpu_fallback=0

Tiers are tried in a fixed order: native kernel, decomposition, kernel library, CPU.
"""

from __future__ import annotations

from torch_fl.routing.counting import RoutingStats, reset, stats, summary, track
from torch_fl.routing.explaining import Explanation, explain
from torch_fl.routing.switches import enable, no_cpu_fallback, only, pin, unpin_all

__all__ = [
    "Explanation",
    "RoutingStats",
    "enable",
    "explain",
    "no_cpu_fallback",
    "only",
    "pin",
    "reset",
    "stats",
    "summary",
    "track",
    "unpin_all",
]


def _install() -> None:
    """Connect the extension with the Python tiers; called once by _autoload. Imports no decomposition yet."""
    import atexit

    from torch_fl import _C, _env

    _C.set_resolver(_resolve)
    _C.set_sync_debug(_env.get("TORCH_FL_SYNC_DEBUG"))
    for tier, variable in (("cpu", "TORCH_FL_CPU_FALLBACK"), ("library", "TORCH_FL_GENERIC_KERNEL")):
        if (on := _env.get(variable)) is not None:
            _C.set_tier_enabled(tier, on)
    if _env.get("TORCH_FL_VERBOSE") >= 1:
        atexit.register(lambda: print(summary()) if _C.devices_opened() else None)


def _resolve(tier: str, name: str):  # noqa: ANN202
    if tier == "library":
        from torch_fl.ops import libraries

        return libraries.resolve(name)
    from torch_fl.ops import decompositions

    return decompositions.resolve(name)
