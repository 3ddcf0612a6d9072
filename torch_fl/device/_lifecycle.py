"""Start and end of a process: how chips are discovered on first use, and a clean exit."""

from __future__ import annotations

import atexit
import logging
import time

from torch_fl import _C


def install() -> None:
    """Tell the core how to find chips, and arrange for a quiet exit. Opens nothing."""
    _C.set_discover(_discover)
    atexit.register(_quiesce)


def _discover() -> list[dict]:
    from torch_fl import _env, _logging, routing
    from torch_fl.profile.adapters import discover

    _logging.configure()
    if _env.get("TORCH_FL_VERBOSE") >= 2:
        _C.set_memory_log(logging.getLogger("torch_fl.memory").info)
    specs = discover()
    routing._apply_configuration()
    return specs


def _quiesce() -> None:
    """Let queued work and autograd's device threads end before the interpreter does.

    A device thread that still drops its last graph task takes the GIL during finalisation and aborts the process;
    it needs some milliseconds after backward() returned.
    """
    if not _C.devices_opened() or _C.in_bad_fork():
        return
    _C.set_memory_log(None)  # nothing of ours may ask for the interpreter while it ends
    _C.set_out_of_memory_observer(None)
    for index in range(_C.device_count()):
        try:
            _C.synchronize(index)
        except RuntimeError:
            pass  # a failure nobody waited for; the process is ending
    time.sleep(0.05)
