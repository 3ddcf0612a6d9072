"""Discrete Fourier transforms as matrix products: Cooley-Tukey steps of up to 64, Bluestein's chirps for large primes.

Values travel as (real, imaginary) pairs of real tensors, the transformed dimension last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_fl.ops.decompositions import register

Pair = tuple[Tensor, Tensor]

_LONGEST_STEP = 64  # one product does a transform of this size
_LONGEST_PRIME = 256  # above it, a prime size goes through chirps


def _multiply(a: Pair, b: Pair) -> Pair:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _roots(exponents: Tensor, n: int, sign: int, dtype: torch.dtype) -> Pair:
    """exp(sign * 2 pi i * exponent / n); exponents are integers, reduced before they lose precision."""
    angle = torch.remainder(exponents, n).to(dtype) * (sign * 2 * math.pi / n)
    return torch.cos(angle), torch.sin(angle)


def _matrix(n: int, sign: int, like: Tensor) -> Pair:
    place = torch.arange(n, device=like.device)
    return _roots(place.unsqueeze(1) * place, n, sign, like.dtype)


def _times_matrix(x: Pair, matrix: Pair) -> Pair:
    return x[0] @ matrix[0] - x[1] @ matrix[1], x[0] @ matrix[1] + x[1] @ matrix[0]


def _step_of(n: int) -> int:
    """The largest divisor one product takes; 1 if there is none."""
    return next((d for d in range(min(_LONGEST_STEP, n), 1, -1) if n % d == 0), 1)


def _transform(x: Pair, sign: int) -> Pair:
    n = x[0].size(-1)
    first = _step_of(n)
    if n <= _LONGEST_STEP or (first == 1 and n <= _LONGEST_PRIME):
        return _times_matrix(x, _matrix(n, sign, x[0]))
    if first == 1:
        return _chirp_transform(x, sign)
    rest, shape = n // first, x[0].shape
    # j = rest * j1 + j2, k = k1 + first * k2: transform over j1, turn by j2 * k1, transform over j2.
    columns = tuple(part.reshape(*shape[:-1], first, rest).transpose(-1, -2) for part in x)
    inner = _times_matrix(columns, _matrix(first, sign, x[0]))
    j2 = torch.arange(rest, device=x[0].device).unsqueeze(1)
    turned = _multiply(inner, _roots(j2 * torch.arange(first, device=x[0].device), n, sign, x[0].dtype))
    outer = _transform(tuple(part.transpose(-1, -2) for part in turned), sign)
    return tuple(part.transpose(-1, -2).reshape(shape) for part in outer)


def _chirp_transform(x: Pair, sign: int) -> Pair:
    """A transform of any size as a convolution of the next power of two."""
    n = x[0].size(-1)
    size = 1 << (2 * n - 2).bit_length()
    place = torch.arange(n, device=x[0].device)
    chirp = _roots(place * place, 2 * n, sign, x[0].dtype)
    moved = _padded(_multiply(x, chirp), size)
    gap = size - 2 * n + 1
    back = tuple(torch.cat([c, c.new_zeros(gap), c[1:].flip(0)]) for c in (chirp[0], -chirp[1]))
    product = _multiply(_transform(moved, -1), _transform(back, -1))
    result = _transform(product, 1)
    return _multiply(tuple(part[..., :n] / size for part in result), chirp)


def _padded(x: Pair, size: int) -> Pair:
    return tuple(torch.nn.functional.pad(part, (0, size - part.size(-1))) for part in x)


def _along(x: Pair, dim: int, sign: int) -> Pair:
    moved = tuple(part.movedim(dim, -1) for part in x)
    return tuple(part.movedim(-1, dim) for part in _transform(moved, sign))


def _scale(sizes: Sequence[int], normalization: int) -> float:
    total = math.prod(sizes)
    return {0: 1.0, 1: 1 / math.sqrt(total), 2: 1 / total}[normalization]


def _supported(x: Tensor) -> None:
    if x.dtype not in (torch.float32, torch.float64, torch.complex64, torch.complex128):
        raise NotImplementedError(f"Fourier transform of {x.dtype}")


def _pair(x: Tensor) -> Pair:
    both = torch.view_as_real(x.resolve_conj())
    return both[..., 0], both[..., 1]


def _join(x: Pair, scale: float) -> Tensor:
    return torch.complex((x[0] * scale).contiguous(), (x[1] * scale).contiguous())


@register("aten::_fft_c2c")
def fft_c2c(self: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Tensor:
    _supported(self)
    if not dim:
        return self.clone()
    x = _pair(self)
    for d in dim:
        x = _along(x, d, -1 if forward else 1)
    return _join(x, _scale([self.size(d) for d in dim], normalization))


@register("aten::_fft_r2c")
def fft_r2c(self: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    _supported(self)
    last = dim[-1]
    x = _along((self, torch.zeros_like(self)), last, -1)
    if onesided:
        x = tuple(part.narrow(last, 0, self.size(last) // 2 + 1) for part in x)
    for d in dim[:-1]:
        x = _along(x, d, -1)
    return _join(x, _scale([self.size(d) for d in dim], normalization))


@register("aten::_fft_c2r")
def fft_c2r(self: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    _supported(self)
    x, last = _pair(self), dim[-1]
    for d in dim[:-1]:
        x = _along(x, d, 1)
    half = last_dim_size // 2 + 1
    x = tuple(part.narrow(last, 0, half) for part in x)
    # The other half mirrors the first: without the mean and, for an even size, without the highest frequency.
    mirrored = tuple(part.narrow(last, 1, last_dim_size - half).flip(last) for part in x)
    real = torch.cat([x[0], mirrored[0]], last)
    imaginary = torch.cat([x[1], -mirrored[1]], last)
    sizes = [self.size(d) for d in dim[:-1]] + [last_dim_size]
    return (_along((real, imaginary), last, 1)[0] * _scale(sizes, normalization)).contiguous()
