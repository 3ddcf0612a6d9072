"""Why an operator takes the tier it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_fl import _C
from torch_fl._uniop_table import BY_NAME, DIRECT
from torch_fl.device._context import _index
from torch_fl.profile import op_name


@dataclass(frozen=True)
class Explanation:
    """The tiers of one operator on one device.

    Attributes:
        op: as asked, with its namespace.
        tier: the first tier that can serve it, or None.
        reasons: tier -> what was found there, in the order tiers are tried.
        uniops: UniOp -> whether the chip has a kernel for these dtypes.
    """

    op: str
    device: int
    dtypes: tuple[str, ...]
    tier: str | None
    reasons: dict[str, str]
    uniops: dict[str, bool]

    def __str__(self) -> str:
        info = _C.device_info(self.device)
        where = f"fl:{self.device} ({info['chip']})"
        lines = [f"{self.op} ({', '.join(self.dtypes)}) on {where}: {self.tier or 'no route'}"]
        lines += [f"  {'*' if tier == self.tier else ' '} {tier:10}{reason}" for tier, reason in self.reasons.items()]
        return "\n".join(lines)


def explain(op: str, dtypes: Sequence[torch.dtype] | torch.dtype = (torch.float32,), device: Any = None) -> Explanation:
    """Explain the route of an operator: "aten::gelu", "gelu" or one overload, "aten::add.Tensor".

    The answer is for operands of these dtypes in general; a kernel may still decline one call for its shape. A kernel
    of the user's (torch_fl.kernel) comes first and is told as the library tier, with its function, file and line.

    Raises:
        ValueError: PyTorch has no such operator.
    """
    index = _index(device)
    name = op if "::" in op else f"aten::{op}"
    types = (dtypes,) if isinstance(dtypes, torch.dtype) else tuple(dtypes)
    names = tuple(str(t).removeprefix("torch.") for t in types)
    namespace, _, base = name.partition(".")[0].partition("::")
    if not hasattr(getattr(torch.ops, namespace), base):
        raise ValueError(f"PyTorch has no operator {name}")
    uniops = _kernels(name, index, names[0])
    composed = bool(uniops) and base not in DIRECT
    forward = {u: has for u, has in uniops.items() if not u.endswith("_backward") or base.endswith("_backward")}
    reasons = {
        "native": f"composed of others; {_native_reason(forward)}" if composed else _native_reason(forward),
        "decompose": _decompose_reason(name, base, bool(uniops)),
        "library": _library_reason(name),
        "cpu": "on" if _C.tier_enabled("cpu") else "switched off",
    }
    available = {
        "native": not composed and bool(forward) and any(forward.values()) and _C.tier_enabled("native"),
        "decompose": not reasons["decompose"].startswith(("none", "switched")),
        "library": not reasons["library"].startswith(("none", "switched")),
        "cpu": _C.tier_enabled("cpu"),
    }
    if (own := _user_kernels(name, index)) is not None and _C.tier_enabled("library"):
        reasons = {"library": own, **{t: reason for t, reason in reasons.items() if t != "library"}}
        return Explanation(name, index, names, "library", reasons, uniops)
    tier = next((t for t, ok in available.items() if ok), None)
    return Explanation(name, index, names, tier, reasons, uniops)


def _kernels(name: str, index: int, dtype: str) -> dict[str, bool]:
    try:
        uniops = op_name.resolve(name)
    except op_name.UnknownOp:
        return {}
    found = {}
    for uniop in uniops:
        out = {"bool": "bool", "int64": "int64"}.get(BY_NAME[uniop].out or "", dtype)
        found[uniop] = _C.has_kernel(index, uniop, dtype, out)
    return found


def _native_reason(uniops: dict[str, bool]) -> str:
    if not uniops:
        return "no UniOp stands for it"
    have = [u for u, has in uniops.items() if has]
    missing = [u for u, has in uniops.items() if not has]
    parts = []
    if have:
        parts.append(f"kernel {', '.join(have)}")
    if missing:
        parts.append(f"no kernel {', '.join(missing)} for this dtype, or not declared by the profile")
    return "; ".join(parts)


def _overloads(name: str, base: str) -> list[str]:
    if "." in name:
        return [name]
    namespace = name.partition("::")[0]
    packet = getattr(getattr(torch.ops, namespace), base)
    return [name if o == "default" else f"{name}.{o}" for o in packet.overloads()]


def _user_kernels(name: str, index: int) -> str | None:
    from torch_fl.ops.kernel import active

    base = name.partition(".")[0].partition("::")[2]
    found = {o: own for o in _overloads(name, base) if (own := active(o, index)) is not None}
    where = {own.where: None for own in found.values()}
    return f"your kernel {', '.join(where)} for {', '.join(found)}, before the chip's own" if found else None


def _decompose_reason(name: str, base: str, has_uniops: bool) -> str:
    if not _C.tier_enabled("decompose"):
        return "switched off"
    from torch_fl.ops import new_operator

    if (new := new_operator.defined(name.partition(".")[0])) is not None:
        return "the decomposition that was given with it" if "decomposition" in new.parts else "none"
    overloads = _overloads(name, base)
    if any(_dispatches(o, "CompositeImplicitAutograd") for o in overloads):
        return "ATen composes it of other operators"
    if not has_uniops and any(_dispatches(o, "CompositeExplicitAutograd") for o in overloads):
        return "ATen composes it of other operators"
    from torch_fl.ops.decompositions import is_last_resort
    from torch_fl.routing import _resolve, out_variants

    # An out= overload as the functional one is no decomposition of its own: that one's counts.
    functional = ((o, out_variants._functional(o)[0]) for o in overloads)
    overloads = list(dict.fromkeys(o if f is None else f.name() for o, f in functional))
    found = {o: function for o in overloads if (function := _resolve("decompose", o)) is not None}
    if found and _C.tier_enabled("cpu") and all(is_last_resort(f) for f in found.values()):
        return f"none while the CPU tier, which is faster, is on ({', '.join(found)})"
    return f"decomposition of {', '.join(found)}" if found else "none"


def _dispatches(overload: str, key: str) -> bool:
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(overload, key)
    except RuntimeError:  # a TorchScript-only overload, such as aten::add.t
        return False


def _library_reason(name: str) -> str:
    if not _C.tier_enabled("library"):
        return "switched off"
    from torch_fl.ops import libraries

    if not libraries.providers():
        return "none installed"
    base = name.partition(".")[0].partition("::")[2]
    return "provider has it" if any(libraries.resolve(o) for o in _overloads(name, base)) else "none has it"
