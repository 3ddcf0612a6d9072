"""Every exception that Torch-FL raises by its own name. Knows no PyTorch.

Out of memory is torch.OutOfMemoryError and an index out of range is IndexError, as everywhere in PyTorch; everything
else derives from FlError, which is a RuntimeError, so that code written for other devices catches it.
"""

from __future__ import annotations

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
]


class FlError(RuntimeError):
    """Base of all errors of Torch-FL."""


class AdapterError(FlError):
    """An adapter could not be found, loaded or used."""


class ConfigError(FlError):
    """An environment variable or the configuration file says something that cannot be."""


class ProfileError(FlError):
    """A chip profile, or the store of registered profiles, is not usable."""


class RaceError(FlError):
    """Two accesses to the same memory that no event orders; only where races are looked for."""


class RouteError(FlError):
    """No tier that is switched on can run an operator, or a kernel for it is not what it must be."""


class UnsupportedError(FlError, NotImplementedError):
    """The chip, or Torch-FL, does not have what was asked for."""


class InvalidArgumentError(FlError):
    """The chip refused an argument."""


class DeviceLostError(FlError):
    """The device is gone; every later call on it fails the same way."""


class DeviceTimeoutError(FlError):
    """The device did not answer in time."""


class InternalError(FlError):
    """The vendor's software failed for a reason of its own."""
