"""Pooling with windows of unequal size: adaptive and fractional maximum, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_fl.ops.decompositions import register


def _pool(self: Tensor, windows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Maximum over windows: one [planes or 1, outputs, elements] of positions per dimension; repeats do no harm."""
    dims = len(windows)
    sizes = self.shape[-dims:]
    planes = self.reshape(math.prod(self.shape[:-dims]), math.prod(sizes))
    place = torch.zeros((), dtype=torch.int64, device=self.device)
    for d, (window, size) in enumerate(zip(windows, sizes, strict=True)):
        shape = [window.size(0)] + [1] * (2 * dims)
        shape[1 + d], shape[1 + dims + d] = window.size(1), window.size(2)
        place = place * size + window.view(shape)
    outputs = place.shape[1 : 1 + dims]
    elements = math.prod(place.shape[1 + dims :])
    place = place.reshape(place.size(0), outputs.numel(), elements).expand(planes.size(0), -1, -1)
    values = planes.gather(1, place.reshape(planes.size(0), outputs.numel() * elements)).view(place.shape)
    best, element = values.max(2)
    indices = place.gather(2, element.unsqueeze(2)).squeeze(2)
    shape = (*self.shape[:-dims], *outputs)
    return best.view(shape), indices.view(shape)


def _scatter(grad_output: Tensor, self: Tensor, indices: Tensor, dims: int) -> Tensor:
    shape = self.shape
    planes = math.prod(shape[:-dims])
    grad = grad_output.new_zeros(planes, math.prod(shape[-dims:]))
    flat = (planes, math.prod(indices.shape[-dims:]))
    return grad.scatter_add_(1, indices.reshape(flat), grad_output.reshape(flat)).view(shape)


def _adaptive_windows(size: int, outputs: int, device: torch.device) -> Tensor:
    place = torch.arange(outputs, device=device)
    start = torch.div(place * size, outputs, rounding_mode="floor")
    end = torch.div((place + 1) * size + outputs - 1, outputs, rounding_mode="floor")
    longest = max(-(-(i + 1) * size // outputs) - i * size // outputs for i in range(outputs))
    reach = torch.arange(longest, device=device)
    return torch.minimum(start.unsqueeze(1) + reach, end.unsqueeze(1) - 1).unsqueeze(0)


@register("aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(self: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    dims = len(output_size)
    if self.numel() == 0 or 0 in output_size:
        raise NotImplementedError("adaptive_max_pool of nothing")
    sizes = self.shape[-dims:]
    return _pool(self, [_adaptive_windows(n, o, self.device) for n, o in zip(sizes, output_size, strict=True)])


@register("aten::adaptive_max_pool2d_backward")
def adaptive_max_pool2d_backward(grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
    return _scatter(grad_output, self, indices, 2)


@register("aten::adaptive_max_pool3d_backward")
def adaptive_max_pool3d_backward(grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
    return _scatter(grad_output, self, indices, 3)


def _fractional_windows(sample: Tensor, size: int, outputs: int, kernel: int) -> Tensor:
    """Window starts that grow by about size / outputs, moved by the plane's random sample."""
    last = sample.new_full((sample.numel(), 1), size - kernel, dtype=torch.int64)
    starts = last
    if outputs > 1:
        alpha = (size - kernel) / (outputs - 1)
        step = torch.arange(outputs - 1, dtype=sample.dtype, device=sample.device)
        column = sample.reshape(-1, 1)
        starts = ((step + column) * alpha).to(torch.int64) - (column * alpha).to(torch.int64)
        starts = torch.cat([starts, last], 1)
    return starts.unsqueeze(2) + torch.arange(kernel, device=sample.device)


def _fractional(self: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Tensor,
                order: Sequence[int]) -> tuple[Tensor, Tensor]:  # fmt: skip
    samples = random_samples.reshape(-1, len(order))
    sizes = self.shape[-len(order) :]
    return _pool(self, [_fractional_windows(samples[:, column], size, outputs, kernel) for column, size, outputs, kernel
                        in zip(order, sizes, output_size, kernel_size, strict=True)])  # fmt: skip


@register("aten::fractional_max_pool2d")
def fractional_max_pool2d(self: Tensor, kernel_size: Sequence[int], output_size: Sequence[int],
                          random_samples: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _fractional(self, kernel_size, output_size, random_samples, (1, 0))  # the width takes the first sample


@register("aten::fractional_max_pool3d")
def fractional_max_pool3d(self: Tensor, kernel_size: Sequence[int], output_size: Sequence[int],
                          random_samples: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _fractional(self, kernel_size, output_size, random_samples, (0, 1, 2))


@register("aten::fractional_max_pool2d_backward")
def fractional_max_pool2d_backward(grad_output: Tensor, self: Tensor, kernel_size: Sequence[int],
                                   output_size: Sequence[int], indices: Tensor) -> Tensor:  # fmt: skip
    return _scatter(grad_output, self, indices, 2)


@register("aten::fractional_max_pool3d_backward")
def fractional_max_pool3d_backward(grad_output: Tensor, self: Tensor, kernel_size: Sequence[int],
                                   output_size: Sequence[int], indices: Tensor) -> Tensor:  # fmt: skip
    return _scatter(grad_output, self, indices, 3)
