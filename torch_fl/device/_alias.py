"""Other names for our device: "ninguang:1", "flagos". One TorchFunctionMode translates them, pushed only on demand.

The mode costs every PyTorch call of this thread about a microsecond; torch_fl.device("ninguang:1") is free of cost.
torch.Generator(device=…) parses its device in C and does not see aliases.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["add_alias", "aliases", "resolve", "unregister_alias"]

_aliases: dict[str, int] = {}  # name -> flat index of its device 0
_counts: dict[str, int] = {}
_mode: AliasMode | None = None
_loads_registered = False  # PyTorch has no way to take it back
_PATTERN = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)(?::(\d+))?")


class AliasMode(TorchFunctionMode):
    """Replaces alias strings by devices in the arguments of PyTorch's functions."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if any(type(a) is str for a in args):
            args = tuple(resolve(a) if type(a) is str else a for a in args)
            if func is torch.device and isinstance(args[0], torch.device) and len(args) == 1:
                return args[0]
        if kwargs:
            for name in ("device", "other"):
                if type(kwargs.get(name)) is str:
                    kwargs = {**kwargs, name: resolve(kwargs[name])}
            if func is torch.device and isinstance(kwargs.get("device"), torch.device):
                return kwargs["device"]
        return func(*args, **(kwargs or {}))


def resolve(name: str) -> Any:
    """Return the torch.device an alias stands for; any other string as it is.

    Raises:
        RuntimeError: the alias is known, the index is not.
    """
    match = _PATTERN.fullmatch(name)
    if match is None or match[1] not in _aliases:
        return name
    first, count = _aliases[match[1]], _counts[match[1]]
    own = torch._C._get_privateuse1_backend_name()
    if match[2] is None:
        current = torch._C._accelerator_getDeviceIndex() if count else 0
        return torch.device(own, current if first <= current < first + count else first)
    index = int(match[2])
    if index >= count:
        raise RuntimeError(f"{name} does not exist: there are {count} devices of '{match[1]}' "
                           f"({own}:{first} … {own}:{first + count - 1})")
    return torch.device(own, first + index)


def add_alias(name: str, first: int, count: int) -> None:
    """Make `name` and `name:i` stand for the devices first … first + count - 1."""
    global _mode, _loads_registered
    if name == torch._C._get_privateuse1_backend_name():
        return
    _aliases[name], _counts[name] = first, count
    if _mode is None:
        _mode = AliasMode()
        _mode.__enter__()
    if not _loads_registered:
        torch.serialization.register_package(19, lambda storage: None, _restore)
        _loads_registered = True


def _restore(storage: Any, location: str) -> Any:
    """torch.load(map_location="ninguang:1")."""
    device = resolve(location)
    return storage.to(device=device) if isinstance(device, torch.device) else None


def aliases() -> dict[str, int]:
    """Return the aliases with the flat index of their first device."""
    return dict(_aliases)


def unregister_alias(name: str) -> None:
    """Forget an alias; the mode goes with the last one.

    Raises:
        KeyError: there is no such alias.
    """
    global _mode
    del _aliases[name], _counts[name]
    if not _aliases and _mode is not None:
        mode, _mode = _mode, None
        mode.__exit__(None, None, None)
