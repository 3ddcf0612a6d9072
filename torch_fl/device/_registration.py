"""Making chips available by name, and telling what there is."""

from __future__ import annotations

import contextlib
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from torch_fl import _C, _autoload
from torch_fl.device import _alias


def register_device(name: str = "flagos") -> list[torch.device]:
    """Make a chip's devices available and let its name stand for them: "ninguang", "ninguang:1".

    Args:
        name: a chip known here (registered profile, installed or bundled adapter), a profile's file (*.json) or an
            adapter library (*.so). "flagos" stands for all devices.

    Returns:
        The chip's devices, in order.

    Raises:
        AdapterError: the chip is not known or cannot be opened; the text says why and what to do.
        ProfileError: its profile is not valid.
    """
    if not isinstance(name, str):
        raise TypeError(f"a chip's name, a profile's file or an adapter library is needed, got {name!r}")
    own = torch._C._get_privateuse1_backend_name()
    _raise_if_unavailable()
    if name in ("flagos", own):
        indices = list(range(_C.device_count()))
        chip = "flagos"
    else:
        indices = _open(name)
        chip = _C.device_info(indices[0])["chip"] if indices else name
    if not indices:
        from torch_fl._errors import AdapterError

        raise AdapterError(f"{name} has no device here; `flagos-torch-fl diagnose` says why")
    _alias.add_alias(chip, indices[0], len(indices))
    _alias.add_alias("flagos", 0, _C.device_count())
    return [torch.device(own, index) for index in indices]


def device(name: str) -> torch.device:
    """Return the torch.device a chip's name stands for ("ninguang:1"), registering the chip if needed.

    Costs nothing afterwards: the result is a plain device.

    Raises:
        AdapterError: the chip is not known or cannot be opened.
        RuntimeError: the chip has no such device.
    """
    own = torch._C._get_privateuse1_backend_name()
    chip, _, index = name.partition(":")
    _raise_if_unavailable()
    if chip == own:
        return torch.device(name)
    indices = _indices_of(chip) if _C.devices_opened() else []
    if not indices:
        indices = _open(chip)
    number = int(index) if index else 0
    if number >= len(indices):
        raise RuntimeError(f"{name} does not exist: there are {len(indices)} devices of '{chip}'")
    return torch.device(own, indices[number])


def _open(name: str) -> list[int]:
    """Open a chip's devices, after the configured ones, which keep their places; return their indices."""
    from torch_fl._errors import AdapterError
    from torch_fl.profile import adapters

    spec = adapters.spec_for(name)
    if not _C.devices_opened():
        adapters.request(spec)
    known = _C.device_count()
    indices = _C.add_adapter(spec)
    _warn_of_late(name, [index for index in indices if index >= known])
    opened_with = _C.device_info(indices[0])["profile_path"] if indices else spec["profile_path"]
    if opened_with != spec["profile_path"]:
        raise AdapterError(
            f"the devices of '{spec['device_name']}' are already open in this process with the profile {opened_with}; "
            f"it cannot be exchanged later. Register {spec['profile_path'] or name} before the first use of a device")
    return indices


def _warn_of_late(name: str, opened: list[int]) -> None:
    """PyTorch's autograd serves the devices that were there at the first backward(), and has no way to add one."""
    served = _devices_of_autograd()
    late = [index for index in opened if index >= served > 0]
    if late:
        own = torch._C._get_privateuse1_backend_name()
        warnings.warn(
            f"{', '.join(f'{own}:{index}' for index in late)} ({name}) was opened after this process's first "
            f"backward(). PyTorch's autograd serves the devices that were there then and no others: on this one "
            f"backward() will fail with an internal assertion of PyTorch (device_ready_queues_). All else works. To "
            f"train on it, register it before the first backward(), or name it in TORCH_FL_CHIPS",
            RuntimeWarning, stacklevel=4)


def _devices_of_autograd() -> int:
    """How many devices autograd serves, by the names it gives its threads; 0: it has not started, or no /proc."""
    served = 0
    for task in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # a thread that ended meanwhile
            if found := re.match(r"pt_autograd_(\d+)", task.read_text()):
                served = max(served, int(found[1]) + 1)
    return served


def _indices_of(chip: str) -> list[int]:
    every = range(_C.device_count())
    return list(every) if chip == "flagos" else [i for i in every if _C.device_info(i)["chip"] == chip]


def list_devices(all: bool = False) -> list[dict[str, Any]]:  # noqa: A002 - the documented name
    """Return every fl device with its chip, name, uuid and memory; with all=True also what PyTorch serves itself."""
    _raise_if_unavailable()
    own = torch._C._get_privateuse1_backend_name()
    found = [{"device": f"{own}:{i}", **_C.device_info(i)} for i in range(_C.device_count())]
    if all:
        for kind in ("cuda", "xpu", "mps"):
            module = getattr(torch, kind, None)
            if module is not None and module.is_available():
                found += [{"device": f"{kind}:{i}", "chip": kind} for i in range(module.device_count())]
        found.append({"device": "cpu", "chip": "cpu"})
    return found


def info() -> dict[str, Any]:
    """Return versions, devices, adapters that could not be opened, and the tiers that are on."""
    import torch_fl

    result: dict[str, Any] = {"torch_fl": torch_fl.__version__, "torch": torch.__version__,
                              "device_name": torch._C._get_privateuse1_backend_name()}
    if (reason := _autoload.failure()) is not None:
        return {**result, "available": False, "reason": str(reason)}
    devices = list_devices()
    return {
        **result,
        "available": bool(devices),
        "built_for_torch": _C.built_for_torch,
        "abi": _C.abi_version,
        "devices": devices,
        "adapter_failures": _C.adapter_failures(),
        "aliases": _alias.aliases(),
        "tiers": {tier: _C.tier_enabled(tier) for tier in ("native", "decompose", "library", "cpu")},
    }


def _raise_if_unavailable() -> None:
    if (reason := _autoload.failure()) is not None:
        raise reason
