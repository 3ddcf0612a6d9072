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
    if _env.get("TORCH_FL_VERBOSE") >= 1:
        atexit.register(lambda: print(summary()) if _C.devices_opened() else None)


def _apply_configuration() -> None:
    """Set the tier switches as the environment and config.yaml say; called when chips are first opened.

    Raises:
        ConfigError: one of them is not valid.
    """
    from torch_fl import _C
    from torch_fl.profile import config

    configured = config.load_config()
    if not config.cpu_fallback_enabled(configured):
        _C.set_tier_enabled("cpu", False)
    if not config.generic_kernel_enabled(configured):
        _C.set_tier_enabled("library", False)


def _resolve(tier: str, name: str):  # noqa: ANN202
    from torch_fl.ops import decompositions, libraries
    from torch_fl.routing import out_variants

    if tier == "library":
        return libraries.resolve(name) or out_variants.library(name)
    found = decompositions.resolve(name)
    return None if found is None or out_variants.only_asks_itself(name) else found
