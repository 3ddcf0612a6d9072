"""Indexing, sorting, loss and optimizer kernels of the ninguang library against torch on the CPU."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
from kernels_python import NOT_SUPPORTED, OUT_OF_RANGE, TYPES, Chip, Immediate, NgError

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
REALS = FLOATS + INTS


@pytest.fixture(scope="module")
def chip() -> Chip:
    return Chip()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(7)


def make(shape, dtype, low=-9, high=10):
    """Random values that every type holds exactly."""
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_complex:
        return torch.complex(torch.randn(shape), torch.randn(shape)).to(dtype)
    if dtype == torch.uint8:
        low = 0
    return torch.randint(low, high, shape).to(dtype)


def spread(t, dims=None):
    """The same values with gaps between elements and dimensions stored in another order."""
    order = list(dims or reversed(range(t.ndim)))
    moved = t.permute(order)
    room = torch.zeros([2 * s for s in moved.shape], dtype=t.dtype)
    view = room[tuple(slice(None, None, 2) for _ in order)]
    view.copy_(moved)
    return view.permute([order.index(d) for d in range(t.ndim)])


def layouts(t):
    return [t.contiguous(), spread(t)] if t.ndim else [t]


def same(actual, expected, **tolerance):
    if tolerance:
        torch.testing.assert_close(actual, expected, equal_nan=True, **tolerance)
    else:
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def fails_out_of_range(run, words):
    with pytest.raises(NgError) as info:
        run()
    assert info.value.code == OUT_OF_RANGE
    assert words in str(info.value)


# ---------------------------------------------------------------- gather, index_select, index


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape,dim", [((7,), 0), ((5, 6), 0), ((5, 6), 1), ((3, 4, 5), 1), ((130, 300), 0), ((), 0)])
def test_gather(chip, dtype, shape, dim):
    source = make(shape, dtype)
    extent = shape[dim] if shape else 1
    for wide, x in itertools.product((torch.int64, torch.int32), layouts(source)):
        sizes = list(shape)
        if sizes:
            sizes[dim] += 2
        index = torch.randint(0, extent, sizes)
        for idx in layouts(index):
            out = torch.empty(sizes, dtype=dtype)
            idx = idx if wide == torch.int64 else idx.to(wide)
            chip.run("gather", [x, idx], out, [dim])
            same(out, torch.gather(source, dim, index))


def test_gather_smaller_index_and_strided_out(chip):
    x, index = make((6, 7, 8), torch.float32), torch.randint(0, 7, (4, 5, 3))
    out = spread(torch.empty(4, 5, 3))
    chip.run("gather", [x, index], out, [1])
    same(out.contiguous(), torch.gather(x, 1, index))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape,dim", [((9,), 0), ((5, 6), 0), ((5, 6), 1), ((3, 4, 5), 1), ((200, 333), 0), ((), 0)])
def test_index_select(chip, dtype, shape, dim):
    source = make(shape, dtype)
    extent = shape[dim] if shape else 1
    count = 11 if shape else 1
    index = torch.randint(0, extent, (count,))
    for x, idx in itertools.product(layouts(source), [index, index.to(torch.int32), spread(index)]):
        expected = torch.index_select(source, dim, index)
        out = torch.empty_like(expected)
        chip.run("index_select", [x, idx], out, [dim])
        same(out, expected)


def test_gather_out_of_range(chip):
    x = torch.randn(4, 5)
    for bad in (5, -1, 1 << 40):
        index = torch.zeros(4, 5, dtype=torch.int64)
        index[2, 3] = bad
        fails_out_of_range(
            lambda index=index: chip.run("gather", [x, index], torch.empty(4, 5), [1]),
            f"index {bad} is out of bounds for dimension 1 with size 5",
        )
        fails_out_of_range(
            lambda bad=bad: chip.run("index_select", [x, torch.tensor([0, bad])], torch.empty(2, 5), [0]),
            f"index {bad} is out of bounds for dimension 0 with size 4",
        )
    chip.run("gather", [x, torch.zeros(4, 5, dtype=torch.int64)], torch.empty(4, 5), [1])  # the stream works on


def advanced(x, indices):
    """What the host hands to `index`: x restrided, indices expanded, sizes and strides; indices on leading dims."""
    count = len(indices)
    shape = torch.broadcast_shapes(*[i.shape for i in indices])
    rest = x.shape[count:]
    view = x.as_strided([*shape, *rest], [0] * len(shape) + list(x.stride()[count:]), x.storage_offset())
    expanded = []
    for index in indices:
        index = index.expand(shape)
        expanded.append(index.as_strided([*shape, *rest], [*index.stride(), *[0] * len(rest)], index.storage_offset()))
    return view, expanded, [*x.shape[:count], *x.stride()[:count]]


INDEX_CASES = [
    ((10,), [(7,)]),
    ((10, 6), [(7,)]),
    ((10, 6), [(7,), (7,)]),
    ((10, 6), [(7, 1), (1, 3)]),
    ((4, 5, 6), [(2, 3), (3,)]),
    ((4, 5, 6), [(2, 3), (1,), (2, 1)]),
    ((100, 500), [(60,)]),
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape,index_shapes", INDEX_CASES)
def test_index(chip, dtype, shape, index_shapes):
    source = make(shape, dtype)
    indices = [torch.randint(-shape[k], shape[k], s) for k, s in enumerate(index_shapes)]
    expected = source[tuple(indices)]
    for x in layouts(source):
        view, expanded, attrs = advanced(x, indices)
        for out in layouts(torch.empty_like(expected)):
            chip.run("index", [view, *expanded], out, attrs)
            same(out.contiguous(), expected)
    narrow = [i.to(torch.int32) for i in indices]
    view, expanded, attrs = advanced(source, narrow)
    out = torch.empty_like(expected)
    chip.run("index", [view, *expanded], out, attrs)
    same(out, expected)


def test_index_out_of_range(chip):
    x = torch.randn(4, 5)
    for bad in (4, -5):
        view, expanded, attrs = advanced(x, [torch.tensor([0, bad, 1])])
        fails_out_of_range(
            lambda view=view, expanded=expanded, attrs=attrs: chip.run(
                "index", [view, *expanded], torch.empty(3, 5), attrs
            ),
            f"index {bad} is out of bounds for dimension 0 with size 4",
        )


# ---------------------------------------------------------------- scatter family


def distinct_index(shape, dim, extent):
    """An index without repetitions along dim, so that scatter's result is defined."""
    index = torch.argsort(torch.rand([extent if d == dim else s for d, s in enumerate(shape)]), dim)
    return index.narrow(dim, 0, shape[dim]).contiguous()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "shape,dim", [((7,), 0), ((5, 6), 0), ((5, 6), 1), ((3, 4, 5), 1), ((90, 200), 0), ((90, 200), 1)]
)
def test_scatter(chip, dtype, shape, dim):
    target, values = make([s + 3 for s in shape], dtype), make(shape, dtype)
    index = distinct_index(shape, dim, shape[dim] + 3)
    expected = target.scatter(dim, index, values)
    for src, idx, out in itertools.product(layouts(values), layouts(index), layouts(target)):
        out = out.clone(memory_format=torch.preserve_format)
        chip.run("scatter", [idx, src], out, [dim], dtype=dtype)
        same(out, expected)
    number = 1
    out = target.clone()
    chip.run("scatter", [index.to(torch.int32), Immediate(number, dtype)], out, [dim], dtype=dtype)
    same(out, target.scatter(dim, index, number))


