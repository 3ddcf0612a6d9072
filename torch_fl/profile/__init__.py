"""Chip profiles, their registry, the user's configuration, and finding adapters. Floor 1: knows no PyTorch.

Names are resolved on first use, so that importing this package costs nothing until a profile is read.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_fl.profile.adapters import Chip, chips, discover, include_dir, spec_for
    from torch_fl.profile.chip_profile import ChipProfile
    from torch_fl.profile.config import Config, load_config
    from torch_fl.profile.loader import InvalidProfile, load
    from torch_fl.profile.registry import Registered, register, registered, unregister

_HOME = {
    "Chip": "adapters", "chips": "adapters", "discover": "adapters", "include_dir": "adapters", "spec_for": "adapters",
    "ChipProfile": "chip_profile",
    "Config": "config", "load_config": "config",
    "InvalidProfile": "loader", "load": "loader",
    "Registered": "registry", "register": "registry", "registered": "registry", "unregister": "registry",
}

__all__ = [
    "Chip", "ChipProfile", "Config", "InvalidProfile", "Registered", "chips", "discover", "include_dir", "load",
    "load_config", "register", "registered", "spec_for", "unregister",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
