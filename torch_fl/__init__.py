"""Torch-FL: PyTorch on any AI chip.

    import torch, torch_fl
    torch_fl.register_device("ninguang")
    x = torch.randn(4, 3, device="fl")     # or "ninguang", "fl:1"

Importing opens no chip. See README.md, and docs/ for the guides.
"""

from __future__ import annotations

import torch as _torch  # noqa: F401 - also when torch_fl is imported first

from torch_fl import _autoload
from torch_fl._errors import (
    AdapterError,
    ConfigError,
    DeviceLostError,
    DeviceTimeoutError,
    FlError,
    InternalError,
    InvalidArgumentError,
    ProfileError,
    RaceError,
    RouteError,
    UnsupportedError,
)

__version__ = "0.1.0"

__all__ = [
    "AdapterError",
    "ConfigError",
    "DeviceLostError",
    "DeviceTimeoutError",
    "FlError",
    "InternalError",
    "InvalidArgumentError",
    "ProfileError",
    "RaceError",
    "RouteError",
    "UnsupportedError",
    "__version__",
    "device",
    "info",
    "kernel",
    "list_devices",
    "race_check",
    "register_device",
    "routing",
    "unregister_alias",
]

_autoload.register()

_LAZY = {
    "device": ("torch_fl.device._registration", "device"),
    "info": ("torch_fl.device._registration", "info"),
    "kernel": ("torch_fl.ops.kernel", "kernel"),
    "list_devices": ("torch_fl.device._registration", "list_devices"),
    "race_check": ("torch_fl.device.race", "race_check"),
    "register_device": ("torch_fl.device._registration", "register_device"),
    "unregister_alias": ("torch_fl.device._alias", "unregister_alias"),
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        import importlib

        module, attribute = _LAZY[name]
        value = getattr(importlib.import_module(module), attribute)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'torch_fl' has no attribute {name!r}")