def test_scatter_last_of_repeated_wins(chip):
    for n in (50, 200_000):
        index, values = torch.randint(0, n // 4, (n,)), torch.randn(n)
        out = torch.zeros(n // 4)
        chip.run("scatter", [index, values], out, [0], dtype=torch.float32)
        expected = torch.zeros(n // 4)
        last = torch.full((n // 4,), -1).scatter_reduce_(0, index, torch.arange(n), "amax")
        expected[last >= 0] = values[last[last >= 0]]
        same(out, expected)


MODES = ["sum", "prod", "amax", "amin"]


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize(
    "shape,dim", [((40,), 0), ((15, 6), 0), ((5, 16), 1), ((3, 9, 5), 1), ((400, 90), 0), ((70_000,), 0)]
)
def test_scatter_reduce(chip, dtype, mode, shape, dim):
    extent = 4 if shape[0] < 1000 else 3000
    values = make(shape, dtype, -2, 3)
    target = make([extent if d == dim else s for d, s in enumerate(shape)], dtype, -2, 3)
    index = torch.randint(0, extent, shape)
    expected = target.scatter_reduce(dim, index, values, MODES[mode])
    for src, idx, out in itertools.product(layouts(values), layouts(index), layouts(target)):
        out = out.clone(memory_format=torch.preserve_format)
        chip.run("scatter_reduce", [idx, src], out, [dim, mode], dtype=dtype)
        same(out, expected)


def test_scatter_reduce_nan_bool_complex(chip):
    target, values = torch.tensor([1.0, math.nan, 3.0]), torch.tensor([math.nan, 5.0, 7.0, -1.0])
    index = torch.tensor([0, 1, 2, 2])
    for mode in (2, 3):
        out = target.clone()
        chip.run("scatter_reduce", [index, values], out, [0, mode], dtype=torch.float32)
        same(out, target.scatter_reduce(0, index, values, MODES[mode]))
    flags = torch.tensor([False, True, False])
    chip.run("scatter_reduce", [torch.tensor([0, 0]), torch.tensor([False, True])], flags, [0, 0], dtype=torch.bool)
    assert flags.tolist() == [True, True, False]
    z, w = make((3,), torch.complex64), make((4,), torch.complex64)
    out = z.clone()
    chip.run("scatter_reduce", [index, w], out, [0, 0], dtype=torch.complex64)
    same(out, z.scatter_add(0, index, w), rtol=1e-6, atol=1e-6)
    with pytest.raises(NgError) as info:
        chip.run("scatter_reduce", [index, w], out, [0, 2], dtype=torch.complex64)
    assert info.value.code == NOT_SUPPORTED


def test_scatter_out_of_range_writes_nothing_outside(chip):
    room = torch.zeros(30)
    out = room[10:20]
    index = torch.tensor([0, 10, -1, 15, 3])
    fails_out_of_range(
        lambda: chip.run("scatter", [index, torch.ones(5)], out, [0], dtype=torch.float32),
        "for dimension 0 with size 10",
    )
    for name, attrs in (("scatter_reduce", [0, 0]), ("index_add", [0, 1]), ("index_copy", [0])):
        fails_out_of_range(
            lambda name=name, attrs=attrs: chip.run(name, [index, torch.ones(5)], out, attrs, dtype=torch.float32),
            "is out of bounds for dimension 0 with size 10",
        )
    assert room.sum() == 0


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape,dim", [((7,), 0), ((5, 6), 0), ((5, 6), 1), ((3, 4, 5), 1), ((60, 700), 0), ((), 0)])
def test_index_add_and_copy(chip, dtype, shape, dim):
    target = make(shape, dtype)
    sizes = list(shape)
    count, extent = (9, shape[dim]) if shape else (1, 1)
    if sizes:
        sizes[dim] = count
    values = make(sizes, dtype, -3, 4)
    index = torch.randint(0, extent, (count,))
    for alpha in (1, 2):
        if dtype == torch.bool and alpha != 1:
            continue
        expected = target.index_add(dim, index, values, alpha=alpha)
        for src, out in itertools.product(layouts(values), layouts(target)):
            out = out.clone(memory_format=torch.preserve_format)
            chip.run("index_add", [index, src], out, [dim, alpha], dtype=dtype)
            tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype.is_complex else {}
            same(out, expected, **tolerance)
    once = torch.randperm(extent)[: min(extent, 3)]
    part = values.narrow(dim, 0, len(once)) if shape else values
    out = target.clone()
    chip.run("index_copy", [once.to(torch.int32), part], out, [dim], dtype=dtype)
    same(out, target.index_copy(dim, once, part))
    out = target.clone()
    chip.run("index_copy", [once, Immediate(1, dtype)], out, [dim], dtype=dtype)
    same(out, target.index_fill(dim, once, 1))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("shape,index_shapes", INDEX_CASES)
def test_index_put(chip, dtype, accumulate, shape, index_shapes):
    target = make(shape, dtype)
    indices = [torch.randint(-shape[k], shape[k], s) for k, s in enumerate(index_shapes)]
    if not accumulate:  # each place once, or the result is not defined
        places = torch.stack(
            [i.expand(torch.broadcast_shapes(*map(tuple, index_shapes))) % shape[k] for k, i in enumerate(indices)]
        )
        flat = functools.reduce(lambda a, k: a * shape[k] + places[k], range(1, len(indices)), places[0])
        if flat.unique().numel() != flat.numel():
            values = make((), dtype).expand_as(target[tuple(indices)])
        else:
            values = make(target[tuple(indices)].shape, dtype)
    else:
        values = make(target[tuple(indices)].shape, dtype, -3, 4)
    expected = target.index_put(tuple(indices), values, accumulate)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype.is_complex else {}
    for start in layouts(target):
        out = start.clone(memory_format=torch.preserve_format)
        view, expanded, attrs = advanced(out, indices)
        chip.run("index_put", [values, *expanded], view, [*attrs, accumulate], dtype=dtype)
        same(out, expected, **tolerance)
    out = target.clone()
    view, expanded, attrs = advanced(out, indices)
    chip.run("index_put", [Immediate(1, dtype), *expanded], view, [*attrs, accumulate], dtype=dtype)
    same(out, target.index_put(tuple(indices), torch.tensor(1).to(dtype), accumulate), **tolerance)


def test_index_put_many_repeats_all_count(chip):
    n = 300_000
    index = torch.randint(0, 50, (n,))
    out = torch.zeros(50, dtype=torch.int64)
    view, expanded, attrs = advanced(out, [index])
    chip.run("index_put", [Immediate(1, torch.int64), *expanded], view, [*attrs, True], dtype=torch.int64)
    same(out, torch.bincount(index, minlength=50))


# ---------------------------------------------------------------- cat, triangle, flip


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_cat(chip, dtype, dim):
    parts = []
    for k, size in enumerate((2, 5, 1)):
        shape = [3, 4, 6]
        shape[dim] = size
        part = make(shape, dtype)
        parts.append(spread(part) if k == 1 else part)
    expected = torch.cat(parts, dim)
    for out in layouts(torch.empty_like(expected)):
        chip.run("cat", parts, out, [dim])
        same(out.contiguous(), expected)


def test_cat_large_and_empty(chip):
    parts = [torch.randn(700, 300), torch.empty(0), torch.randn(20, 300)]
    out = torch.empty(720, 300)
    chip.run("cat", parts, out, [0])
    same(out, torch.cat(parts))
    images = torch.randn(2, 8, 9, 9).to(memory_format=torch.channels_last)
    out = torch.empty(2, 16, 9, 9).to(memory_format=torch.channels_last)
    chip.run("cat", [images, images], out, [1])
    same(out, torch.cat([images, images], 1))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(5, 5), (4, 7), (2, 6, 3), (300, 200)])
def test_triangle(chip, dtype, shape):
    source = make(shape, dtype)
    for x, diagonal in itertools.product(layouts(source), (-9, -1, 0, 2, 9)):
        for upper, function in ((0, torch.tril), (1, torch.triu)):
            out = torch.empty(shape, dtype=dtype)
            chip.run("triangle", [x], out, [diagonal, upper])
            same(out, function(source, diagonal))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dims", [[0], [1], [2], [0, 2], [0, 1, 2]])
def test_flip(chip, dtype, dims):
    source = make((3, 4, 5), dtype)
    for x in layouts(source):
        out = torch.empty(3, 4, 5, dtype=dtype)
        chip.run("flip", [x], out, dims)
        same(out, source.flip(dims))


# ---------------------------------------------------------------- nonzero, masked_select, searchsorted, bincount


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(50,), (6, 7), (3, 4, 5), (300, 301), (1,), ()])
def test_nonzero_and_masked_select(chip, dtype, shape):
    source = make(shape, dtype, -1, 2)
    mask = torch.rand(shape) > 0.4
    count = torch.zeros((), dtype=torch.int64)
    for x in layouts(source):
        out = torch.full((max(source.numel(), 1), source.ndim), -7)
        chip.run("nonzero", [x], [out, count], dtype=dtype)
        expected = source.nonzero()
        assert count.item() == len(expected)
        same(out[: len(expected)], expected)
        out = torch.empty(source.numel(), dtype=dtype)
        chip.run("masked_select", [x, mask], [out, count])
        expected = source.masked_select(mask)
        assert count.item() == len(expected)
        same(out[: len(expected)], expected)


def test_nonzero_of_special_floats(chip):
    x = torch.tensor([0.0, -0.0, math.nan, -math.inf, 1e-45])
    for dtype in FLOATS:
        out, count = torch.empty(5, 1, dtype=torch.int64), torch.zeros((), dtype=torch.int64)
        chip.run("nonzero", [x.to(dtype)], [out, count], dtype=dtype)
        same(out[: count.item()], x.to(dtype).nonzero())


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(chip, dtype, right):
    sequence = make((30,), dtype).sort().values
    values = make((5, 40), dtype)
    rows = make((5, 17), dtype).sort(-1).values
    for out_type in (torch.int64, torch.int32):
        out = torch.empty(5, 40, dtype=out_type)
        int32 = out_type == torch.int32
        chip.run("searchsorted", [sequence, values, None], out, [right])
        same(out, torch.searchsorted(sequence, values, right=right, out_int32=int32))
        chip.run("searchsorted", [rows, values, None], out, [right])
        same(out, torch.searchsorted(rows, values, right=right, out_int32=int32))
    shuffled = make((5, 17), dtype)
    order = torch.argsort(shuffled, dim=-1, stable=True)
    out = torch.empty(5, 40, dtype=torch.int64)
    chip.run("searchsorted", [shuffled, values, order], out, [right])
    same(out, torch.searchsorted(shuffled, values, right=right, sorter=order))
    one = torch.empty((), dtype=torch.int64)
    chip.run("searchsorted", [sequence, Immediate(3, dtype), None], one, [right])
    same(one, torch.searchsorted(sequence, torch.tensor(3).to(dtype), right=right))


def test_searchsorted_nan(chip):
    sequence = torch.tensor([1.0, 2.0, math.nan, math.nan])
    values = torch.tensor([math.nan, 0.0, 2.0, math.inf])
    for right in (False, True):
        out = torch.empty(4, dtype=torch.int64)
        chip.run("searchsorted", [sequence, values, None], out, [right])
        same(out, torch.searchsorted(sequence, values, right=right))


@pytest.mark.parametrize("dtype", INTS)
def test_bincount(chip, dtype):
    for n in (40, 200_000):
        x = torch.randint(0, 100, (n,)).to(dtype)
        out = torch.full((110,), -3)
        chip.run("bincount", [x, None], out, dtype=dtype)
        same(out, torch.bincount(x, minlength=110))
        for weight_type in (torch.float32, torch.float64):
            weights = torch.rand(n, dtype=weight_type)
            out = torch.full((110,), -3, dtype=weight_type)
            chip.run("bincount", [x, weights], out, dtype=dtype)
            same(out, torch.bincount(x, weights, minlength=110))
    fails_out_of_range(
        lambda: chip.run("bincount", [x, None], torch.empty(50, dtype=torch.int64), dtype=dtype), "size 50"
    )


# ---------------------------------------------------------------- embedding_backward


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "rows,shape,width", [(10, (40,), 5), (300, (20, 30), 64), (5, (3, 2, 2), 33), (4, (5000,), 16)]
)
def test_embedding_backward(chip, dtype, rows, shape, width):
    index = torch.randint(0, rows, shape)
    grad = make((*shape, width), torch.float32, -2, 3)
    for padding, by_freq in itertools.product((-1, 1), (False, True)):
        expected = torch.ops.aten.embedding_dense_backward(grad, index, rows, padding, by_freq)
        for g, idx in ((grad, index), (spread(grad, range(grad.ndim)), index.to(torch.int32))):
            out = torch.full((rows, width), math.nan, dtype=dtype)
            chip.run("embedding_backward", [g.to(dtype), idx], out, [padding, by_freq])
            precision = {torch.float16: 1e-3, torch.bfloat16: 1e-2}.get(dtype, 1e-5)
            same(out.float(), expected, rtol=precision, atol=precision)
    bad = index.clone().flatten()
    bad[1] = rows
    fails_out_of_range(
        lambda: chip.run("embedding_backward", [grad.reshape(-1, width).to(dtype), bad], out, [-1, False]),
        f"index {rows} is out of bounds for dimension 0 with size {rows}",
    )


