"""Order statistics, unique values and histograms, all through sort, search and scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_fl.ops.decompositions import register


def _wrap(self: Tensor, dim: int) -> tuple[Tensor, int]:
    """Give a scalar one dimension; make dim positive."""
    wrapped = self.unsqueeze(0) if self.dim() == 0 else self
    if not -wrapped.dim() <= dim < wrapped.dim():
        bounds = f"[{-wrapped.dim()}, {wrapped.dim() - 1}]"
        raise IndexError(f"Dimension out of range (expected to be in range of {bounds}, but got {dim})")
    return wrapped, dim % wrapped.dim()


def _finish(self: Tensor, values: Tensor, indices: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    if self.dim() == 0:
        return values.reshape(()), indices.reshape(())
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


def _isnan(x: Tensor) -> Tensor:
    return torch.isnan(x) if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


def _pick(self: Tensor, dim: int, keepdim: bool, position: Any) -> tuple[Tensor, Tensor]:
    """The element at position(sorted, number of ordinary values) of each sorted row, and where it was."""
    x, dim = _wrap(self, dim)
    if x.size(dim) == 0:
        raise IndexError(f"Expected reduction dim {dim} to have non-zero size.")
    values, indices = torch.sort(x, dim=dim, stable=True)
    ordinary = (~_isnan(x)).sum(dim, keepdim=True)
    where = position(x.size(dim), ordinary)
    return _finish(self, values.gather(dim, where), indices.gather(dim, where), dim, keepdim)


def _median_position(size: int, ordinary: Tensor) -> Tensor:
    # NaN is sorted to the end: where there is one, the first of them is the median.
    return torch.where(ordinary < size, ordinary, (size - 1) // 2)


def _nanmedian_position(size: int, ordinary: Tensor) -> Tensor:
    return ((ordinary - 1).clamp(min=0) / 2).floor().to(torch.int64)


@register("aten::median.dim")
def median_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _pick(self, dim, keepdim, _median_position)


@register("aten::nanmedian.dim")
def nanmedian_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _pick(self, dim, keepdim, _nanmedian_position)


@register("aten::median")
def median(self: Tensor) -> Tensor:
    return _median_of_all(self, _median_position)


@register("aten::nanmedian")
def nanmedian(self: Tensor) -> Tensor:
    return _median_of_all(self, _nanmedian_position)


def _median_of_all(self: Tensor, position: Any) -> Tensor:
    if self.numel() == 0:
        if not self.is_floating_point():
            return self.new_full((), torch.iinfo(self.dtype).min)  # NaN as PyTorch casts it
        return self.new_full((), float("nan"))
    return _pick(self.reshape(-1), 0, False, position)[0]


@register("aten::kthvalue")
def kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    x, dim = _wrap(self, dim)
    if not 1 <= k <= x.size(dim):
        raise RuntimeError("kthvalue(): selected number k out of range for dimension " + str(dim))
    values, indices = torch.sort(x, dim=dim, stable=True)
    return _finish(self, values.narrow(dim, k - 1, 1).clone(), indices.narrow(dim, k - 1, 1).clone(), dim, keepdim)


@register("aten::mode")
def mode(self: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    x, dim = _wrap(self, dim)
    size = x.size(dim)
    if size == 0:
        raise IndexError(f"mode(): Expected reduction dim {dim} to have non-zero size.")
    values, indices = torch.sort(x, dim=dim, stable=True)
    place = torch.arange(size, device=x.device).view([-1 if d == dim else 1 for d in range(x.dim())]).expand_as(x)
    same = values.narrow(dim, 1, size - 1) == values.narrow(dim, 0, size - 1)
    later = place.narrow(dim, 1, size - 1).masked_fill(same, 0)
    start = torch.cat([torch.zeros_like(place.narrow(dim, 0, 1)), later], dim)
    # The run's length so far; its first maximum ends the longest run, the one of the smallest value among equals.
    length = place - start.cummax(dim).values
    best = length.argmax(dim, keepdim=True)
    return _finish(self, values.gather(dim, best), indices.gather(dim, best), dim, keepdim)


# Unique values


def _groups(starts: Tensor, order: Tensor | None, shape: Sequence[int], want_inverse: bool, want_counts: bool) -> tuple:
    """(positions of the groups' first elements, inverse, counts) of a run-length coded sequence."""
    first = starts.nonzero().reshape(-1)
    inverse = counts = torch.empty(0, dtype=torch.int64, device=starts.device)
    if want_inverse:
        group = starts.to(torch.int64).cumsum(0) - 1
        inverse = (group if order is None else torch.empty_like(group).scatter_(0, order, group)).view(shape)
    if want_counts:
        counts = torch.diff(first, append=first.new_full((1,), starts.numel()))
    return first, inverse, counts


def _starts(values: Tensor) -> Tensor:
    """True where a row differs from the one before."""
    starts = torch.ones(values.size(0), dtype=torch.bool, device=values.device)
    if values.size(0) > 1:
        differs = values[1:] != values[:-1]
        starts[1:] = differs.flatten(1).any(1) if values.dim() > 1 else differs
    return starts


@register("aten::_unique2")
def unique2(self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> tuple:
    values, order = torch.sort(self.reshape(-1), stable=True)
    first, inverse, counts = _groups(_starts(values), order, self.shape, return_inverse, return_counts)
    return values[first], inverse, counts


@register("aten::_unique")
def unique(self: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:
    return unique2(self, sorted, return_inverse)[:2]


def _unique_of_nothing(x: Tensor, dim: int | None) -> tuple[Tensor, Tensor, Tensor]:
    if dim is not None and (x.size(dim) or sum(n == 0 for n in x.shape) > 1):
        raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
    nothing = torch.empty(0, dtype=torch.int64, device=x.device)
    return (x.clone() if dim is not None else x.reshape(-1).clone()), nothing, nothing.clone()


@register("aten::unique_dim")
def unique_dim(self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False,
               return_counts: bool = False) -> tuple:  # fmt: skip
    x, dim = _wrap(self, dim)
    if x.numel() == 0:
        return _unique_of_nothing(x, dim)
    rows = x.movedim(dim, 0)
    flat = rows.reshape(rows.size(0), -1)
    order = torch.arange(flat.size(0), device=x.device)
    for column in range(flat.size(1) - 1, -1, -1):  # stable sorts from the last key to the first
        order = order[torch.sort(flat[order, column], stable=True).indices]
    first, inverse, counts = _groups(_starts(flat[order]), order, (rows.size(0),), True, return_counts)
    return rows.index_select(0, order[first]).movedim(0, dim), inverse, counts


@register("aten::unique_consecutive")
def unique_consecutive(self: Tensor, return_inverse: bool = False, return_counts: bool = False,
                       dim: int | None = None) -> tuple:  # fmt: skip
    rows = self.reshape(-1) if dim is None else self.movedim(dim, 0)
    if self.numel() == 0:
        return _unique_of_nothing(self, dim)
    shape = self.shape if dim is None else (rows.size(0),)
    first, inverse, counts = _groups(_starts(rows), None, shape, return_inverse or dim is not None, return_counts)
    values = rows.index_select(0, first)
    return values if dim is None else values.movedim(0, dim), inverse, counts


# Histograms


def _range(self: Tensor, low: float, high: float) -> tuple[float, float]:
    if low == high and self.numel():
        low, high = self.min().item(), self.max().item()
    if low == high:
        low, high = low - 1, high + 1
    if not (abs(low) < float("inf") and abs(high) < float("inf")):
        raise RuntimeError(f"torch.histc: range of [{low}, {high}] is not finite")
    if low > high:
        raise RuntimeError("torch.histc: max must be larger than min")
    return low, high


@register("aten::histc")
def histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    if not self.is_floating_point():
        raise NotImplementedError("histc of integers")
    low, high = _range(self, min, max)
    x = self.reshape(-1)
    inside = (x >= low) & (x <= high)
    place = ((x - low) * bins / (high - low)).nan_to_num(0).clamp(0, bins - 1).to(torch.int64)
    return torch.zeros(bins, dtype=self.dtype, device=self.device).scatter_add_(0, place, inside.to(self.dtype))


def _histogramdd(self: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    """Counts of the rows of self in the bins between edges[d], in each dimension; the last bin holds its right edge."""
    points = self.reshape(-1, len(edges))
    inside = torch.ones(points.size(0), dtype=torch.bool, device=self.device)
    place = torch.zeros(points.size(0), dtype=torch.int64, device=self.device)
    for d, edge in enumerate(edges):
        x = points[:, d].contiguous()
        bins = edge.numel() - 1
        inside &= (x >= edge[0]) & (x <= edge[-1])
        place = place * bins + (torch.searchsorted(edge.contiguous(), x, right=True) - 1).clamp(0, bins - 1)
    amount = inside.to(self.dtype) if weight is None else torch.where(inside, weight.reshape(-1), 0)
    shape = [edge.numel() - 1 for edge in edges]
    total = 1
    for n in shape:
        total *= n
    histogram = torch.zeros(total, dtype=self.dtype, device=self.device).scatter_add_(0, place, amount).view(shape)
    if density:
        histogram = histogram / histogram.sum()
        for d, edge in enumerate(edges):
            histogram = histogram / torch.diff(edge).view([-1 if k == d else 1 for k in range(len(edges))])
    return histogram


@register("aten::_histogramdd_bin_edges")
def histogramdd_bin_edges(self: Tensor, bins: Sequence[int], *, range: Sequence[float] | None = None,
                          weight: Tensor | None = None, density: bool = False) -> list[Tensor]:  # fmt: skip
    points = self.reshape(-1, len(bins))
    edges = []
    for d, count in enumerate(bins):
        if range:
            low, high = range[2 * d], range[2 * d + 1]
        elif points.size(0) == 0:
            low, high = 0.0, 1.0
        else:
            low, high = points[:, d].min().item(), points[:, d].max().item()
        if low == high:
            low, high = low - 0.5, high + 0.5
        edges.append(torch.linspace(low, high, count + 1, dtype=self.dtype, device=self.device))
    return edges


@register("aten::_histogramdd_from_bin_tensors")
def histogramdd_from_bin_tensors(self: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None,
                                 density: bool = False) -> Tensor:  # fmt: skip
    return _histogramdd(self, bins, weight, density)


@register("aten::_histogramdd_from_bin_cts")
def histogramdd_from_bin_cts(self: Tensor, bins: Sequence[int], *, range: Sequence[float] | None = None,
                             weight: Tensor | None = None, density: bool = False) -> Tensor:  # fmt: skip
    return _histogramdd(self, histogramdd_bin_edges(self, bins, range=range), weight, density)


@register("aten::histogram.bins_tensor")
def histogram(self: Tensor, bins: Tensor, *, weight: Tensor | None = None,
              density: bool = False) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _histogramdd(self.reshape(-1, 1), [bins], weight, density), bins.clone()


@register("aten::histogram.bin_ct")
def histogram_bin_ct(self: Tensor, bins: int = 100, *, range: Sequence[float] | None = None,
                     weight: Tensor | None = None, density: bool = False) -> tuple[Tensor, Tensor]:  # fmt: skip
    edges = histogramdd_bin_edges(self.reshape(-1, 1), [bins], range=range)
    return _histogramdd(self.reshape(-1, 1), edges, weight, density), edges[0]
