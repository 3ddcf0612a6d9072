"""Complex functions as real ones of the parts. Arithmetic, products and sums of complex tensors have kernels."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_fl.ops.decompositions import from_torch, register


def _complex_only(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register for complex operands; real ones go on to PyTorch's decomposition, if there is one."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            real = from_torch(name)

            @functools.wraps(function)
            def run(*args: Any, real: Callable[..., Any] | None = real, **kwargs: Any) -> Any:
                if any(isinstance(a, Tensor) and a.is_complex() for a in args):
                    return function(*args, **kwargs)
                return NotImplemented if real is None else real(*args, **kwargs)

            register(name)(run)
        return function

    return decorate


def _parts(z: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.view_as_real(z)
    return both[..., 0], both[..., 1]


def _times_i(z: Tensor) -> Tensor:
    re, im = _parts(z)
    return torch.complex(-im, re)


def _over_i(z: Tensor) -> Tensor:
    re, im = _parts(z)
    return torch.complex(im, -re)


@register("aten::conj_physical")
def conj_physical(z: Tensor) -> Tensor:
    if not z.is_complex():
        return z.clone()
    re, im = _parts(z)
    return torch.complex(re, -im)


@_complex_only("aten::abs")
def absolute(z: Tensor) -> Tensor:
    return torch.hypot(*_parts(z))


@_complex_only("aten::exp")
def exp(z: Tensor) -> Tensor:
    re, im = _parts(z)
    return torch.polar(torch.exp(re), im)


@_complex_only("aten::exp2")
def exp2(z: Tensor) -> Tensor:
    return exp(z * math.log(2))


@_complex_only("aten::expm1")
def expm1(z: Tensor) -> Tensor:
    re, im = _parts(z)
    half = torch.sin(im / 2)
    return torch.complex(torch.expm1(re) * torch.cos(im) - 2 * half * half, torch.exp(re) * torch.sin(im))


@_complex_only("aten::log")
def log(z: Tensor) -> Tensor:
    return torch.complex(torch.log(absolute(z)), torch.angle(z))


@_complex_only("aten::log2")
def log2(z: Tensor) -> Tensor:
    return log(z) / math.log(2)


@_complex_only("aten::log10")
def log10(z: Tensor) -> Tensor:
    return log(z) / math.log(10)


@_complex_only("aten::log1p")
def log1p(z: Tensor) -> Tensor:
    re, im = _parts(z)
    return torch.complex(torch.log1p(2 * re + re * re + im * im) / 2, torch.atan2(im, 1 + re))


@_complex_only("aten::sqrt")
def sqrt(z: Tensor) -> Tensor:
    re, im = _parts(z)
    root = torch.sqrt((absolute(z) + re.abs()) / 2)
    other = torch.where(root == 0, 0, im / (2 * root))
    return torch.complex(torch.where(re >= 0, root, other.abs()), torch.where(re >= 0, other, torch.copysign(root, im)))


@_complex_only("aten::rsqrt")
def rsqrt(z: Tensor) -> Tensor:
    return torch.reciprocal(sqrt(z))


@_complex_only("aten::sigmoid")
def sigmoid(z: Tensor) -> Tensor:
    return torch.reciprocal(exp(-z) + 1)


@_complex_only("aten::silu")
def silu(z: Tensor) -> Tensor:
    return z * sigmoid(z)


@_complex_only("aten::sigmoid_backward")
def sigmoid_backward(grad: Tensor, y: Tensor) -> Tensor:
    return grad * conj_physical(y * (1 - y))


@_complex_only("aten::tanh_backward")
def tanh_backward(grad: Tensor, y: Tensor) -> Tensor:
    return grad * conj_physical(1 - y * y)


@_complex_only("aten::silu_backward")
def silu_backward(grad: Tensor, z: Tensor) -> Tensor:
    s = sigmoid(z)
    return grad * conj_physical(s * (1 + z * (1 - s)))


@_complex_only("aten::sin")
def sin(z: Tensor) -> Tensor:
    re, im = _parts(z)
    return torch.complex(torch.sin(re) * torch.cosh(im), torch.cos(re) * torch.sinh(im))


@_complex_only("aten::cos")
def cos(z: Tensor) -> Tensor:
    re, im = _parts(z)
    return torch.complex(torch.cos(re) * torch.cosh(im), -torch.sin(re) * torch.sinh(im))


@_complex_only("aten::sinh")
def sinh(z: Tensor) -> Tensor:
    re, im = _parts(z)
    return torch.complex(torch.sinh(re) * torch.cos(im), torch.cosh(re) * torch.sin(im))


@_complex_only("aten::cosh")
def cosh(z: Tensor) -> Tensor:
    re, im = _parts(z)
    return torch.complex(torch.cosh(re) * torch.cos(im), torch.sinh(re) * torch.sin(im))


@_complex_only("aten::tanh")
def tanh(z: Tensor) -> Tensor:
    re, im = _parts(z)
    re = re.clamp(-20, 20)  # tanh is 1 there; cosh would overflow
    below = torch.cosh(2 * re) + torch.cos(2 * im)
    return torch.complex(torch.sinh(2 * re) / below, torch.sin(2 * im) / below)


@_complex_only("aten::tan")
def tan(z: Tensor) -> Tensor:
    return _over_i(tanh(_times_i(z)))


@_complex_only("aten::asinh")
def asinh(z: Tensor) -> Tensor:
    return log(z + sqrt(z * z + 1))


@_complex_only("aten::asin")
def asin(z: Tensor) -> Tensor:
    return _over_i(log(_times_i(z) + sqrt(1 - z * z)))


@_complex_only("aten::acos")
def acos(z: Tensor) -> Tensor:
    return math.pi / 2 - asin(z)


@_complex_only("aten::acosh")
def acosh(z: Tensor) -> Tensor:
    return log(z + sqrt(z + 1) * sqrt(z - 1))


@_complex_only("aten::atanh")
def atanh(z: Tensor) -> Tensor:
    return (log1p(z) - log1p(-z)) / 2


@_complex_only("aten::atan")
def atan(z: Tensor) -> Tensor:
    return _over_i(atanh(_times_i(z)))


@_complex_only("aten::pow.Tensor_Scalar")
def pow_tensor_scalar(z: Tensor, exponent: complex) -> Tensor:
    if exponent == 2:
        return z * z
    if exponent == 1:
        return z.clone()
    if exponent == 0:
        return torch.ones_like(z)
    return _power(z, log(z) * exponent)


@_complex_only("aten::pow.Tensor_Tensor")
def pow_tensor_tensor(base: Tensor, exponent: Tensor) -> Tensor:
    kind = torch.result_type(base, exponent)
    return _power(base.to(kind), log(base.to(kind)) * exponent)


def _power(base: Tensor, logarithm: Tensor) -> Tensor:
    zero = (base == 0) & (torch.view_as_real(logarithm)[..., 0] == float("-inf"))
    return torch.where(zero, torch.zeros_like(logarithm), exp(logarithm))


@_complex_only("aten::vdot")
def vdot(self: Tensor, other: Tensor) -> Tensor:
    return torch.dot(conj_physical(self.resolve_conj()), other)


@_complex_only("aten::linalg_vector_norm")
def vector_norm(z: Tensor, ord: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, *,
                dtype: torch.dtype | None = None) -> Tensor:  # fmt: skip
    z = z if dtype is None else z.to(dtype)
    return torch.linalg.vector_norm(absolute(z.resolve_conj()), ord, dim, keepdim)


@_complex_only("aten::lerp.Scalar", "aten::lerp.Tensor")
def lerp(start: Tensor, end: Tensor, weight: Tensor | complex) -> Tensor:
    return start + weight * (end - start)
