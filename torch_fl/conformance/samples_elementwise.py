"""Samples of elementwise UniOps: unary, binary, ternary. Most are called by the name of their ATen overload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_fl import _uniop_table as table
from torch_fl.conformance.sample import Make, Sample

__all__ = ["elementwise"]

aten = torch.ops.aten
F = torch.nn.functional

# Where a function is defined, if not on (-3, 3).
DOMAINS: dict[str, tuple[float, float]] = {
    "rsqrt": (0.1, 3),
    "sqrt": (0, 3),
    "log": (0.1, 3),
    "log2": (0.1, 3),
    "log10": (0.1, 3),
    "log1p": (-0.9, 3),
    "asin": (-1, 1),
    "acos": (-1, 1),
    "atanh": (-0.9, 0.9),
    "acosh": (1, 3),
    "erfinv": (-0.9, 0.9),
    "lgamma": (0.5, 4),
    "digamma": (0.5, 4),
    "logit": (0, 1),
    "entr": (0, 3),
    "ndtri": (0.05, 0.95),
    "reciprocal": (0.5, 3),
    "pow_scalar": (0, 3),
    "pow": (0, 3),
    "xlogy": (0.1, 3),
    "xlog1py": (0.1, 3),
    "igamma": (0.5, 3),
    "igammac": (0.5, 3),
    "zeta": (1.5, 3),
    "logit_backward": (0.1, 0.9),
    "shift_left": (0, 5),
    "shift_right": (0, 5),
}
NO_ZERO = ("div", "div_trunc", "div_floor", "remainder", "fmod", "addcdiv")
# Special values are not compared where PyTorch itself does not promise one answer.
NOT_SPECIAL = (
    "sign",
    "gelu",
    "digamma",
    "zeta",
    "lgamma",
    "igamma",
    "igammac",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "sinc",
    "copy",
    "entr",
    "ndtri",
    "log_ndtr",
    "erfcx",
    "pow",
    "round_decimals",
    "fill",
    "heaviside",
    "nextafter",
)

# Calls that are not aten.<overload>(operands): by UniOp, for one, two or three operands.
CALLS: dict[str, Callable[..., Any]] = {
    "sign": torch.sgn,
    "gelu": lambda x: (F.gelu(x), F.gelu(x, approximate="tanh")),
    "softplus": lambda x: F.softplus(x, 1.5, 2.0),
    "elu": lambda x: F.elu(x, 0.75),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.125),
    "hardshrink": lambda x: F.hardshrink(x, 0.75),
    "softshrink": lambda x: F.softshrink(x, 0.75),
    "threshold": lambda x: F.threshold(x, 1, 5),
    "clamp": lambda x: (x.clamp(-1, 2), x.clamp(min=1), x.clamp(max=1)),
    "logit": lambda x: torch.logit(x, 0.125),
    "nan_to_num": lambda x: torch.nan_to_num(x, 1, 2, 3),
    "round_decimals": lambda x: torch.round(x, decimals=1),
    "pow_scalar": lambda x: (x**2, x**3),
    "log_sigmoid": F.logsigmoid,
    "fill": lambda x: x.clone().fill_(1),
    "add": lambda a, b: (a + b,) if a.dtype == torch.bool else (a + b, torch.add(a, b, alpha=2), a + 1),
    "sub": lambda a, b: (a - b, torch.sub(a, b, alpha=2), a - 1),
    "mul": lambda a, b: (a * b, a * 2 if a.dtype != torch.bool else a * b),
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "div_floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "xlogy": torch.xlogy,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "mse": lambda a, b: F.mse_loss(a, b, reduction="none"),
    "smooth_l1": lambda a, b: F.smooth_l1_loss(a, b, reduction="none", beta=0.5),
    "huber": lambda a, b: F.huber_loss(a, b, reduction="none", delta=0.5),
    "gelu_backward": lambda g, x: (aten.gelu_backward(g, x), aten.gelu_backward(g, x, approximate="tanh")),
    "threshold_backward": lambda g, x: aten.threshold_backward(g, x, 0.5),
    "elu_backward": lambda g, x: aten.elu_backward(g, 0.75, 1.0, 1.0, False, x),
    "leaky_relu_backward": lambda g, x: aten.leaky_relu_backward(g, x, 0.125, False),
    "hardtanh_backward": lambda g, x: aten.hardtanh_backward(g, x, -1, 2),
    "hardshrink_backward": lambda g, x: aten.hardshrink_backward(g, x, 0.75),
    "softplus_backward": lambda g, x: aten.softplus_backward(g, x, 1.5, 2.0),
    "logit_backward": lambda g, x: aten.logit_backward(g, x, 0.25),
    "log_sigmoid_backward": lambda g, x: aten.log_sigmoid_backward(g, x, torch.exp(-x.abs())),
    "lerp_scalar": lambda a, b: torch.lerp(a, b, 0.3),
    "where": torch.where,
    "addcmul": lambda a, b, c: torch.addcmul(a, b, c, value=2),
    "addcdiv": lambda a, b, c: torch.addcdiv(a, b, c, value=2),
    "lerp": torch.lerp,
    "clamp_tensor": lambda a, low, high: torch.clamp(a, low, high),
    "masked_fill": lambda a, mask: a.clone().masked_fill_(mask, 1),
}


def elementwise(uniop: str, make: Make, outs: tuple[torch.dtype, ...]) -> list[Sample]:
    """Return the samples of a unary, binary or ternary UniOp."""
    info = table.BY_NAME[uniop]
    if uniop == "copy":
        return [
            Sample(f"to {out}", lambda x, out=out: x.to(out), (make(33, 5),)) for out in outs if out != make.dtype
        ] + [Sample("transposed clone", lambda x: x.t().clone(memory_format=torch.contiguous_format), (make(33, 5),))]
    if uniop in ("isnan", "isinf") and not make.dtype.is_floating_point or uniop == "abs" and make.dtype.is_complex:
        return []  # PyTorch answers these without the UniOp
    call = CALLS.get(uniop) or getattr(aten, info.overloads[0].partition(".")[0])
    samples = [
        Sample("dense", call, _operands(uniop, make, info.category, ((3, 50),) * 3)),
        Sample("1000 elements", call, _operands(uniop, make, info.category, ((1000,),) * 3)),
    ]
    if info.category != "unary":
        samples.append(Sample("broadcast", call, _operands(uniop, make, info.category, ((4, 1, 6), (5, 1), (4, 5, 6)))))
    strided = tuple(x.t() for x in _operands(uniop, make, info.category, ((7, 9),) * 3))
    samples.append(Sample("transposed", call, strided))
    if (
        make.is_float
        and not make.dtype.is_complex
        and info.category != "ternary"
        and uniop not in NOT_SPECIAL
        and not uniop.endswith("_backward")
    ):
        values = make.special()
        if info.category == "binary":
            count = len(values)
            samples.append(Sample("special values", call, (values.repeat_interleave(count), values.repeat(count))))
        else:
            samples.append(Sample("special values", call, (values,)))
    return samples


def _operands(uniop: str, make: Make, category: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[torch.Tensor, ...]:
    low, high = DOMAINS.get(uniop, (-3, 3))
    if uniop == "where":
        return make(*shapes[0], dtype=torch.bool), make(*shapes[1]), make(*shapes[2])
    if uniop == "masked_fill":
        return make(*_joined(shapes)), make(*shapes[1], dtype=torch.bool)
    count = {"unary": 1, "binary": 2, "ternary": 3}[category]
    operands = [make(*shape, low=low, high=high) for shape in shapes[:count]]
    if uniop in NO_ZERO and make.dtype != torch.bool:
        operands[-1] = torch.where(operands[-1].abs() < 0.5, torch.ones((), dtype=make.dtype), operands[-1])
    if uniop == "clamp_tensor":
        operands[1:] = [torch.minimum(*operands[1:]), torch.maximum(*operands[1:])]
    return tuple(operands)


def _joined(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(shapes[0], shapes[1]))