# ---------------------------------------------------------------- sort, topk


def sortable(shape, dtype, kind):
    if dtype == torch.bool:
        return make(shape, dtype)
    if kind == "repeated":
        return make(shape, dtype, -5, 6)
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max, shape, dtype=dtype)
    x = torch.randn(shape).to(dtype)
    x[torch.rand(shape) < 0.1] = math.nan
    x[torch.rand(shape) < 0.1] = -0.0
    x[torch.rand(shape) < 0.1] = 0.0
    x[torch.rand(shape) < 0.05] = math.inf
    x[torch.rand(shape) < 0.05] = -math.inf
    return x


SORT_SHAPES = [
    ((1,), 0),
    ((13,), 0),
    ((5, 40), 0),
    ((5, 300), 1),
    ((3, 900, 4), 1),
    ((2000,), 0),
    ((150_000,), 0),
    ((), 0),
]


@pytest.mark.parametrize("dtype", [*REALS, torch.bool])
@pytest.mark.parametrize("kind", ["spread", "repeated"])
@pytest.mark.parametrize("shape,dim", SORT_SHAPES)
def test_sort(chip, dtype, kind, shape, dim):
    source = sortable(shape, dtype, kind)
    for x, descending in itertools.product(layouts(source), (False, True)):
        expected = torch.sort(source, dim=dim, descending=descending, stable=True)
        values, indices = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=torch.int64)
        chip.run("sort", [x], [values, indices], [dim, descending])
        same(values, expected.values)
        same(indices, expected.indices)


