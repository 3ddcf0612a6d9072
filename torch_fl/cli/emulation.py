"""What a profile would give before its chip exists: its adapter's library (another chip's, to emulate it) is opened
under this profile in this process only, PyTorch's operators are routed, and a function of the user's may run on it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_fl import _uniop_table as table
from torch_fl.cli.compiled import compiled
from torch_fl.cli.output import Refused, print_json, print_table

__all__ = ["coverage", "load_function", "open_profile", "show"]

TIERS = ("native", "decompose", "library", "cpu", "none")
_LABELS = {"decompose": "decomposed", "library": "by a library", "cpu": "on the CPU", "none": "without a route"}
_MOST_LETTERS = 90  # of a reason in the table


def open_profile(profile: Path) -> int:
    """Open the chip of a profile's file as the only one of this process; return its first device's index.

    Raises:
        FlError: the profile is not valid, or its adapter does not work here.
    """
    from torch_fl.profile import adapters

    if profile.suffix != ".json":
        raise Refused(f"{profile}: a profile is a *.json file; --device names a chip that is known here")
    spec = adapters.spec_for(str(profile))
    core = compiled()
    if not core.devices_opened():
        core.set_discover(lambda: [])
    try:
        return core.add_adapter(spec)[0]
    except (RuntimeError, IndexError) as error:
        raise Refused(f"adapter {spec['path']} does not work here with {profile}: {error}") from None


def load_function(name: str) -> Callable[..., Any]:
    """Return the function that "FILE.py:NAME" or "package.module:NAME" names.

    Raises:
        Refused: there is none.
    """
    place, _, function = name.rpartition(":")
    if not place:
        raise Refused(f"{name}: name a function, as in model.py:train; it is called with the device")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            module = importlib.util.module_from_spec(spec)
            sys.modules.setdefault(spec.name, module)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except (ImportError, OSError) as error:
        raise Refused(f"{name}: {error}") from None
    found = getattr(module, function, None)
    if not callable(found):
        raise Refused(f"{name}: {place} has no function {function}")
    return found


def coverage(index: int, category: str | None = None) -> list[dict[str, Any]]:
    """Return the tier of every operator that stands on UniOps, on one device: op, category, tier, why."""
    import torch

    from torch_fl import routing

    dtype = _computing_type(index)
    found = []
    for base, uniops in sorted(table.DIRECT.items()):
        kind = table.BY_NAME[uniops[0]].category
        if category not in (None, kind) or not hasattr(torch.ops.aten, base):
            continue
        told = routing.explain(f"aten::{base}", dtype, index)
        tier = told.tier or "none"
        found.append({"op": f"aten::{base}", "category": kind, "tier": tier, "why": told.reasons.get(tier, "no tier")})
    return found


def show(profile: Path, model: str | None, category: str | None, as_json: bool) -> None:
    """Print coverage under a profile and, with a model, where its operators ran."""
    from torch_fl.profile.loader import load

    function = load_function(model) if model else None
    index = open_profile(profile)
    core = compiled()
    info = core.device_info(index)
    entries = coverage(index, category)
    tiers = Counter(entry["tier"] for entry in entries)
    ran = _run(function, index) if function is not None else None
    answer: dict[str, Any] = {
        "chip": info["chip"], "profile": str(profile), "adapter": info["adapter"], "memory": info["total_memory"],
        "alignment": info["alignment"], "sync_primitive": load(profile).sync_primitive,
        "unified_memory": "host_visible" in info["capabilities"], "of": len(entries),
        "tiers": {tier: tiers[tier] for tier in TIERS if tiers[tier]}, "ops": entries,
    }
    if ran is not None:
        answer["model"] = ran
    if as_json:
        print_json(answer)
        return
    print_table(("operator", "category", "tier", "why"),
                [(e["op"], e["category"], e["tier"], _short(e["why"])) for e in entries])
    print(f"\n{info['chip']} on adapter {info['adapter']}: {info['total_memory'] >> 20} MiB, addresses of "
          f"{info['alignment']} bytes, waits by {answer['sync_primitive']}, host-visible memory: "
          f"{'yes' if answer['unified_memory'] else 'no'}")
    print(f"{len(entries)} operators: " + ", ".join(f"{count} {_LABELS.get(tier, tier)}"
                                                    for tier, count in answer["tiers"].items()))
    if "decompose" in answer["tiers"]:
        print("(decomposed: into other operators, which have tiers of their own; a decomposition may decline one call. "
              "--model tells what runs where)")
    if ran is not None:
        _print_run(model, ran)


def _short(why: str) -> str:
    return why if len(why) <= _MOST_LETTERS else f"{why[:_MOST_LETTERS - 1]}…"


def _computing_type(index: int) -> Any:
    """float32, or the first floating-point type that the device has a copy kernel for."""
    import torch

    core = compiled()
    for name in ("float32", "float16", "bfloat16", "float64"):
        if core.has_kernel(index, "copy", name, name):
            return getattr(torch, name)
    return torch.float32


def _run(function: Callable[..., Any], index: int) -> dict[str, Any]:
    import torch

    from torch_fl import routing

    device = torch.device(torch._C._get_privateuse1_backend_name(), index)
    with routing.track() as routes:
        function(device)
        torch.accelerator.synchronize(device)
    calls = {tier: routes.ops(tier) for tier in TIERS if tier != "none" and routes.ops(tier)}
    return {"routing": str(routes), "calls": calls, "bytes_moved": routes.bytes_moved.get(index, 0)}


def _print_run(model: str | None, ran: dict[str, Any]) -> None:
    rows = [(name, tier, calls) for tier, by_name in ran["calls"].items() for name, calls in by_name.items()]
    print_table(("operator", "tier", "calls"), rows, title=f"\n{model}")
    print(f"\n{ran['routing']}")
    print(f"copied between host and device for the CPU tier: {ran['bytes_moved']} bytes")
