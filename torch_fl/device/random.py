"""Random numbers: one Philox generator per device. One seed gives the same numbers on every chip and device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torch_fl import _C
from torch_fl.device._context import _index


def _get_generator(device: Any = None) -> torch.Generator:
    return _C.default_generator(_index(device))


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    _C.default_generator(_C.current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices; does not open chips: the seed waits for them."""
    if _C.in_bad_fork():
        return
    seed = int(seed)
    _C.seed_new_generators(seed % 2**64)  # of devices that are opened later
    if not _C.devices_opened():
        return
    for index in range(_C.device_count()):
        _C.default_generator(index).manual_seed(seed)


def seed() -> int:
    """Seed the current device's generator with a random number; return it."""
    return _C.default_generator(_C.current_device()).seed()


def seed_all() -> None:
    """Seed all devices with one random number."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """Return the current device's seed."""
    return _C.default_generator(_C.current_device()).initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    """Return a device's generator state: a CPU uint8 tensor of 16 bytes (seed, offset)."""
    return _C.default_generator(_index(device)).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of all devices."""
    return [_C.default_generator(index).get_state() for index in range(_C.device_count())]


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Set a device's generator state.

    Raises:
        TypeError: not a CPU uint8 tensor of 16 bytes.
    """
    _C.default_generator(_index(device)).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the states of all devices, in order."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
