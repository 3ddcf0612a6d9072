"""Operators that move or gather elements: roll, put_, index_reduce, repeat_interleave, embedding_bag, segments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_fl.ops.decompositions import register


@register("aten::roll")
def roll(self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not dims and len(shifts) == 1:
        return roll(self.reshape(-1), shifts, (0,)).view(self.shape)
    if not shifts:
        raise RuntimeError("`shifts` required")
    if len(shifts) != len(dims):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}")
    if self.numel() == 0:
        return self.clone(memory_format=torch.preserve_format)
    result = self
    for shift, dim in zip(shifts, dims, strict=True):
        size = self.size(dim)
        cut = (-shift) % size
        result = torch.cat([result.narrow(dim, cut, size - cut), result.narrow(dim, 0, cut)], dim)
    return result


@register("aten::put_")
def put_(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    if index.numel() != source.numel():
        raise RuntimeError(f"put_(): Expected source and index to have the same number of elements, but got "
                           f"source.numel() = {source.numel()}, index.numel() = {index.numel()}")  # fmt: skip
    if index.numel() == 0:
        return self
    place = index.reshape(-1)
    place = torch.where(place < 0, place + self.numel(), place)
    values = source.reshape(-1)
    if self.is_contiguous():
        self.view(-1).index_put_((place,), values, accumulate)
        return self
    coordinates = []
    for size in reversed(self.shape):
        coordinates.append(place % size)
        place = torch.div(place, size, rounding_mode="floor")
    return self.index_put_(tuple(reversed(coordinates)), values, accumulate)


@register("aten::index_reduce")
def index_reduce(self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *,
                 include_self: bool = True) -> Tensor:  # fmt: skip
    if self.dim() == 0:
        return index_reduce(self.unsqueeze(0), 0, index.reshape(-1), source.reshape(-1), reduce,
                            include_self=include_self).squeeze(0)  # fmt: skip
    rows = index.view([-1 if d == dim % self.dim() else 1 for d in range(self.dim())]).expand_as(source)
    return self.scatter_reduce(dim, rows, source, reduce, include_self=include_self)


@register("aten::repeat_interleave.Tensor")
def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int64, torch.int32):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if repeats.numel() == 0:
        return torch.empty_like(repeats, dtype=repeats.dtype)
    ends = repeats.cumsum(0)
    if repeats.min().item() < 0:
        raise RuntimeError("repeats can not be negative")
    total = ends[-1].item() if output_size is None else output_size
    place = torch.arange(total, device=repeats.device)
    return torch.searchsorted(ends.to(torch.int64), place, right=True).to(repeats.dtype)


@register("aten::nonzero_static")
def nonzero_static(self: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    found = self.nonzero()[:size]
    missing = size - found.size(0)
    return torch.cat([found, found.new_full((missing, self.dim()), fill_value)]) if missing else found


# Embedding bags: modes 0 sum, 1 mean, 2 max


def _bags(indices: Tensor, offsets: Tensor, include_last_offset: bool) -> tuple[Tensor, int]:
    """(the bag of each index, number of bags)"""
    count = offsets.numel() - int(include_last_offset)
    place = torch.arange(indices.numel(), device=indices.device)
    starts = offsets[:count].to(torch.int64).contiguous()
    return torch.searchsorted(starts, place, right=True) - 1, count


@register("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = 0,
                  sparse: bool = False, per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
                  padding_idx: int = -1) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    if sparse:
        raise NotImplementedError("embedding_bag with sparse gradients")
    bag, count = _bags(indices, offsets, include_last_offset)
    used = indices != padding_idx
    size = torch.zeros(count, dtype=torch.int64, device=weight.device).scatter_add_(0, bag, used.to(torch.int64))
    rows = weight.index_select(0, indices.reshape(-1))
    features = weight.size(1)
    target = bag.unsqueeze(1).expand(-1, features)
    if mode == 2:
        rows = rows.masked_fill(~used.unsqueeze(1), float("-inf"))
        out = weight.new_full((count, features), float("-inf")).scatter_reduce_(0, target, rows, "amax")
        place = torch.arange(indices.numel(), device=weight.device).unsqueeze(1).expand(-1, features)
        hit = (rows == out.index_select(0, bag)) & used.unsqueeze(1)
        first = torch.where(hit, place, indices.numel())
        winner = first.new_full((count, features), indices.numel()).scatter_reduce_(0, target, first, "amin")
        empty = winner == indices.numel()
        chosen = indices.reshape(-1).to(torch.int64)[winner.masked_fill(empty, 0)] if indices.numel() else winner
        return out.masked_fill(empty, 0), bag, size, chosen.masked_fill(empty, -1)
    rows = rows * used.unsqueeze(1).to(rows.dtype)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    out = weight.new_zeros(count, features).scatter_add_(0, target, rows)
    if mode == 1:
        out = out / size.clamp(min=1).unsqueeze(1).to(out.dtype)
    return out, bag, size, size.new_empty(0)


@register("aten::_embedding_bag_backward")
def embedding_bag_backward(grad: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor, bag_size: Tensor,
                           maximum_indices: Tensor, num_weights: int, scale_grad_by_freq: bool, mode: int, sparse: bool,
                           per_sample_weights: Tensor | None, padding_idx: int = -1) -> Tensor:  # fmt: skip
    if sparse:
        raise NotImplementedError("embedding_bag with sparse gradients")
    return embedding_bag_dense_backward(grad, indices, offset2bag, bag_size, maximum_indices, num_weights,
                                        scale_grad_by_freq, mode, per_sample_weights, padding_idx)  # fmt: skip


@register("aten::_embedding_bag_dense_backward")
def embedding_bag_dense_backward(grad: Tensor, indices: Tensor, offset2bag: Tensor, bag_size: Tensor,
                                 maximum_indices: Tensor, num_weights: int, scale_grad_by_freq: bool, mode: int,
                                 per_sample_weights: Tensor | None, padding_idx: int = -1) -> Tensor:  # fmt: skip
    result = grad.new_zeros(num_weights, grad.size(1))
    if mode == 2:
        present = maximum_indices >= 0
        return result.scatter_add_(0, maximum_indices.clamp(min=0), grad * present.to(grad.dtype))
    rows = grad.index_select(0, offset2bag)
    if mode == 1:
        rows = rows / bag_size.clamp(min=1).index_select(0, offset2bag).unsqueeze(1).to(grad.dtype)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    flat = indices.reshape(-1).to(torch.int64)
    rows = rows * (flat != padding_idx).unsqueeze(1).to(grad.dtype)
    if scale_grad_by_freq:
        frequency = flat.new_zeros(num_weights).scatter_add_(0, flat, torch.ones_like(flat))
        rows = rows / frequency.index_select(0, flat).unsqueeze(1).to(grad.dtype)
    return result.index_add_(0, flat, rows)


@register("aten::_embedding_bag_per_sample_weights_backward")
def embedding_bag_weights_backward(grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor,
                                   mode: int, padding_idx: int = -1) -> Tensor:  # fmt: skip
    flat = indices.reshape(-1)
    products = grad.index_select(0, offset2bag) * weight.index_select(0, flat)
    return products.sum(1) * (flat != padding_idx).to(grad.dtype)


# Segments along one axis


def _segments(data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int) -> tuple[Tensor, Tensor]:
    """(lengths, the segment of each place along the axis; as long as there are segments where it belongs to none)."""
    if lengths is None:
        lengths = torch.diff(offsets, dim=axis)
    ends = lengths.to(torch.int64).cumsum(axis).contiguous()
    place = torch.arange(data.size(axis), device=data.device).expand(*ends.shape[:axis], -1).contiguous()
    return lengths, torch.searchsorted(ends, place, right=True)


def _widen(x: Tensor, like: Tensor) -> Tensor:
    return x.view(*x.shape, *[1] * (like.dim() - x.dim())).expand(*x.shape, *like.shape[x.dim() :])


_NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf")}
_REDUCE = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "amax", "min": "amin"}


@register("aten::segment_reduce")
def segment_reduce(data: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None,
                   offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False,
                   initial: float | None = None) -> Tensor:  # fmt: skip
    if lengths is None and offsets is None:
        raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
    axis = axis % data.dim()
    lengths, segment = _segments(data, lengths, offsets, axis)
    if not unsafe and (lengths < 0).any():
        raise RuntimeError("lengths contains negative value!")
    shape = list(data.shape)
    shape[axis] = lengths.size(axis) + 1  # the last one takes what lies behind all segments
    start = _NEUTRAL[reduce] if initial is None else initial
    out = data.new_full(shape, start).scatter_reduce_(axis, _widen(segment, data), data, _REDUCE[reduce])
    out = out.narrow(axis, 0, lengths.size(axis))
    if reduce == "mean":
        sizes = _widen(lengths, out)
        mean = out / sizes.clamp(min=1).to(out.dtype)
        out = mean.masked_fill(sizes == 0, float("nan")) if initial is None else mean
    return out.contiguous()


@register("aten::_segment_reduce_backward")
def segment_reduce_backward(grad: Tensor, output: Tensor, data: Tensor, reduce: str, *, lengths: Tensor | None = None,
                            offsets: Tensor | None = None, axis: int = 0,
                            initial: float | None = None) -> Tensor:  # fmt: skip
    axis = axis % data.dim()
    lengths, segment = _segments(data, lengths, offsets, axis)
    inside = _widen(segment < lengths.size(axis), data)
    place = _widen(segment.clamp(max=max(lengths.size(axis) - 1, 0)), data)
    spread = grad.gather(axis, place)
    if reduce == "mean":
        spread = spread / _widen(lengths, output).gather(axis, place).to(grad.dtype)
    elif reduce == "prod":
        spread = spread * _others_product(data, output, place, axis, initial)
    elif reduce in ("max", "min"):
        hit = (data == output.gather(axis, place)) | torch.isnan(data)
        winners = torch.zeros_like(output).scatter_add_(axis, place, (hit & inside).to(grad.dtype))
        spread = spread * hit.to(grad.dtype) / winners.gather(axis, place).clamp(min=1)
    return torch.where(inside, spread, 0)


def _others_product(data: Tensor, output: Tensor, place: Tensor, axis: int, initial: float | None) -> Tensor:
    """The product of a segment without one element; right also where elements are zero."""
    zero = data == 0
    zeros = torch.zeros_like(output).scatter_add_(axis, place, zero.to(data.dtype)).gather(axis, place)
    start = 1.0 if initial is None else initial
    factors = torch.full_like(output, start).scatter_reduce_(axis, place, data.masked_fill(zero, 1.0), "prod")
    rest = factors.gather(axis, place)
    alone = torch.where(zeros == 0, rest / data, 0)
    return torch.where(zero & (zeros == 1), rest, alone)
