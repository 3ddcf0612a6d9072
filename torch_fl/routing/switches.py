"""Switching tiers off, pinning operators, forbidding the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torch_fl import _C
from torch_fl._uniop_table import UNIOPS
from torch_fl.routing.counting import TIERS


def _check(tier: str) -> None:
    if tier not in TIERS:
        raise ValueError(f"unknown tier {tier!r}; there are {', '.join(TIERS)}")


def enable(tier: str, on: bool = True) -> None:
    """Switch a tier on or off, for the whole process.

    Raises:
        ValueError: not one of native, decompose, library, cpu.
    """
    _check(tier)
    _C.set_tier_enabled(tier, on)
    _C.reset_routes()


@contextmanager
def only(*tiers: str) -> Iterator[None]:
    """Leave only these tiers on for a scope, for the whole process; used to compare tiers with each other."""
    for tier in tiers:
        _check(tier)
    before = {tier: _C.tier_enabled(tier) for tier in TIERS}
    try:
        for tier in TIERS:
            enable(tier, tier in tiers)
        yield
    finally:
        for tier, on in before.items():
            enable(tier, on)


def pin(op: str, tier: str, device: int | None = None) -> None:
    """Let a tier, or a later one, run an operator ("aten::gelu" or "aten::add.Tensor") on one device or on all.

    Pinning to a tier other than native also takes the operator's UniOps out of the native tier.

    Raises:
        ValueError: unknown tier or operator.
    """
    _check(tier)
    from torch_fl.profile import op_name

    name = op if op.startswith("aten::") else f"aten::{op}"
    try:
        uniops = op_name.resolve(name)
    except op_name.UnknownOp:
        uniops = {}
    if not uniops and not hasattr(torch.ops.aten, name.removeprefix("aten::").partition(".")[0]):
        raise ValueError(f"PyTorch has no operator {name}")
    devices = range(_C.device_count()) if device is None else (device,)
    for index in devices:
        for uniop in uniops:
            _C.set_uniop_enabled(index, uniop, tier == "native")
        _C.pin(index, name, tier)


def unpin_all() -> None:
    """Forget all pins."""
    _C.unpin_all()
    for index in range(_C.device_count()):
        for uniop in UNIOPS:
            _C.set_uniop_enabled(index, uniop.name, True)


@contextmanager
def no_cpu_fallback() -> Iterator[None]:
    """Raise NotImplementedError where this thread's operators would run on the CPU."""
    _C.forbid_cpu(1)
    try:
        yield
    finally:
        _C.forbid_cpu(-1)
