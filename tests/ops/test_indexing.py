"""Indexing, scatter, sort, search, cat, creation, embedding and nll_loss on the device against the CPU."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from against_cpu import DEVICE, assert_same, check, check_error, to_device

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
ALL = [*FLOATS, *INTS, torch.bool]
MOVED = [*ALL, torch.complex64]


def make(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator, dtype=torch.int64).bool()
    low = 0 if dtype == torch.uint8 else -50
    return torch.randint(low, 50, shape, generator=generator).to(dtype)


def index(high: int, *shape: int, seed: int = 1, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# ---- index and index_put


@pytest.mark.parametrize("dtype", MOVED)
def test_index_by_one_tensor(dtype: torch.dtype) -> None:
    check(lambda x, i: x[i], make(5, 4, 3, dtype=dtype), index(5, 7))


INDEXINGS = {
    "two": lambda x, i, j, m: x[i, j],
    "apart": lambda x, i, j, m: x[i, :, j],
    "middle": lambda x, i, j, m: x[:, i],
    "last": lambda x, i, j, m: x[..., j],
    "broadcast": lambda x, i, j, m: x[i[:, None], j[None]],
    "negative": lambda x, i, j, m: x[-1 - i],
    "slices": lambda x, i, j, m: x[1:, i[:2], ::2],
    "none": lambda x, i, j, m: x[None, i, ..., j],
    "mask": lambda x, i, j, m: x[m],
    "mask_and_index": lambda x, i, j, m: x[m, j[0]],
    "full_mask": lambda x, i, j, m: x[x > 0],
    "no_hits": lambda x, i, j, m: x[m & ~m],
    "int32": lambda x, i, j, m: x[i.int()],
    "list": lambda x, i, j, m: x[[2, 0, -1]],
    "transposed": lambda x, i, j, m: x.transpose(0, 2)[j, i],
    "expanded": lambda x, i, j, m: x[:1].expand(6, 4, 3)[i, i],
    "empty_index": lambda x, i, j, m: x[i[:0]],
}


def indexing_operands() -> tuple[torch.Tensor, ...]:
    mask = make(4, 4, dtype=torch.bool, seed=3)
    return make(4, 4, 3), index(3, 5), index(3, 5, seed=2), mask


@pytest.mark.parametrize("name", INDEXINGS)
def test_index(name: str) -> None:
    check(INDEXINGS[name], *indexing_operands())


def test_index_with_host_indices() -> None:
    x, i, _, mask = indexing_operands()
    y = x.to(DEVICE)
    assert_same(y[i], x[i])
    assert_same(y[:, i], x[:, i])
    assert_same(y[mask], x[mask])


def test_index_out() -> None:
    x, i, j, _ = indexing_operands()
    y = x.to(DEVICE)
    out = torch.empty(0, device=DEVICE)
    torch.ops.aten.index.Tensor_out(y, [i.to(DEVICE), j.to(DEVICE)], out=out)
    assert_same(out, x[i, j])


def test_index_of_empty_tensors() -> None:
    check(lambda x, i: x[i], torch.empty(0, 3), torch.empty(0, dtype=torch.int64))
    check(lambda x, i: x[:, i], torch.empty(0, 3), torch.tensor([1, 2]))
    check(lambda x, m: x[m], torch.empty(0), torch.empty(0, dtype=torch.bool))


def test_index_errors() -> None:
    x = make(3, 4)
    check_error(lambda x, i: x[i, i, i], x, torch.tensor([0]))
    check_error(lambda x, i, j: x[i, j], x, torch.tensor([0, 1]), torch.tensor([0, 1, 2]))
    check_error(lambda x, m: x[m], x, torch.tensor([True, False]))
    check_error(lambda x, i: x[i], torch.empty(0, 3), torch.tensor([0]))
    check_error(lambda x, i: x[i], x, torch.tensor([0.5]))
    check_error(lambda x, i: x[i], x, torch.tensor([0, 3]))
    check_error(lambda x, i: x[i], x, torch.tensor([-4]))
    assert_same(to_device(x)[torch.tensor([2])], x[torch.tensor([2])])  # the device serves on after an error


def put(x: torch.Tensor, key: object, value: object) -> torch.Tensor:
    x[key] = value  # type: ignore[index]
    return x


@pytest.mark.parametrize("dtype", MOVED)
def test_index_put(dtype: torch.dtype) -> None:
    i = torch.tensor([3, 0, 2])
    check(lambda x, i, v: put(x, i, v), make(5, 4, dtype=dtype), i, make(3, 4, dtype=dtype, seed=5))
    check(lambda x, i, v: put(x, i, v), make(5, 4, dtype=dtype), i, make(4, dtype=dtype, seed=5))
    check(lambda x, i, v: put(x, (slice(None), i), v), make(5, 4, dtype=dtype), i, make(5, 3, dtype=dtype, seed=5))


PUTS = {
    "scalar": lambda x, i, m: put(x, i, 2.5),
    "scalar_mask": lambda x, i, m: put(x, m, -1),
    "value_mask": lambda x, i, m: put(x, m, x[m] * 2),
    "device_scalar_mask": lambda x, i, m: put(x, m, x[0, 0, 0].clone()),
    "mask_last": lambda x, i, m: put(x, (slice(None), m[0]), 7.0),
    "apart": lambda x, i, m: put(x, (i, slice(None), i[:1]), 3.0),
    "negative": lambda x, i, m: put(x, -1 - i, 1.0),
    "no_hits": lambda x, i, m: put(x, m & ~m, 1.0),
    "transposed": lambda x, i, m: put(x.transpose(0, 1), i, 1.5),
    "row": lambda x, i, m: put(x, (i, i), x[0, 0].clone()),
}


@pytest.mark.parametrize("name", PUTS)
def test_index_put_ways(name: str) -> None:
    check(PUTS[name], make(4, 4, 3), torch.tensor([2, 0]), make(4, 4, dtype=torch.bool, seed=3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.bool])
def test_index_put_accumulates(dtype: torch.dtype) -> None:
    i = torch.tensor([1, 1, 3, 1])
    one = torch.ones(4, 2, dtype=dtype)
    check(lambda x, i, v: x.index_put_((i,), v, accumulate=True), make(5, 2, dtype=dtype), i, one)
    check(lambda x, i, v: x.index_put((i,), v, accumulate=True), make(5, 2, dtype=dtype), i, one[0])


def test_index_put_of_host_value_and_indices() -> None:
    x, i = make(5, 3), torch.tensor([1, 4])
    y = x.to(DEVICE)
    y[i] = torch.tensor(2.0)
    x[i] = 2.0
    assert_same(y, x)


def test_index_put_errors() -> None:
    i = torch.tensor([0, 1])
    check_error(lambda x, i, v: x.index_put_((i,), v), make(3, 4), i, torch.ones(3), match="cannot be broadcast")
    check_error(lambda x, i, v: x.index_put_((i,), v), make(3, 4), i, torch.ones(4, dtype=torch.float64),
                match="dtypes match")
    check_error(lambda x, i, v: x.index_put_((i, i, i), v), make(3, 4), i, torch.ones(2))
    check_error(lambda x, i, v: x.index_put_((i,), v), make(3, 4), i.float(), torch.ones(4))
    check_error(lambda x, i, v: x.index_put_((i,), v), make(3, 4), i + 2, torch.ones(4))


def test_gradient_of_indexing() -> None:
    def gradient(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor | None:
        x = x.detach().requires_grad_()
        (x[i] * x[:, 0][i].unsqueeze(-1)).sum().backward()
        return x.grad

    check(gradient, make(5, 3), torch.tensor([0, 0, 4]), rtol=1e-6, atol=1e-6)


# ---- along one dimension


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_index_select(dtype: torch.dtype, dim: int) -> None:
    x = make(5, 4, 3, dtype=dtype)
    check(lambda x, i: x.index_select(dim, i), x, index(3, 6))
    check(lambda x, i: x.transpose(0, 2).index_select(dim, i), x, index(3, 6, dtype=torch.int32))


def test_index_select_edges() -> None:
    check(lambda x, i: torch.index_select(x, 0, i), torch.tensor(3.0), torch.tensor([0]))
    check(lambda x, i: torch.index_select(x, 0, i), torch.tensor(3.0), torch.tensor(0))
    check(lambda x, i: torch.index_select(x, 0, i), make(3, 2), torch.tensor(1))
    check(lambda x, i: torch.index_select(x, 0, i), make(3, 0), torch.tensor([1, 1]))
    check(lambda x, i: torch.index_select(x, 0, i), make(3, 2), torch.empty(0, dtype=torch.int64))
    check(lambda x, i, o: torch.index_select(x, 1, i, out=o), make(3, 2), torch.tensor([1, 1, 0]), torch.empty(0))
    check(lambda x, i, o: torch.index_select(x, 1, i, out=o.t()), make(3, 2), torch.tensor([1, 1]), torch.empty(2, 3))
    x = make(3, 4)
    check_error(lambda x, i: torch.index_select(x, 2, i), x, torch.tensor([0]))
    check_error(lambda x, i: torch.index_select(x, 0, i), x, torch.tensor([[0]]))
    check_error(lambda x, i: torch.index_select(x, 0, i), x, torch.tensor([0.0]))
    check_error(lambda x, i: torch.index_select(x, 0, i), x, torch.tensor([5]))
    check_error(lambda x, i: torch.index_select(x, 0, i), torch.tensor(3.0), torch.tensor([0, 0]))
    check_error(lambda x, i: torch.index_select(x, 0, i), torch.empty(0, 4), torch.tensor([0]))
    check_error(lambda x, i, o: torch.index_select(x, 0, i, out=o), x, torch.tensor([0]),
                torch.empty(0, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="same device"):
        torch.index_select(x.to(DEVICE), 0, torch.tensor([0]))


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gather_and_scatter(dtype: torch.dtype, dim: int) -> None:
    x, i = make(4, 4, 4, dtype=dtype), index(4, 3, 2, 4)
    # Each place at most once along dim, so that the result does not depend on the order.
    orders = [torch.randperm(4, generator=torch.Generator().manual_seed(k)) for k in range(16)]
    unique = torch.stack(orders).view(4, 4, 4)
    unique = unique.transpose(dim, 2).contiguous()
    source = make(4, 4, 4, dtype=dtype, seed=7)
    check(lambda x, i: x.gather(dim, i), x, i)
    check(lambda x, i: x.transpose(0, 1).gather(dim, i), x, i)
    check(lambda x, i, s: x.scatter(dim, i, s), x, unique, source)
    check(lambda x, i, s: x.scatter_(dim, i, s), x, unique, source)
    check(lambda x, i, s: x.scatter(dim, i[:2, :3, :2], s), x, unique, source)
    check(lambda x, i: x.scatter(dim, i, 1), x, i)
    check(lambda x, i: x.scatter_(dim, i, 1), x, i)
    check(lambda x, i, s: x.transpose(0, 1).scatter_(dim, i, s), x, unique, source)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *INTS])
@pytest.mark.parametrize("dim", [0, 1])
def test_scatter_reductions(dtype: torch.dtype, dim: int) -> None:
    x, i = make(4, 5, dtype=dtype), index(4, 4, 3)
    source = make(4, 5, dtype=dtype, seed=8)
    exact = {"rtol": 1e-6, "atol": 1e-6} if dtype.is_floating_point else {"rtol": 0, "atol": 0}
    check(lambda x, i, s: x.scatter_add(dim, i, s), x, i, source, **exact)
    check(lambda x, i, s: x.scatter_add_(dim, i, s), x, i, source, **exact)
    check(lambda x, i, s: x.scatter(dim, i, s, reduce="add"), x, i, source, **exact)
    check(lambda x, i, s: x.scatter(dim, i, s, reduce="multiply"), x, i, source, **exact)
    check(lambda x, i: x.scatter(dim, i, 2, reduce="add"), x, i, **exact)
    for reduce, include in itertools.product(["sum", "prod", "mean", "amax", "amin"], [True, False]):
        check(lambda x, i, s: x.scatter_reduce(dim, i, s, reduce, include_self=include), x, i, source, **exact)  # noqa: B023
        check(lambda x, i, s: x.scatter_reduce_(dim, i, s, reduce, include_self=include), x, i, source, **exact)  # noqa: B023


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scatter_add_of_half_types_accumulates_in_float(dtype: torch.dtype) -> None:
    ones = torch.ones(5000, dtype=dtype, device=DEVICE)
    zeros = torch.zeros(5000, dtype=torch.int64, device=DEVICE)
    total = torch.zeros(2, dtype=dtype, device=DEVICE).scatter_add_(0, zeros, ones)
    assert total.tolist() == [torch.tensor(5000.0, dtype=dtype).item(), 0.0]


def test_scatter_edges() -> None:
    none = torch.empty(0, dtype=torch.int64)
    check(lambda x, i, s: x.scatter(0, i, s), make(4), none, torch.empty(0))
    check(lambda x, i, s: x.scatter_add_(0, i, s), make(4), none, torch.empty(0))
    check(lambda x, i, s: x.scatter_reduce(0, i, s, "amax", include_self=False), make(4), none, torch.empty(0))
    check(lambda x, i: x.scatter(0, i, 2.0), torch.tensor(1.0), torch.tensor(0))
    check(lambda x, i: x.scatter(0, i, 2.0), torch.tensor(1.0), torch.tensor([0]))
    check(lambda x, i: x.gather(0, i), make(4), none)
    check(lambda x, i: x.gather(0, i), torch.tensor(1.0), torch.tensor(0))
    check(lambda x, i: x.scatter_(0, i, 1.5), torch.zeros(3, dtype=torch.int64), torch.tensor([1]))
    check(lambda x, i, s, o: torch.scatter(x, 0, i, s, out=o), make(4), torch.tensor([1]), make(1), torch.empty(0))
    check_error(lambda x, i, s: x.scatter(0, i, s), make(4), torch.tensor([1]), torch.ones(1, dtype=torch.float64))
    check_error(lambda x, i, s: x.scatter(0, i, s, reduce="mean"), make(4), torch.tensor([1]), torch.ones(1))
    check_error(lambda x, i, s: x.scatter(0, i, s), make(4), torch.tensor([1, 2]), torch.ones(1))
    check_error(lambda x, i: x.gather(0, i), make(4), torch.tensor([[1]]))
    check_error(lambda x, i: x.gather(2, i), make(4), torch.tensor([1]))
    for operation in (lambda x, i: x.gather(0, i), lambda x, i: x.scatter(0, i, 1.0)):
        with pytest.raises(IndexError):
            operation(make(4).to(DEVICE), torch.tensor([4], device=DEVICE))
            torch.accelerator.synchronize(DEVICE)
    with pytest.raises(RuntimeError, match="same device"):
        make(4).to(DEVICE).gather(0, torch.tensor([1]))


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_index_add_copy_fill(dtype: torch.dtype, dim: int) -> None:
    x, i = make(4, 5, 6, dtype=dtype), torch.tensor([3, 0, 2])
    shape = list(x.shape)
    shape[dim] = 3
    source = make(*shape, dtype=dtype, seed=9)
    close = {} if not (dtype.is_floating_point or dtype.is_complex) else {"rtol": 1e-2, "atol": 1e-2}
    check(lambda x, i, s: x.index_add(dim, i, s), x, i, source, **close)
    check(lambda x, i, s: x.index_add_(dim, i, s), x, i, source, **close)
    if dtype != torch.bool:
        check(lambda x, i, s: x.index_add(dim, i, s, alpha=2), x, i, source, **close)
    check(lambda x, i, s: x.index_copy(dim, i, s), x, i, source)
    check(lambda x, i, s: x.index_copy_(dim, i, s), x, i, source)
    check(lambda x, i: x.index_fill(dim, i, 1), x, i)
    check(lambda x, i: x.index_fill_(dim, i - 4, 1), x, i)
    check(lambda x, i: x.transpose(0, 2).index_fill_(dim, i, 1), x, i)


def test_index_fill_edges() -> None:
    i = torch.tensor([0])
    check(lambda x, i, v: x.index_fill_(0, i, v), make(3, 4), i, torch.tensor(1.5))
    check(lambda x, i: x.index_fill_(0, i, 2), torch.tensor(1.0), i)
    check(lambda x, i: x.index_fill_(0, i, 2.5), torch.arange(4), i)
    check(lambda x, i: x.index_fill_(0, i, 2), make(3, 4), i[:0])
    check_error(lambda x, i, v: x.index_fill_(0, i, v), make(3, 4), i, torch.tensor([1.0]))
    check_error(lambda x, i: x.index_fill_(0, i, 2), make(3, 4), torch.tensor([7]))
    check_error(lambda x, i: x.index_fill_(0, i, 2), make(3, 4), i.int())
    check_error(lambda x, i: x.index_fill_(3, i, 2), make(3, 4), i)
    check_error(lambda x, i: x.index_fill_(0, i, 2j), make(3, 4), i)
    check_error(lambda x, i: x.index_fill_(0, i, 2), make(3, 4), torch.tensor([[0]]))


def test_index_add_edges() -> None:
    check(lambda x, i, s: x.index_add(0, i, s), torch.tensor(1.0), torch.tensor(0), torch.tensor(2.0))
    check(lambda x, i, s: x.index_add(0, i, s), make(3, 2), torch.tensor([1, 1, 1]), make(3, 2), rtol=1e-6, atol=1e-6)
    check(lambda x, i, s: x.index_add(0, i, s), make(3, 2), torch.empty(0, dtype=torch.int64), torch.empty(0, 2))
    check(lambda x, i, s: x.index_copy(0, i, s), torch.tensor(1.0), torch.tensor([0]), torch.tensor([2.0]))
    check_error(lambda x, i, s: x.index_add(0, i, s), make(3, 2), torch.tensor([1]), make(2, 2))
    check_error(lambda x, i, s: x.index_copy(0, i, s), make(3, 2), torch.tensor([1, 2]), make(1, 2))


@pytest.mark.parametrize("dtype", MOVED)
def test_masks(dtype: torch.dtype) -> None:
    x, mask = make(4, 5, dtype=dtype), make(4, 5, dtype=torch.bool, seed=3)
    check(lambda x: x.nonzero(), x)
    check(lambda x: x.t().nonzero(), x)
    check(lambda x: torch.nonzero(x, as_tuple=True), x)
    check(lambda x, m: x.masked_select(m), x, mask)
    check(lambda x, m: x.t().masked_select(m.t()), x, mask)
    check(lambda x, m: x.masked_select(m[0]), x, mask)
    check(lambda x, m, s: x.masked_scatter_(m, s), x, mask, make(4, 5, dtype=dtype, seed=4))


def test_mask_edges() -> None:
    check(lambda x: x.nonzero(), torch.tensor(3.0))
    check(lambda x: x.nonzero(), torch.tensor(0.0))
    check(lambda x: x.nonzero(), torch.tensor([-0.0, float("nan"), 0.0]))
    check(lambda x: x.nonzero(), torch.empty(0, 3))
    check(lambda x: x.nonzero(), torch.zeros(3))
    check(lambda x, o: torch.nonzero(x, out=o), make(3, 3), torch.empty(0, dtype=torch.int64))
    check(lambda x, m: x.masked_select(m), make(3), torch.tensor(True))
    check(lambda x, m: x.masked_select(m), torch.tensor(1.0), torch.tensor([True, False, True]))
    check(lambda x, m, o: torch.masked_select(x, m, out=o), make(3), torch.tensor([True, False, True]), torch.empty(0))
    check_error(lambda x, m: x.masked_select(m), make(3), torch.ones(3))
    check_error(lambda x, m: x.masked_select(m), make(3), torch.ones(4, dtype=torch.bool))
    check_error(lambda x, o: torch.nonzero(x, out=o), make(3), torch.empty(0))
    check_error(lambda x, m, s: x.masked_scatter_(m, s), make(3), torch.ones(3, dtype=torch.bool), make(2))


# ---- order and search


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("descending", [False, True])
def test_sort(dtype: torch.dtype, descending: bool) -> None:
    x = make(6, 7, 5, dtype=dtype)
    for dim in (0, 1, -1):
        check(lambda x: x.sort(dim=dim, descending=descending, stable=True), x)  # noqa: B023
    check(lambda x: x.transpose(0, 2).sort(dim=1, descending=descending, stable=True), x)
    check(lambda x: x.argsort(dim=0, descending=descending, stable=True), x)


def test_sort_edges() -> None:
    nan, inf = float("nan"), float("inf")
    special = torch.tensor([1.0, nan, -inf, inf, 0.0, -0.0, nan, -1.0])
    for descending in (False, True):
        check(lambda x: x.sort(descending=descending, stable=True), special)  # noqa: B023
    check(lambda x: x.sort(), torch.tensor(2.0))
    check(lambda x: x.sort(dim=0), torch.empty(3, 0))
    check(lambda x: x.sort(dim=1), torch.empty(3, 0))
    check(lambda x: x.sort(dim=0), make(1, 4))
    values, indices = torch.empty(0), torch.empty(0, dtype=torch.int64)
    check(lambda x, v, i: torch.sort(x, out=(v, i)), make(9), values, indices)
    check_error(lambda x: x.sort(dim=2), make(2, 2))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
def test_topk(dtype: torch.dtype) -> None:
    x = torch.randperm(120, generator=torch.Generator().manual_seed(0)).view(4, 30).to(dtype)  # no two are equal
    for k, largest in itertools.product((0, 1, 5, 30), (True, False)):
        check(lambda x: x.topk(k, dim=1, largest=largest), x)  # noqa: B023
    check(lambda x: x.topk(2, dim=0), x)
    check(lambda x: x.t().topk(3, dim=0), x)


def test_topk_edges() -> None:
    check(lambda x: x.topk(1), torch.tensor(3.0))
    check(lambda x: x.topk(2), torch.tensor([1.0, float("nan"), 3.0]))
    check(lambda x: x.topk(0), torch.empty(0))
    check_error(lambda x: x.topk(4), make(3))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(dtype: torch.dtype, right: bool) -> None:
    rows, values = make(3, 9, dtype=dtype).sort(dim=1).values, make(3, 5, dtype=dtype, seed=2)
    check(lambda s, v: torch.searchsorted(s, v, right=right), rows, values)
    check(lambda s, v: torch.searchsorted(s[0], v, right=right), rows, values)
    check(lambda s, v: torch.bucketize(v, s[0], right=right, out_int32=True), rows, values)
    check(lambda s, v: torch.searchsorted(s[0], v.t(), right=right), rows, values)
    check(lambda s, v: torch.searchsorted(s[0], 3, right=right), rows, values)


def test_searchsorted_edges() -> None:
    sequence = torch.tensor([1.0, 3.0, 5.0])
    check(lambda s, v: torch.searchsorted(s, v), sequence, torch.tensor(3.0))
    check(lambda s, v: torch.searchsorted(s, v), sequence, torch.tensor([3, 4]))
    check(lambda s, v: torch.searchsorted(s, v), sequence, torch.tensor([1.0, float("nan")]))
    check(lambda s, v: torch.searchsorted(s[:0], v), sequence, torch.tensor([1.0, 2.0]))
    check(lambda s, v: torch.searchsorted(s, v[:0]), sequence, torch.tensor([1.0, 2.0]))
    check(lambda s, v: torch.searchsorted(s, v, side="right"), sequence, torch.tensor([3.0]))
    unsorted, order = torch.tensor([5.0, 1.0, 3.0]), torch.tensor([1, 2, 0])
    check(lambda s, v, o: torch.searchsorted(s, v, sorter=o), unsorted, torch.tensor([3.0, 4.0]), order)
    check(lambda s: torch.bucketize(2, s), sequence)
    check(lambda s, v, o: torch.searchsorted(s, v, out=o), sequence, torch.tensor([3.0]),
          torch.empty(0, dtype=torch.int64))
    check_error(lambda s, v: torch.searchsorted(s, v, side="up"), sequence, torch.tensor([3.0]))
    check_error(lambda s, v: torch.searchsorted(s, v, side="left", right=True), sequence, torch.tensor([3.0]))
    check_error(lambda s, v: torch.searchsorted(s.view(1, 3), v), sequence, torch.tensor(3.0))
    check_error(lambda s, v: torch.bucketize(v, s.view(1, 3)), sequence, torch.tensor([3.0]))
    check_error(lambda s, v, o: torch.searchsorted(s, v, sorter=o), unsorted, torch.tensor([3.0]), torch.tensor([0, 1]))


@pytest.mark.parametrize("dtype", INTS)
def test_bincount(dtype: torch.dtype) -> None:
    x = index(9, 100).to(dtype)
    check(lambda x: x.bincount(), x)
    check(lambda x: x.bincount(minlength=20), x)
    check(lambda x, w: x.bincount(w), x, make(100), rtol=1e-5, atol=1e-5)
    check(lambda x, w: x.bincount(w), x, make(100, dtype=torch.int32))
    check(lambda x: x.bincount(minlength=3), x[:0])


def test_bincount_errors() -> None:
    check_error(lambda x: x.bincount(), torch.tensor([[1]]))
    check_error(lambda x: x.bincount(), torch.tensor([-1]))
    check_error(lambda x: x.bincount(), torch.tensor([1.0]))
    check_error(lambda x: x.bincount(minlength=-1), torch.tensor([1]))
    check_error(lambda x, w: x.bincount(w), torch.tensor([1, 2]), torch.tensor([1.0]))


# ---- moving and making


@pytest.mark.parametrize("dtype", MOVED)
def test_cat(dtype: torch.dtype) -> None:
    a, b = make(3, 4, dtype=dtype), make(3, 4, dtype=dtype, seed=2)
    for dim in (0, 1, -1):
        check(lambda a, b: torch.cat([a, b, a], dim), a, b)  # noqa: B023
        check(lambda a, b: torch.cat([a.t(), b.t()], dim), a, b)  # noqa: B023
        check(lambda a, b: torch.stack([a, b], dim), a, b)  # noqa: B023
    check(lambda a, b: torch.cat([a, b[:0], torch.empty(0, dtype=a.dtype, device=a.device)]), a, b)


def test_cat_edges() -> None:
    a = make(2, 3)
    check(lambda a, b: torch.cat([a, b]), a, torch.ones(1, 3, dtype=torch.int64))
    check(lambda a, b: torch.cat([a, b]), a.half(), torch.ones(1, 3))
    check(lambda a, o: torch.cat([a, a], out=o), a, torch.empty(0))
    check(lambda a, o: torch.cat([a, a], out=o), a, torch.empty(0, dtype=torch.float64))
    check(lambda a: torch.cat([a[:0], a[:0]]), a)
    channels_last = make(2, 3, 4, 5).to(memory_format=torch.channels_last)
    check(lambda a: torch.cat([a, a], 1), channels_last)
    check_error(lambda a: torch.cat([a, a[0]]), a)
    check_error(lambda a: torch.cat([a, a[:, :2]]), a)
    check_error(lambda a: torch.cat([]), a)
    with pytest.raises(RuntimeError, match="same device"):
        torch.cat([a.to(DEVICE), a])


@pytest.mark.parametrize("dtype", MOVED)
def test_triangles(dtype: torch.dtype) -> None:
    x = make(2, 4, 5, dtype=dtype)
    for k in (-2, 0, 1, 9, -9):
        check(lambda x: x.triu(k), x)  # noqa: B023
        check(lambda x: x.tril(k), x)  # noqa: B023
        check(lambda x: x.triu_(k), x)  # noqa: B023
        check(lambda x: x.transpose(1, 2).tril_(k), x)  # noqa: B023


@pytest.mark.parametrize("dtype", MOVED)
def test_flip(dtype: torch.dtype) -> None:
    x = make(2, 3, 4, dtype=dtype)
    for dims in ([], [0], [-1], [0, 2], [0, 1, 2]):
        check(lambda x: x.flip(dims), x)  # noqa: B023
        check(lambda x: x.transpose(0, 1).flip(dims), x)  # noqa: B023
    check(lambda x: x.flip([0]), torch.tensor(1))
    check(lambda x: x.flip([0]), torch.empty(0, 2))
    check_error(lambda x: x.flip([0, 0]), x)
    check_error(lambda x: x.flip([3]), x)


def made(function: object, *args: object, **options: object) -> None:
    expected = function(*args, **options)  # type: ignore[operator]
    # The CPU computes ranges of half types in half, the device in double.
    close = 2e-2 if expected.dtype.itemsize == 2 and expected.dtype.is_floating_point else 1e-6
    assert_same(function(*args, **options, device=DEVICE), expected, rtol=close, atol=close)  # type: ignore[operator]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
def test_arange_and_linspace(dtype: torch.dtype) -> None:
    for args in ((7,), (2, 9), (1, 20, 3), (0, 0), (0.0, 6.0, 1.5)):
        made(torch.arange, *args, dtype=dtype)
    if dtype != torch.uint8:
        made(torch.arange, 5, -5, -2, dtype=dtype)
        made(torch.linspace, -5, 20, 7, dtype=dtype)
    for steps in (0, 1, 2, 5, 100):
        made(torch.linspace, 0, 20, steps, dtype=dtype)


def test_creation_edges() -> None:
    made(torch.arange, 0.1, 1.0, 0.1)
    made(torch.arange, 2**53, 2**53 + 5)
    for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64):
        for size in ((3,), (3, 5), (5, 3), (0,), (3, 0)):
            made(torch.eye, *size, dtype=dtype)
    made(torch.linspace, 0, 1, 5, dtype=torch.complex64)
    out = torch.empty(2, 3, device=DEVICE)
    assert torch.arange(6, out=out).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert torch.arange(6, out=torch.empty(3, 2, device=DEVICE).t()).tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.warns(UserWarning, match="will be resized"):
        assert torch.arange(5, out=torch.empty(2, device=DEVICE)).shape == (5,)
    for bad in (lambda: torch.eye(-1, device=DEVICE), lambda: torch.linspace(0, 1, -1, device=DEVICE),
                lambda: torch.arange(0, 3, 0, device=DEVICE), lambda: torch.arange(0, -3, device=DEVICE)):
        with pytest.raises(RuntimeError):
            bad()
    with pytest.raises(NotImplementedError):
        torch.arange(0, 3, dtype=torch.bool, device=DEVICE)


# ---- embedding and nll_loss


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}, {"scale_grad_by_freq": True}])
def test_embedding(dtype: torch.dtype, options: dict[str, object]) -> None:
    def both_ways(weight: torch.Tensor, indices: torch.Tensor,
                  grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        weight = weight.detach().requires_grad_()
        out = F.embedding(indices, weight, **options)  # type: ignore[arg-type]
        out.backward(grad)
        return out.detach(), weight.grad

    indices = torch.tensor([[1, 4, 1], [0, 6, 4]])
    close = {"rtol": 1e-2, "atol": 1e-2} if dtype.itemsize == 2 else {"rtol": 1e-6, "atol": 1e-6}
    check(both_ways, make(7, 5, dtype=dtype), indices, make(2, 3, 5, dtype=dtype, seed=2), **close)
    check(both_ways, make(7, 5, dtype=dtype), indices[0, 0], make(5, dtype=dtype, seed=2), **close)
    check(both_ways, make(7, 5, dtype=dtype), indices[:0], make(0, 3, 5, dtype=dtype), **close)


def test_embedding_edges() -> None:
    check_error(lambda w, i: F.embedding(i, w), make(3, 2), torch.tensor([3]))
    check(lambda w, i: F.embedding(i, w, max_norm=0.5), make(5, 3), torch.tensor([1, 1, 4]), rtol=1e-5, atol=1e-6)
    grad = make(2, 3).to(DEVICE)
    with pytest.raises(RuntimeError, match="scalar types"):
        short = torch.tensor([0, 1], dtype=torch.int16, device=DEVICE)
        torch.ops.aten.embedding_dense_backward(grad, short, 4, -1, False)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(6, 4), (4,), (2, 4, 3), (2, 4, 3, 5), (2, 4, 2, 3, 2)])
def test_nll_loss(dtype: torch.dtype, reduction: str, weighted: bool, shape: tuple[int, ...]) -> None:
    def both_ways(x: torch.Tensor, target: torch.Tensor,
                  weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        x = x.detach().requires_grad_()
        loss = F.nll_loss(x, target, weight if weighted else None, ignore_index=2, reduction=reduction)
        loss.backward(torch.ones_like(loss))
        return loss.detach(), x.grad

    positions = (*shape[:1], *shape[2:]) if len(shape) > 1 else ()
    close = {"rtol": 1e-2, "atol": 1e-2} if dtype.itemsize == 2 else {"rtol": 1e-5, "atol": 1e-6}
    check(both_ways, make(*shape, dtype=dtype), index(4, *positions), make(4, dtype=dtype, seed=2).abs(), **close)


def test_nll_loss_edges() -> None:
    for reduction in ("none", "mean", "sum"):
        check(lambda x, t: F.nll_loss(x, t, reduction=reduction), torch.empty(0, 4), torch.empty(0, dtype=torch.int64))  # noqa: B023
        check(lambda x, t: F.nll_loss(x, t, reduction=reduction), torch.empty(0, 4, 2, 2),  # noqa: B023
              torch.empty(0, 2, 2, dtype=torch.int64))
        check(lambda x, t: F.nll_loss(x, t, reduction=reduction, ignore_index=1), make(2, 4),  # noqa: B023
              torch.ones(2, dtype=torch.int64))
    check(lambda x, t: F.nll_loss(x, t), make(2, 4), torch.tensor([1, 2], dtype=torch.uint8), rtol=1e-6, atol=1e-6)
    check(lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), make(5, 4), index(4, 5), rtol=1e-6, atol=1e-6)
    check_error(lambda x, t: F.nll_loss(x, t), make(3, 4), torch.tensor([0, 1, 9]))
    check_error(lambda x, t: F.nll_loss(x, t), make(3, 4), torch.tensor([0, 1, 2], dtype=torch.int32))
    check_error(lambda x, t: F.nll_loss(x, t), make(3, 4), torch.tensor([0, 1]))
    check_error(lambda x, t, w: F.nll_loss(x, t, w), make(3, 4), torch.tensor([0, 1, 2]),
                torch.ones(4, dtype=torch.float64))
    check_error(lambda x, t, w: F.nll_loss(x, t, w), make(3, 4), torch.tensor([0, 1, 2]), torch.ones(3))
    check_error(lambda x, t: F.nll_loss(x, t), make(2, 3, 4, 5), torch.zeros(2, 4, 6, dtype=torch.int64))