def test_sort_into_strided(chip):
    x = torch.randn(6, 7, 8)
    values, indices = spread(torch.empty(6, 7, 8)), spread(torch.empty(6, 7, 8, dtype=torch.int64))
    chip.run("sort", [x], [values, indices], [1, 0])
    same(values.contiguous(), x.sort(1).values)
    same(indices.contiguous(), x.sort(1).indices)


def test_sort_in_place(chip):
    for x in layouts(torch.randn(30, 40)):
        expected = x.sort(0)
        indices = torch.empty(30, 40, dtype=torch.int64)
        chip.run("sort", [x], [x, indices], [0, 0])
        same(x, expected.values)
        same(indices, expected.indices)


@pytest.mark.parametrize("dtype", [*REALS, torch.bool])
@pytest.mark.parametrize(
    "shape,dim,k", [((20,), 0, 3), ((5, 200), 1, 10), ((90, 6), 0, 90), ((9, 5000), 1, 60), ((200_000,), 0, 50)]
)
def test_topk(chip, dtype, shape, dim, k):
    for kind in ("spread", "repeated"):
        source = sortable(shape, dtype, kind)
        for x, largest in itertools.product(layouts(source), (False, True)):
            full = torch.sort(source, dim=dim, descending=largest, stable=True)
            sizes = list(shape)
            sizes[dim] = k
            values, indices = torch.empty(sizes, dtype=dtype), torch.empty(sizes, dtype=torch.int64)
            chip.run("topk", [x], [values, indices], [k, dim, largest])
            same(values, full.values.narrow(dim, 0, k))
            same(indices, full.indices.narrow(dim, 0, k))


