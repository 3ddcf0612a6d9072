"""Makes `device="fl"` known to PyTorch. `import torch` calls autoload() through the entry point group torch.backends.

Registration is idempotent and opens no chip. It never raises: an exception here would break `import torch` for
everybody. The reason is kept, `torch_fl` re-raises it on first use and `flagos-torch-fl diagnose` tells it.
"""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["autoload", "failure", "register"]

_lock = threading.RLock()
_done = False
_failure: Exception | None = None


def autoload() -> None:
    """Register the device; remember the reason if that fails."""
    register()


def failure() -> Exception | None:
    """Return why the device could not be registered, or None."""
    return _failure


def register() -> bool:
    """Register once; return whether the device is available to PyTorch."""
    global _done, _failure
    with _lock:
        if not _done:
            _done = True
            try:
                _register()
            except Exception as error:  # noqa: BLE001 - see the module's docstring
                _failure = error
        return _failure is None


def _register() -> None:
    import torch

    from torch_fl import _env
    from torch_fl._errors import FlError

    name = _env.get("TORCH_FL_DEVICE_NAME")
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", name):
        raise FlError(
            f"another plugin has named PyTorch's PrivateUse1 device '{taken}' in this process; only one can own it. "
            f"To use Torch-FL, set TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import torch_fl, or uninstall the other plugin"
        )
    _load_extension(torch)
    if taken != name:
        torch.utils.rename_privateuse1_backend(name)
    from torch_fl import device

    torch._register_device_module(name, device)
    torch.flagos_info = _info
    if not hasattr(torch.Tensor, f"is_{name}"):
        torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_packed_sequence=True,
                                                             for_storage=True)
    from torch_fl import distributed, integrations, routing
    from torch_fl.device import _lifecycle

    _lifecycle.install()
    routing._install()
    if _env.is_set("TORCH_FL_RACE_CHECK"):
        from torch_fl.device import race

        race._install()
    distributed._install(name)
    integrations.apply()


def _info() -> dict[str, Any]:
    """Return versions, devices, adapters that could not be opened, and the tiers that are on: torch_fl.info()."""
    from torch_fl.device._registration import info

    return info()


def _load_extension(torch: object) -> None:
    """Import torch_fl._C, turning an ABI mismatch into a sentence that says what to do."""
    from torch_fl._errors import FlError

    found = torch.__version__
    try:
        from torch_fl import _C
    except ImportError as error:
        raise FlError(
            f"torch_fl's extension cannot be loaded with torch {found}: {error}. It must be built for the installed "
            f"torch (2.13 or 2.14): pip install --force-reinstall --no-build-isolation flagos-torch-fl"
        ) from error
    built_for = _C.built_for_torch
    if _minor(built_for) != _minor(found):
        raise FlError(
            f"torch_fl was built for torch {built_for}, found torch {found}: rebuild it with "
            f"`pip install --force-reinstall --no-build-isolation flagos-torch-fl`, or install torch {built_for}"
        )


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split("+")[0].split(".")[:2])
