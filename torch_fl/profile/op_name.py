"""What an operator name in a profile, or on the command line, stands for: `aten::conv2d` -> UniOps.

A name is an ATen function (`aten::gelu`, any of its overloads, with the UniOps of its gradient), one overload
(`aten::pow.Tensor_Scalar`), a UniOp (`gelu`, that one alone), or `*`. Tables: torch_fl/_uniop_table.py.
"""

from __future__ import annotations

from enum import IntEnum

from torch_fl import _uniop_table as table

__all__ = ["Precision", "UnknownOp", "known_names", "resolve"]


class Precision(IntEnum):
    """How precisely a name means a UniOp; where two entries of a profile meet, the more precise one decides."""

    WILDCARD = 0  # *
    COMPOSITE = 1  # aten::linear, for addmm
    GRADIENT = 2  # aten::gelu, for gelu_backward
    FUNCTION = 3  # aten::addmm
    OVERLOAD = 4  # aten::pow.Tensor_Scalar
    UNIOP = 5  # addmm


# Overload names that say nothing about which of a function's UniOps is meant.
_COMMON_OVERLOADS = ("default", "Tensor", "Scalar", "out", "int", "dim", "self", "input")


class UnknownOp(LookupError):
    """The name stands for nothing; the text says what is close to it."""


def resolve(name: str) -> dict[str, Precision]:
    """Return the UniOps that a name stands for. Views stand for none.

    >>> sorted(resolve("aten::gelu"))
    ['gelu', 'gelu_backward']
    >>> sorted(resolve("gelu"))
    ['gelu']

    Raises:
        UnknownOp: no UniOp or ATen function is known by this name.
    """
    if name == "*":
        return {op.name: Precision.WILDCARD for op in table.UNIOPS}
    prefix, _, function = name.rpartition("::")
    if prefix not in ("", "aten"):
        raise UnknownOp(f"unknown namespace {prefix}::; operators are aten:: functions or UniOps")
    if not prefix and function in table.BY_NAME:
        return {function: Precision.UNIOP}
    base, _, overload = function.partition(".")
    if overload and (exact := _overload(base, overload)) is not None:
        return exact
    if not base.endswith("__"):
        base = base.removesuffix("_")
    if base in table.VIEWS:
        return {}
    if base in table.DIRECT:
        forward, precision = table.DIRECT[base], Precision.FUNCTION
    elif base in table.COMPOSITES:
        forward, precision = table.COMPOSITES[base], Precision.COMPOSITE
    else:
        raise UnknownOp(f"unknown operator{_close_to(base)}")
    gradient = min(precision, Precision.GRADIENT)
    return {**dict.fromkeys(table.BACKWARD.get(base, ()), gradient), **dict.fromkeys(forward, precision)}


def _overload(base: str, overload: str) -> dict[str, Precision] | None:
    for spelling in (f"{base}.{overload}", f"{base}.{overload}_out"):
        if spelling in table.OVERLOADS:
            return dict.fromkeys(table.OVERLOADS[spelling], Precision.OVERLOAD)
    if overload in _COMMON_OVERLOADS or (base.removesuffix("_") in table.COMPOSITES):
        return None
    known = sorted(name for name in table.OVERLOADS if name.split(".")[0] in (base, base + "_"))
    if not known:
        return None
    raise UnknownOp(f"unknown overload; without one, all of aten::{base} is meant. Known: {', '.join(known)}")


def known_names() -> list[str]:
    """Return every name that `resolve` knows, but overloads: for editors and suggestions."""
    functions = {*table.DIRECT, *table.COMPOSITES, *table.VIEWS}
    return [*(f"aten::{name}" for name in sorted(functions)), *(op.name for op in table.UNIOPS)]


def _close_to(base: str) -> str:
    import difflib

    names = [*table.DIRECT, *table.COMPOSITES, *table.VIEWS, *table.BY_NAME]
    close = list(dict.fromkeys(difflib.get_close_matches(base, names, n=3, cutoff=0.6)))
    shown = " or ".join(f"aten::{name}" if name not in table.BY_NAME else name for name in close)
    return f"; did you mean {shown}?" if close else "; `flagos-torch-fl ops` lists them"
