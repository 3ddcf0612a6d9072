"""Elementwise and small algebraic operators without a UniOp of their own."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_fl.ops.decompositions import register, resize_output


@register("aten::angle")
def angle(self: Tensor) -> Tensor:
    if self.is_complex():
        parts = torch.view_as_real(self)
        return torch.atan2(parts[..., 1], parts[..., 0])
    x = self if self.is_floating_point() else self.to(torch.get_default_dtype())
    return torch.where(torch.isnan(x), x, torch.where(x < 0, math.pi, 0.0).to(x.dtype))


@register("aten::frexp.Tensor")
def frexp(self: Tensor) -> tuple[Tensor, Tensor]:
    if self.dtype in (torch.float16, torch.bfloat16):
        mantissa, exponent = frexp(self.float())
        return mantissa.to(self.dtype), exponent
    layout = {torch.float32: (torch.int32, 23, 0xFF, 126), torch.float64: (torch.int64, 52, 0x7FF, 1022)}
    integer, bits, mask, bias = layout[self.dtype]
    tiny = self.abs() < torch.finfo(self.dtype).tiny
    raw = torch.where(tiny, self * 2.0 ** (bits + 1), self).contiguous().view(integer)
    exponent = ((raw >> bits) & mask) - bias
    mantissa = ((raw & ~(mask << bits)) | (bias << bits)).view(self.dtype)
    exponent = torch.where(tiny, exponent - (bits + 1), exponent)
    plain = (self == 0) | ~torch.isfinite(self)
    return torch.where(plain, self, mantissa), torch.where(plain, 0, exponent).to(torch.int32)


@register("aten::polygamma")
def polygamma(n: int, self: Tensor) -> Tensor:
    x = self if self.is_floating_point() else self.to(torch.get_default_dtype())
    if n < 0:
        raise RuntimeError("polygamma(n, x) does not support negative n.")
    if x.dtype in (torch.float16, torch.bfloat16):
        return polygamma(n, x.float()).to(x.dtype)
    if n == 0:
        return torch.digamma(x)
    if n == 1:
        return _trigamma(x)
    sign = 1.0 if n % 2 else -1.0
    return torch.special.zeta(float(n + 1), x) * (sign * math.gamma(n + 1.0))


def _trigamma(x: Tensor) -> Tensor:
    """Reflection below one half, then six steps of the recurrence and the asymptotic series."""
    low = x < 0.5
    reflected = torch.where(low, 1 - x, x)
    total = torch.zeros_like(x)
    for _ in range(6):
        total = total + 1 / (reflected * reflected)
        reflected = reflected + 1
    inverse = 1 / (reflected * reflected)
    series = 1 + 1 / (2 * reflected) + inverse * (1 / 6 - inverse * (1 / 30 - inverse * (1 / 42)))
    total = total + series / reflected
    sine = torch.sin(math.pi * x)
    return torch.where(low, (math.pi * math.pi) / (sine * sine) - total, total)


@register("aten::logspace.out")
def logspace_out(start: float, end: float, steps: int, base: float = 10.0, *, out: Tensor) -> Tensor:
    resize_output(out, torch.Size([steps]))
    kind = out.dtype
    if not (kind.is_floating_point or kind.is_complex):
        start, end, kind = int(start), int(end), torch.float64  # the ends are of the result's type
    return out.copy_(torch.pow(base, torch.linspace(start, end, steps, dtype=kind, device=out.device)))


@register("aten::pow.Scalar")
def pow_scalar(self: complex, exponent: Tensor) -> Tensor:
    kind = torch.result_type(self, exponent)
    if self == 1:
        return torch.ones_like(exponent, dtype=kind)
    return torch.pow(torch.full((), self, dtype=kind, device=exponent.device), exponent)


@register("aten::__lshift__.Scalar", "aten::__lshift__.Tensor")
def lshift(self: Tensor, other: Tensor | int) -> Tensor:
    return torch.bitwise_left_shift(self, other)


@register("aten::__rshift__.Scalar", "aten::__rshift__.Tensor")
def rshift(self: Tensor, other: Tensor | int) -> Tensor:
    return torch.bitwise_right_shift(self, other)


@register("aten::equal")
def equal(self: Tensor, other: Tensor) -> bool:
    if self.shape != other.shape:
        return False
    if self.numel() == 0:
        return True
    if other.device != self.device:  # the operator compares values wherever they are, as the CPU tier would
        other = other.to(self.device)
    return bool((self == other).all().item())


@register("aten::addbmm")
def addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if batch1.dim() != 3 or batch2.dim() != 3:
        raise RuntimeError("batch1 and batch2 must be 3D tensors")
    b, n, k = batch1.shape
    if batch2.shape[:2] != (b, k):
        raise RuntimeError(f"Incompatible matrix sizes for bmm ({n}x{k} and {batch2.size(1)}x{batch2.size(2)})")
    # The sum over the batch is one long inner dimension.
    wide = batch1.transpose(0, 1).reshape(n, b * k)
    return torch.addmm(self, wide, batch2.reshape(b * k, -1), beta=beta, alpha=alpha)


@register("aten::_logcumsumexp")
def logcumsumexp(self: Tensor, dim: int) -> Tensor:
    if self.dim() == 0 or self.numel() == 0:
        return self.clone()
    result, step, size = self, 1, self.size(dim)
    while step < size:  # each element takes in the span before it; spans double
        tail = torch.logaddexp(result.narrow(dim, step, size - step), result.narrow(dim, 0, size - step))
        result = torch.cat([result.narrow(dim, 0, step), tail], dim)
        step *= 2
    return result


@register("aten::_cdist_forward")
def cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    shape = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    rows, columns = x1.size(-2), x2.size(-2)
    if x1.size(-1) == 0 or 0 in (rows, columns) or 0 in shape:
        return x1.new_zeros(*shape, rows, columns)
    # In row blocks, so that the differences stay small enough for any memory.
    block = max(1, (1 << 24) // max(1, columns * x1.size(-1) * max(1, math.prod(shape))))
    parts = [
        torch.linalg.vector_norm(part.unsqueeze(-2) - x2.unsqueeze(-3), p, -1) for part in x1.split(block, dim=-2)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


@register("aten::_cdist_backward")
def cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    # With the batch of both operands; autograd sums it back to that of x1.
    return (_norm_slope(difference, cdist.unsqueeze(-1), p) * grad.unsqueeze(-1)).sum(-2)


def _norm_slope(difference: Tensor, norm: Tensor, p: float) -> Tensor:
    """d norm / d difference of the p-norm over the last dimension; 0 where the norm is 0."""
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return difference.sign()
    if p == math.inf:
        return difference.sign() * (difference.abs() == norm).to(difference.dtype)
    safe = torch.where(norm == 0, 1, norm)
    if p == 2:
        slope = difference / safe
    else:
        magnitude = difference.abs()
        slope = difference.sign() * torch.where(magnitude == 0, 0, magnitude.pow(p - 1)) / safe.pow(p - 1)
    return torch.where(norm == 0, 0, slope)


@register("aten::_pdist_forward")
def pdist(self: Tensor, p: float = 2) -> Tensor:
    first, second = torch.triu_indices(self.size(0), self.size(0), 1, device=self.device)
    if first.numel() == 0:
        return self.new_empty(0)
    if self.size(1) == 0:
        return self.new_zeros(first.numel())
    return torch.linalg.vector_norm(self.index_select(0, first) - self.index_select(0, second), p, -1)


@register("aten::_pdist_backward")
def pdist_backward(grad: Tensor, self: Tensor, p: float, pdist: Tensor) -> Tensor:
    first, second = torch.triu_indices(self.size(0), self.size(0), 1, device=self.device)
    slope = _norm_slope(self.index_select(0, first) - self.index_select(0, second), pdist.unsqueeze(1), p)
    part = slope * grad.unsqueeze(1)
    return torch.zeros_like(self).index_add_(0, first, part).index_add_(0, second, -part)