# ---------------------------------------------------------------- nll_loss


NLL_SHAPES = [(5, 4), (40, 10), (3, 4, 6), (2, 3, 5, 7), (3000, 9), (4,)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", NLL_SHAPES)
def test_nll_loss(chip, dtype, reduction, weighted, shape):
    classes = shape[1] if len(shape) > 1 else shape[0]
    target_shape = [s for d, s in enumerate(shape) if d != (1 if len(shape) > 1 else 0)]
    source = torch.randn(shape).to(dtype)
    target = torch.randint(0, classes, target_shape)
    if target.numel() > 2:
        target.view(-1)[1] = -100
    weight = torch.rand(classes).to(dtype) if weighted else None
    precision = {torch.float16: 3e-3, torch.bfloat16: 2e-2}.get(dtype, 2e-5)
    names = ["none", "mean", "sum"]
    for x, labels in ((source, target), (spread(source), target.to(torch.int32))):
        leaf = source.double().clone().requires_grad_()
        reference = torch.nn.functional.nll_loss(
            leaf, target, None if weight is None else weight.double(), reduction=names[reduction]
        )
        out, total = torch.empty_like(reference, dtype=dtype), torch.full((), 5.0, dtype=dtype)
        chip.run("nll_loss", [x, labels, weight], [out, total], [reduction, -100])
        same(out.double(), reference.detach(), rtol=precision, atol=precision)
        used = target[target != -100]
        expected = 0.0 if reduction == 0 else float(len(used) if weight is None else weight.double()[used].sum())
        assert total.item() == pytest.approx(expected, rel=precision * 2)
        grad_out = torch.randn(reference.shape).to(dtype)
        reference.backward(grad_out.double())
        grad = torch.full(shape, math.nan, dtype=dtype)
        for grad_in in layouts(grad):
            chip.run("nll_loss_backward", [grad_out, labels, weight, total], grad_in, [reduction, -100])
            same(grad_in.double(), leaf.grad, rtol=precision * 2, atol=precision * 2)


def test_nll_loss_edges(chip):
    x, target = torch.randn(3, 4), torch.full((3,), -100)
    out, total = torch.empty(()), torch.empty(())
    chip.run("nll_loss", [x, target, None], [out, total], [1, -100])
    assert math.isnan(out.item()) and total.item() == 0
    grad = torch.full((3, 4), 9.0)
    chip.run("nll_loss_backward", [torch.ones(()), target, None, total], grad, [1, -100])
    same(grad, torch.zeros(3, 4))
    for bad in (4, -1):
        target = torch.tensor([0, bad, 2])
        for reduction, shape in ((0, (3,)), (1, ())):
            fails_out_of_range(
                lambda target=target, reduction=reduction, shape=shape: chip.run(
                    "nll_loss", [x, target, None], [torch.empty(shape), total], [reduction, -100]
                ),
                f"index {bad} is out of bounds for dimension 1 with size 4",
            )


# ---------------------------------------------------------------- optimizers


SIZES = [(3,), (700, 5), (64,), (90_000,), ()]


def tensors(dtype, positive=False):
    made = [torch.randn(s).to(dtype) for s in SIZES]
    return [t.abs() for t in made] if positive else made


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("decoupled,decay,maximize", [(False, 0.0, False), (False, 0.1, True), (True, 0.1, False)])
def test_adam(chip, dtype, decoupled, decay, maximize):
    grads, params = tensors(dtype), tensors(dtype)
    means, squares = tensors(dtype), tensors(dtype, positive=True)
    fused = torch.ops.aten._fused_adamw_ if decoupled else torch.ops.aten._fused_adam_
    expected = [[t.double().clone() for t in group] for group in (params, grads, means, squares)]
    steps = [torch.tensor(5.0) for _ in SIZES]
    fused(
        *expected,
        [],
        steps,
        lr=0.01,
        beta1=0.9,
        beta2=0.99,
        weight_decay=decay,
        eps=1e-6,
        amsgrad=False,
        maximize=maximize,
    )
    chip.run(
        "adam", grads, [*params, *means, *squares], [0.01, 0.9, 0.99, 1e-6, decay, decoupled, 5, maximize], dtype=dtype
    )
    precision = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-6, torch.float64: 1e-12}[dtype]
    for actual, wanted in zip((params, means, squares), (expected[0], expected[2], expected[3]), strict=True):
        for a, w in zip(actual, wanted, strict=True):
            same(a.double(), w, rtol=precision, atol=precision)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_adam_float_moments(chip, dtype):
    grads, params, means, squares = tensors(dtype), tensors(dtype), tensors(torch.float32), tensors(torch.float32, True)
    expected = [[t.float().clone() for t in group] for group in (params, grads, means, squares)]
    steps = [torch.tensor(1.0) for _ in SIZES]
    torch.ops.aten._fused_adam_(
        *expected, [], steps, lr=0.1, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False
    )
    chip.run("adam", grads, [*params, *means, *squares], [0.1, 0.9, 0.999, 1e-8, 0.0, False, 1, False], dtype=dtype)
    for a, w in zip((*params, *means, *squares), (*expected[0], *expected[2], *expected[3]), strict=True):
        same(a.float(), w.to(a.dtype).float(), rtol=1e-2 if a.dtype == dtype else 1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "momentum,nesterov,first", [(0.0, False, False), (0.9, False, True), (0.9, True, False), (0.9, False, False)]
)
@pytest.mark.parametrize("decay,maximize", [(0.0, False), (0.1, True)])
def test_sgd(chip, dtype, momentum, nesterov, first, decay, maximize):
    grads, params, buffers = tensors(dtype), tensors(dtype), tensors(dtype)
    dampening = 0.0 if nesterov else 0.2
    if first:
        buffers = [torch.full_like(b, math.nan) for b in buffers]
    expected = [[t.double().clone() for t in group] for group in (params, grads, buffers)]
    torch.ops.aten._fused_sgd_(
        *expected[:2], expected[2] if momentum else [], weight_decay=decay, momentum=momentum, lr=0.05,
        dampening=dampening, nesterov=nesterov, maximize=maximize, is_first_step=first,
    )  # fmt: skip
    outs = [*params, *buffers] if momentum else params
    chip.run("sgd", grads, outs, [0.05, momentum, dampening, decay, nesterov, maximize, first], dtype=dtype)
    precision = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-6, torch.float64: 1e-12}[dtype]
    for a, w in zip(params, expected[0], strict=True):
        same(a.double(), w, rtol=precision, atol=precision)
    if momentum:
        for a, w in zip(buffers, expected[2], strict=True):
            same(a.double(), w, rtol=precision, atol=precision)


def test_sgd_without_decay_keeps_infinite_parameters_out(chip):
    params, grads = [torch.tensor([math.inf, 1.0])], [torch.tensor([1.0, 1.0])]
    chip.run("sgd", grads, params, [0.1, 0.0, 0.0, 0.0, False, False, False], dtype=torch.float32)
    same(params[0], torch.tensor([math.inf, 0.9]))
