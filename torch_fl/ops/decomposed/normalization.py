"""Variance and the normalizations where the kernels do not reach: complex numbers, nothing to normalize, out=."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_fl.ops.decompositions import from_torch, register, resize_output


def _moments(self: Tensor, dim: Sequence[int] | None, correction: float | None, keepdim: bool) -> tuple[Tensor, Tensor]:
    """(variance, mean) in two passes; NaN of nothing."""
    if self.dtype in (torch.float16, torch.bfloat16):
        return tuple(part.to(self.dtype) for part in _moments(self.float(), dim, correction, keepdim))
    dims = [d % max(self.dim(), 1) for d in dim] if dim else list(range(self.dim()))
    count = 1
    for d in dims:
        count *= self.size(d) if self.dim() else 1
    mean = self.mean(dims, keepdim=True)
    away = self - mean
    square = torch.view_as_real(away).square().sum(-1) if self.is_complex() else away * away
    variance = square.sum(dims, keepdim=keepdim) / max(0.0, count - (1 if correction is None else correction))
    return variance, mean if keepdim or not dims else mean.squeeze(dims)


@register("aten::var.correction")
def var(self: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None,
        keepdim: bool = False) -> Tensor:  # fmt: skip
    return _moments(self, dim, correction, keepdim)[0]


@register("aten::std.correction")
def std(self: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None,
        keepdim: bool = False) -> Tensor:  # fmt: skip
    return _moments(self, dim, correction, keepdim)[0].sqrt()


@register("aten::var_mean.correction")
def var_mean(self: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None,
             keepdim: bool = False) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _moments(self, dim, correction, keepdim)


@register("aten::std_mean.correction")
def std_mean(self: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None,
             keepdim: bool = False) -> tuple[Tensor, Tensor]:  # fmt: skip
    variance, mean = _moments(self, dim, correction, keepdim)
    return variance.sqrt(), mean


@register("aten::_native_batch_norm_legit.out")
def batch_norm_out(input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor,
                   running_var: Tensor, training: bool, momentum: float, eps: float, *, out: Tensor, save_mean: Tensor,
                   save_invstd: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    normalize = torch.ops.aten._native_batch_norm_legit
    results = normalize(input, weight, bias, running_mean, running_var, training, momentum, eps)
    return _into((out, save_mean, save_invstd), results)


def _into(outs: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    for out, result in zip(outs, results, strict=True):
        resize_output(out, result.shape)
        out.copy_(result)
    return outs


_torch_group_norm = from_torch("aten::native_group_norm")


@register("aten::native_group_norm")
def native_group_norm(input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int,
                      eps: float) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if input.numel():
        return _torch_group_norm(input, weight, bias, N, C, HxW, group, eps)
    mean = input.new_zeros(N, group)
    return torch.empty_like(input), mean, torch.full_like(mean, float("nan"))


_torch_group_norm_backward = from_torch("aten::native_group_norm_backward")


@register("aten::native_group_norm_backward")
def native_group_norm_backward(grad_out: Tensor, input: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None,
                               N: int, C: int, HxW: int, group: int,
                               output_mask: Sequence[bool]) -> tuple[Tensor | None, ...]:  # fmt: skip
    if input.numel():
        return _torch_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask)
    results = (torch.empty_like(input), input.new_zeros(C), input.new_zeros(C))
    return tuple(r if wanted else None for r, wanted in zip(results, output_mask, strict=True))


_torch_layer_norm = from_torch("aten::native_layer_norm")


@register("aten::native_layer_norm")
def native_layer_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None,
                      eps: float) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if input.numel():
        return _torch_layer_norm(input, normalized_shape, weight, bias, eps)
    outer = input.dim() - len(normalized_shape)
    mean = input.new_zeros(*input.shape[:outer], *[1] * len(normalized_shape))
    return torch.empty_like(input), mean, torch.full_like(mean, float("nan"))
