"""Which UniOps a profile makes native, with which types, and which it pins to another tier.

A profile names operators as its vendor thinks of them, several of which may stand on one UniOp; here every UniOp gets
exactly one answer. The entry that means it most precisely decides; two that mean it equally must agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_fl import _uniop_table as table
from torch_fl.profile.chip_profile import ChipProfile, Constraints, NativeOp
from torch_fl.profile.op_name import Precision, UnknownOp, resolve

__all__ = ["Conflict", "OpPlan", "aten_pins", "plan"]

# Data movement is the host's, not an operator that a vendor would think of listing: native unless pinned elsewhere.
ALWAYS_NATIVE = ("copy", "fill")


@dataclass(frozen=True)
class Conflict:
    """Two entries of native_ops that say different things of one UniOp."""

    uniop: str
    first: int  # positions in native_ops
    second: int


@dataclass
class OpPlan:
    """The answer for every UniOp that the profile speaks of.

    Attributes:
        only_listed: UniOps that are in neither `native` nor `pinned` are not native.
        native: UniOp -> its types; an empty list means all types of the chip.
        pinned: UniOp -> "decompose", "library" or "cpu".
        constraints: UniOp -> its own constraints, which stand instead of the chip's.
    """

    only_listed: bool = False
    native: dict[str, list[str]] = field(default_factory=dict)
    pinned: dict[str, str] = field(default_factory=dict)
    constraints: dict[str, Constraints] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)
    unknown: dict[int, str] = field(default_factory=dict)  # position in native_ops -> what is wrong with the name


def plan(profile: ChipProfile) -> OpPlan:
    """Resolve a profile's native_ops. Conflicts and unknown names are listed, not raised: the loader reports them."""
    result = OpPlan(only_listed=profile.native_ops is not None)
    if profile.native_ops is None:
        return result
    chosen: dict[str, tuple[Precision, int]] = {}
    for position, entry in enumerate(profile.native_ops):
        try:
            meant = resolve(entry.op)
        except UnknownOp as error:
            result.unknown[position] = str(error)
            continue
        for uniop, precision in meant.items():
            before = chosen.get(uniop)
            if before is None or precision > before[0]:
                chosen[uniop] = (precision, position)
            elif precision == before[0] and not _agree(profile.native_ops[before[1]], entry):
                result.conflicts.append(Conflict(uniop, before[1], position))
    for uniop, (_, position) in chosen.items():
        entry = profile.native_ops[position]
        if entry.compute == "native":
            result.native[uniop] = _types(profile, entry)
            if entry.constraints is not None:
                result.constraints[uniop] = entry.constraints
        else:
            result.pinned[uniop] = entry.compute
    for uniop in ALWAYS_NATIVE:
        if uniop not in result.pinned:
            result.native.setdefault(uniop, [])
    return result


def aten_pins(resolved: OpPlan) -> dict[str, str]:
    """Return ATen function -> tier for those that stand on UniOps pinned to one tier, all of them.

    Both spellings of a function are given (`aten::relu`, `aten::relu_`): PyTorch knows them as two operators.
    """
    uniops: dict[str, set[str]] = {}
    for overload, names in table.OVERLOADS.items():
        uniops.setdefault(overload.split(".")[0].removesuffix("_"), set()).update(names)
    pins: dict[str, str] = {}
    for function, names in uniops.items():
        tiers = {resolved.pinned.get(name) for name in names}
        tier = tiers.pop() if len(tiers) == 1 else None
        if tier is not None:
            pins[f"aten::{function}"] = pins[f"aten::{function}_"] = tier
    return pins


def _agree(a: NativeOp, b: NativeOp) -> bool:
    return a.compute == b.compute and (
        a.compute != "native"
        or (a.fp16, a.bf16, a.dtypes, a.constraints) == (b.fp16, b.bf16, b.dtypes, b.constraints))


def _types(profile: ChipProfile, entry: NativeOp) -> list[str]:
    refused = {name for name, has in (("float16", entry.fp16), ("bfloat16", entry.bf16)) if has is False}
    if not refused and entry.dtypes is None:
        return []
    return [name for name in profile.effective_dtypes()
            if name not in refused and (entry.dtypes is None or name in entry.dtypes)]
