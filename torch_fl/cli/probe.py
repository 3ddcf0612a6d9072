"""Tries one adapter in this process and tells how far it comes.

    python -m torch_fl.cli.probe      reads a spec as JSON from standard input

`diagnose` runs this file in a child process, since a broken adapter may crash or hang.

Each stage is announced before it starts, one JSON object a line, so that the parent knows what a crash interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["probe"]


def probe(spec: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    """Load the adapter of `spec`, open its devices and compute on each; `tell` receives what happens.

    Messages: {"doing": text}, {"adapter": …}, {"device": …} per device, {"failed": reason} or {"done": true}.
    """
    try:
        tell({"doing": "loading torch_fl"})
        import torch

        from torch_fl.cli.compiled import compiled

        core = compiled()
        tell({"doing": "loading the library"})
        tell({"adapter": core.open_adapter(spec["path"])})
        tell({"doing": "opening its devices"})
        core.set_discover(lambda: [])  # nothing but this adapter
        indices = core.add_adapter(spec)
        name = torch._C._get_privateuse1_backend_name()
        for index in indices:
            info = core.device_info(index)
            tell({"doing": f"computing on device {info.get('ordinal', index)}"})
            tell({"device": {**info, **_compute(torch, core, f"{name}:{index}", index)}})
        tell({"done": True})
    except Exception as error:  # whatever it is, it is the reason why this adapter does not work
        tell({"failed": str(error) or type(error).__name__})


def _compute(torch: Any, core: Any, device: str, index: int) -> dict[str, Any]:
    """[1, 2, 3] * 2, there and back; says which tier computed it, since the CPU can always do it."""
    before = _calls(core, index)
    answer = (torch.tensor([1.0, 2.0, 3.0], device=device) * 2).cpu().tolist()
    tiers = {tier for (tier, calls) in _calls(core, index).items() if calls > before.get(tier, 0)}
    computed = {"computed": answer, "right": answer == [2.0, 4.0, 6.0],
                "tier": next((tier for tier in ("cpu", "library", "decompose", "native") if tier in tiers), None)}
    if not computed["right"]:
        computed["reason"] = f"[1, 2, 3] * 2 gave {answer}"
    return computed


def _calls(core: Any, index: int) -> dict[str, int]:
    """Return the calls of mul by tier on the device, so far."""
    totals: dict[str, int] = {}
    for device, overload, tier, calls in core.counts():
        if device == index and overload.startswith("aten::mul"):
            totals[tier] = totals.get(tier, 0) + calls
    return totals


def main() -> int:
    """Probe the spec on standard input; answers go to the original standard output, an adapter's chatter does not."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(message: dict[str, Any]) -> None:
        print(json.dumps(message, default=str), file=stream, flush=True)

    probe(json.load(sys.stdin), tell)
    stream.flush()
    os._exit(0)  # an adapter that crashes when the process ends has answered all the same


if __name__ == "__main__":
    sys.exit(main())
