"""The patches of other software that cannot be avoided: each listed here, with its reason, and switchable.

TORCH_FL_INTEGRATIONS=none switches all off, a list of names leaves only those on. A patch that does not fit what it
finds is skipped with its reason, never an error: report() tells of each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["PATCHES", "Patch", "apply", "report"]

_log = logging.getLogger("torch_fl.integrations")


@dataclass(frozen=True)
class Patch:
    """One change to software that is not ours.

    Attributes:
        name: what TORCH_FL_INTEGRATIONS calls it.
        target: what is changed.
        reason: why nothing else serves.
        install: does it; returns None, or why it does not fit what is installed.
    """

    name: str
    target: str
    reason: str
    install: Callable[[], str | None]


def _unnamed_groups() -> str | None:
    from torch_fl.integrations import unnamed_groups

    return unnamed_groups.install()


PATCHES = (
    Patch("unnamed_groups", "torch.distributed.distributed_c10d._register_process_group (torch 2.13, 2.14)",
          "init_process_group() without a backend name declares gloo the default of a group that has none, and torch "
          "offers an out-of-tree backend no hook at that point", _unnamed_groups),
)  # fmt: skip
_state: dict[str, str] = {}


def apply() -> None:
    """Apply the patches that are on; called once by _autoload."""
    from torch_fl import _env

    chosen = _env.get("TORCH_FL_INTEGRATIONS")
    for patch in PATCHES:
        if chosen is not None and patch.name not in chosen:
            _state[patch.name] = "switched off by TORCH_FL_INTEGRATIONS"
            continue
        skipped = patch.install()
        _state[patch.name] = f"skipped: {skipped}" if skipped else "applied"
        if skipped:
            _log.info("patch %s is skipped: %s", patch.name, skipped)


def report() -> dict[str, str]:
    """Return patch name -> "applied", "skipped: <reason>" or "switched off …"."""
    return dict(_state)
