"""Interpolation, grid sampling and replication padding: what PyTorch's own decompositions leave out.

Interpolation is linear and separable: along each dimension it is a matrix of weights, and its gradient the transpose.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torch_fl.ops.decomposed.differentiated import gradients
from torch_fl.ops.decompositions import from_torch, register

Weights = Callable[..., Tensor]  # (input size, output size, align_corners, scale, device) -> [output, input]


def _ratio(size_in: int, size_out: int, align_corners: bool, scale: float | None) -> float:
    if align_corners:
        return (size_in - 1) / (size_out - 1) if size_out > 1 else 0.0
    return 1.0 / scale if scale is not None and scale > 0 else size_in / size_out


def _source(size_in: int, size_out: int, align_corners: bool, scale: float | None, device: torch.device) -> Tensor:
    place = torch.arange(size_out, dtype=torch.float32, device=device)
    ratio = _ratio(size_in, size_out, align_corners, scale)
    return place * ratio if align_corners else (place + 0.5) * ratio - 0.5


def _linear(size_in: int, size_out: int, align_corners: bool, scale: float | None, device: torch.device) -> Tensor:
    source = _source(size_in, size_out, align_corners, scale, device).clamp(min=0)
    low = source.floor().to(torch.int64).clamp(max=size_in - 1)
    part = (source - low).clamp(0, 1)
    weights = torch.zeros(size_out, size_in, device=device)
    weights.scatter_add_(1, low.unsqueeze(1), (1 - part).unsqueeze(1))
    return weights.scatter_add_(1, (low + 1).clamp(max=size_in - 1).unsqueeze(1), part.unsqueeze(1))


def _cubic_kernel(x: Tensor, a: float) -> Tensor:
    x = x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


def _cubic(size_in: int, size_out: int, align_corners: bool, scale: float | None, device: torch.device) -> Tensor:
    source = _source(size_in, size_out, align_corners, scale, device)
    low = source.floor()
    part = source - low
    weights = torch.zeros(size_out, size_in, device=device)
    for tap in (-1, 0, 1, 2):
        column = (low.to(torch.int64) + tap).clamp(0, size_in - 1).unsqueeze(1)
        weights.scatter_add_(1, column, _cubic_kernel(part - tap, -0.75).unsqueeze(1))
    return weights


def _antialiased(kernel: Callable[[Tensor], Tensor], support: float, size_in: int, size_out: int, align_corners: bool,
                 scale: float | None, device: torch.device) -> Tensor:  # fmt: skip
    ratio = _ratio(size_in, size_out, align_corners, scale)
    reach, shrink = (support * ratio, 1 / ratio) if ratio >= 1 else (support, 1.0)
    center = (torch.arange(size_out, dtype=torch.float32, device=device) + 0.5) * ratio
    first = (center - reach + 0.5).to(torch.int64).clamp(min=0).unsqueeze(1)
    end = (center + reach + 0.5).to(torch.int64).clamp(max=size_in).unsqueeze(1)
    column = torch.arange(size_in, device=device)
    weights = kernel((column - center.unsqueeze(1) + 0.5) * shrink)
    weights = torch.where((column >= first) & (column < end), weights, 0)
    return weights / weights.sum(1, keepdim=True)


_linear_aa = partial(_antialiased, lambda x: (1 - x.abs()).clamp(min=0), 1.0)
_cubic_aa = partial(_antialiased, lambda x: _cubic_kernel(x, -0.5), 2.0)


def _along(x: Tensor, dim: int, matrix: Tensor) -> Tensor:
    """x with its dimension `dim` multiplied by the matrix [x.size(dim), new size]."""
    if dim == x.dim() - 1:
        return x @ matrix
    return (x.movedim(dim, -1) @ matrix).movedim(-1, dim)


def _computing(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _backward(weights: Weights, grad: Tensor, input_size: Sequence[int], align_corners: bool,
              scales: Sequence[float | None]) -> Tensor:  # fmt: skip
    result = _computing(grad)
    for d, scale in enumerate(scales, start=2):
        matrix = weights(input_size[d], grad.size(d), align_corners, scale, grad.device).to(result.dtype)
        result = _along(result, d, matrix)
    return result.to(grad.dtype).contiguous()


def _forward(weights: Weights, x: Tensor, output_size: Sequence[int], align_corners: bool,
             scales: Sequence[float | None]) -> Tensor:  # fmt: skip
    result = _computing(x)
    for d, (size, scale) in enumerate(zip(output_size, scales, strict=True), start=2):
        matrix = weights(x.size(d), size, align_corners, scale, x.device).to(result.dtype)
        result = _along(result, d, matrix.t())
    return result.to(x.dtype).contiguous()


def _register_linear() -> None:
    """Backward operators (grad, output_size, input_size, align_corners, scale per dimension)."""

    def backward(weights: Weights) -> Callable[..., Tensor]:
        def run(grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], align_corners: bool,
                *scales: float | None) -> Tensor:  # fmt: skip
            missing = (None,) * (len(output_size) - len(scales))
            return _backward(weights, grad, input_size, align_corners, scales + missing)

        return run

    def forward(weights: Weights) -> Callable[..., Tensor]:
        def run(x: Tensor, output_size: Sequence[int], align_corners: bool, *scales: float | None) -> Tensor:
            if not x.is_floating_point():
                return NotImplemented  # PyTorch has a fixed-point form of its own for bytes
            return _forward(weights, x, output_size, align_corners, scales + (None,) * (len(output_size) - len(scales)))

        return run

    for name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
        register(f"aten::{name}_backward")(backward(_linear))
    register("aten::upsample_bicubic2d_backward")(backward(_cubic))
    for name, weights in (("_upsample_bilinear2d_aa", _linear_aa), ("_upsample_bicubic2d_aa", _cubic_aa)):
        register(f"aten::{name}")(forward(weights))
        register(f"aten::{name}_backward")(backward(weights))


def _register_nearest() -> None:
    def backward(shift: float) -> Callable[..., Tensor]:
        def run(grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], *scales: float | None) -> Tensor:
            result = _computing(grad)
            for d in range(2, grad.dim()):
                scale = scales[d - 2] if len(scales) > d - 2 else None
                place = torch.arange(grad.size(d), dtype=torch.float32, device=grad.device) + shift
                ratio = _ratio(input_size[d], grad.size(d), False, scale)
                source = (place * ratio).floor().to(torch.int64).clamp(max=input_size[d] - 1)
                shape = list(result.shape)
                shape[d] = input_size[d]
                result = result.new_zeros(shape).index_add_(d, source, result)
            return result.to(grad.dtype)

        return run

    for dims in ("1d", "2d", "3d"):
        register(f"aten::upsample_nearest{dims}_backward")(backward(0.0))
        register(f"aten::_upsample_nearest_exact{dims}_backward")(backward(0.5))


def _register_floating() -> None:
    """PyTorch's decompositions, but for bytes, which PyTorch interpolates in fixed point."""

    def only_floating(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            return function(x, *args, **kwargs) if x.is_floating_point() else NotImplemented

        return run

    for name in ("aten::upsample_bilinear2d", "aten::upsample_bicubic2d"):
        register(name)(only_floating(from_torch(name)))


_register_linear()
_register_nearest()
_register_floating()


@register("aten::replication_pad1d_backward", "aten::replication_pad2d_backward", "aten::replication_pad3d_backward")
def replication_pad_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
    result = grad_output
    for i in range(len(padding) // 2):
        dim, left, right = self.dim() - 1 - i, padding[2 * i], padding[2 * i + 1]
        size = self.size(dim)
        source = torch.arange(-left, size + right, device=self.device).clamp(0, size - 1)
        shape = list(result.shape)
        shape[dim] = size
        result = result.new_zeros(shape).index_add_(dim, source, result)
    return result


# Grid sampling: modes 0 linear, 1 nearest, 2 cubic; padding 0 zeros, 1 border, 2 reflection


def _reflect(x: Tensor, twice_low: int, twice_high: int) -> Tensor:
    if twice_low == twice_high:
        return torch.zeros_like(x)
    low, span = twice_low / 2, (twice_high - twice_low) / 2
    distance = (x - low).abs()
    rest = torch.fmod(distance, span)
    odd = torch.fmod((distance / span).floor(), 2) == 1
    return torch.where(odd, span - rest, rest) + low


def _pad(x: Tensor, size: int, padding: int, align_corners: bool) -> Tensor:
    if padding == 2:
        x = _reflect(x, 0, 2 * (size - 1)) if align_corners else _reflect(x, -1, 2 * size - 1)
    if padding == 0:
        return x
    # As PyTorch: no gradient at and beyond the border.
    return torch.where(x <= 0, 0.0, torch.where(x >= size - 1, float(size - 1), x))


def _lookup(input: Tensor, places: Sequence[Tensor]) -> Tensor:
    """input[n, c, places...] for places [N, points...] per dimension; zero outside."""
    sizes = input.shape[2:]
    flat, inside = torch.zeros_like(places[0], dtype=torch.int64), None
    for place, size in zip(places, sizes, strict=True):
        index = place.detach().nan_to_num(-1).clamp(-1, size).to(torch.int64)
        here = (index >= 0) & (index < size)
        inside = here if inside is None else inside & here
        flat = flat * size + index.clamp(0, size - 1)
    n, c = input.shape[:2]
    values = input.flatten(2).gather(2, flat.reshape(n, 1, -1).expand(n, c, -1)).view(n, c, *flat.shape[1:])
    return values * inside.unsqueeze(1).to(values.dtype)


def _grid_sample(input: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    sizes = input.shape[2:]
    points = []
    for d, size in enumerate(sizes):  # the grid's last dimension is x first
        x = grid[..., len(sizes) - 1 - d]
        points.append((x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2)
    if mode != 2:
        points = [_pad(x, size, padding, align_corners) for x, size in zip(points, sizes, strict=True)]
    if mode == 1:
        return _lookup(input, [x.round() for x in points])
    taps = (0, 1) if mode == 0 else (-1, 0, 1, 2)
    total = None
    for offsets in itertools.product(taps, repeat=len(sizes)):
        weight, places = None, []
        for x, size, offset in zip(points, sizes, offsets, strict=True):
            place = x.detach().floor() + offset
            distance = x - place
            factor = 1 - distance.abs() if mode == 0 else _cubic_kernel(distance, -0.75)
            weight = factor if weight is None else weight * factor
            places.append(_pad(place, size, padding, align_corners) if mode == 2 else place)
        part = _lookup(input, places) * weight.unsqueeze(1)
        total = part if total is None else total + part
    return total


@register("aten::grid_sampler_2d", "aten::grid_sampler_3d")
def grid_sampler(input: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    return _grid_sample(_computing(input), _computing(grid), mode, padding, align_corners).to(input.dtype)


@register("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward")
def grid_sampler_backward(grad_output: Tensor, input: Tensor, grid: Tensor, mode: int, padding: int,
                          align_corners: bool, output_mask: Sequence[bool]) -> tuple[Tensor | None, ...]:  # fmt: skip
    def sample(x: Tensor, g: Tensor) -> Tensor:
        return _grid_sample(x, g, mode, padding, align_corners)

    operands = (_computing(input), _computing(grid))
    found = gradients(sample, operands, (output_mask[0], True), _computing(grad_output))
    return tuple(None if g is None else g.to(input.dtype) for g in found)
