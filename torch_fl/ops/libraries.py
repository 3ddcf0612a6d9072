"""The kernel-library tier: providers of operators behind the entry point group torch_fl.kernel_libraries.

A provider is a callable resolve(name) -> callable or None, where name is an overload as "aten::add.Tensor" and the
callable takes the overload's arguments, with tensors on the device, and returns its results. It may raise
NotImplementedError to decline a call: the CPU tier takes it. The operands' device is current during the call; a
provider launches on its current stream.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable
from typing import Any

Resolve = Callable[[str], "Callable[..., Any] | None"]

_providers: dict[str, Resolve] = {}
_loaded = False
_log = logging.getLogger("torch_fl.routing")


def register(name: str, resolve_op: Resolve) -> None:
    """Add a provider, after those already there."""
    from torch_fl import _C

    _providers[name] = resolve_op
    _C.reset_routes()


def unregister(name: str) -> None:
    """Remove a provider.

    Raises:
        KeyError: there is none of this name.
    """
    from torch_fl import _C

    del _providers[name]
    _C.reset_routes()


def providers() -> tuple[str, ...]:
    """Return the names of the providers in the order they are asked."""
    _load()
    return tuple(_providers)


def resolve(name: str) -> Callable[..., Any] | None:
    """Return the first provider's implementation of an overload, or None."""
    _load()
    for resolve_op in _providers.values():
        if (found := resolve_op(name)) is not None:
            return found
    return None


def _load() -> None:
    global _loaded
    if _loaded:
        return
    _loaded = True
    for entry in importlib.metadata.entry_points(group="torch_fl.kernel_libraries"):
        try:
            _providers.setdefault(entry.name, entry.load())
        except Exception as error:  # noqa: BLE001 - a broken library must not break the tiers below it
            _log.warning("kernel library %s cannot be loaded: %s", entry.name, error)
