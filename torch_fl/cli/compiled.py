"""The commands' way to the compiled part, torch_fl._C: a clear refusal where it is missing or does not load."""

from __future__ import annotations

import importlib
from typing import Any

from torch_fl._errors import FlError
from torch_fl.cli.output import MissingPart

__all__ = ["compiled", "open_devices"]


def compiled() -> Any:
    """Return torch_fl._C.

    Raises:
        MissingPart: it is not installed, or does not fit the installed torch.
    """
    try:
        import torch_fl

        return importlib.import_module("torch_fl._C") if not hasattr(torch_fl, "_C") else torch_fl._C
    except Exception as error:  # the loader may raise anything; the command's job is to say it
        raise MissingPart(f"the compiled part torch_fl._C cannot be used: {error}. `flagos-torch-fl env` shows the "
                          "versions; `pip install --force-reinstall flagos-torch-fl` repairs an installation") from None


def open_devices() -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Open all devices.

    Returns:
        What `_C.device_info` says of each, with `memory_free`; and what could not be opened: dicts of path and reason.
    """
    from torch_fl.profile import adapters

    core = compiled()
    refused: list[dict[str, str]] = []

    def discover() -> list[dict[str, Any]]:
        try:
            return adapters.discover()
        except FlError as error:  # kept here, since the core would add where in Python it was raised
            refused.append({"path": "", "reason": str(error)})
            return []

    if not core.devices_opened():
        core.set_discover(discover)
    devices = []
    for index in range(core.device_count()):
        info = dict(core.device_info(index))
        try:
            info["memory_free"] = core.memory_info(index)[0]
        except RuntimeError as error:  # a lost device is still listed
            info["memory_free"], info["error"] = None, str(error)
        devices.append(info)
    failures = refused + [dict(failure) for failure in core.adapter_failures()]
    known = {failure["reason"] for failure in failures}
    return devices, failures + [failure for failure in adapters.failures() if failure["reason"] not in known]
