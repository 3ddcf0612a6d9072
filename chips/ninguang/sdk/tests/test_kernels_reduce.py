"""Reductions and scans of ninguang against torch on the CPU: types, dims, layouts, special values, precision."""

import math

import pytest
import torch
from kernels_python import Chip

HALVES = [torch.float16, torch.bfloat16]
FLOATS = [*HALVES, torch.float32, torch.float64]
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
REALS = FLOATS + INTS


@pytest.fixture(scope="module")
def chip():
    return Chip()


def make(shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) > 0.3
    if dtype in INTS:
        low = 0 if dtype is torch.uint8 else -20
        return torch.randint(low, 21, shape, generator=generator, dtype=dtype)
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def shapes():
    """(input of float32, dims) that exercise each way of the driver."""
    yield torch.Size([7]), (0,), None
    yield torch.Size([1000]), (0,), None
    yield torch.Size([33, 65]), (1,), None
    yield torch.Size([33, 65]), (0,), None
    yield torch.Size([33, 65]), (0, 1), None
    yield torch.Size([300, 2000]), (1,), None
    yield torch.Size([2000, 300]), (0,), None
    yield torch.Size([5, 70, 90]), (1,), None
    yield torch.Size([5, 70, 90]), (0, 2), None
    yield torch.Size([4, 5, 6, 7]), (1, 3), None
    yield torch.Size([4, 5, 6, 7]), (0, 2), None
    yield torch.Size([5000, 3]), (1,), None
    yield torch.Size([5000, 3]), (0,), None
    yield torch.Size([64, 5000]), (1,), (1, 0)
    yield torch.Size([6, 70, 50]), (2,), (2, 0, 1)
    yield torch.Size([400000]), (0,), None
    yield torch.Size([3, 400000]), (1,), None
    yield torch.Size([200000, 5]), (0,), None
    yield torch.Size([20000, 40]), (0,), None
    yield torch.Size([1, 1]), (0, 1), None


def cases(single=False):
    for shape, dims, order in shapes():
        if single and len(dims) > 1:
            continue
        yield pytest.param(shape, dims, order, id=f"{'x'.join(map(str, shape))}-{dims}-{order}")


def build(shape, order, dtype):
    x = make(shape, dtype)
    return x if order is None else x.permute(order).contiguous().permute([order.index(d) for d in range(len(order))])


def expanded(result, ndim):
    """The result with stride 0 in reduced dims of size 1, as the host describes it."""
    strides = [0 if size == 1 else stride for size, stride in zip(result.shape, result.stride(), strict=False)]
    return result.as_strided(result.shape, strides)


def run(chip, name, x, expected, attrs=()):
    many = isinstance(expected, (list, tuple))
    outs = [expanded(torch.empty_like(e, memory_format=torch.contiguous_format), x.ndim)
            for e in (expected if many else [expected])]  # fmt: skip
    chip.run(name, [x], outs, attrs)
    return outs if many else outs[0]


def close(actual, expected, dtype):
    tolerance = {torch.float16: (2e-3, 1e-3), torch.bfloat16: (1.6e-2, 1e-2), torch.float32: (2e-6, 2e-5),
                 torch.complex64: (2e-6, 2e-5)}  # fmt: skip
    rtol, atol = tolerance.get(dtype, (1e-7, 1e-7))
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("shape, dims, order", cases())
def test_sum(chip, shape, dims, order):
    for dtype in [*REALS, torch.bool, torch.complex64, torch.complex128]:
        x = build(shape, order, dtype)
        if dtype in FLOATS:
            close(run(chip, "sum", x, x.sum(dims, True)), x.double().sum(dims, True).to(dtype), dtype)
        else:
            close(run(chip, "sum", x, x.sum(dims, True)), x.sum(dims, True), dtype)
    x = build(shape, order, torch.float16)
    exact = x.double().sum(dims, True).float()
    close(run(chip, "sum", x, exact), exact, torch.float32)
    x = build(shape, order, torch.int16)
    assert run(chip, "sum", x, x.sum(dims, True, dtype=torch.int32)).equal(x.sum(dims, True, dtype=torch.int32))


@pytest.mark.parametrize("shape, dims, order", cases())
def test_extremes(chip, shape, dims, order):
    for dtype in [*REALS, torch.bool]:
        x = build(shape, order, dtype)
        for name in ("amax", "amin"):
            expected = getattr(torch, name)(x, dims, True)
            assert run(chip, name, x, expected).equal(expected)
    x = build(shape, order, torch.float32)
    x.as_strided((1,), (1,))[0] = math.nan
    for name in ("amax", "amin"):
        expected = getattr(torch, name)(x, dims, True)
        close(run(chip, name, x, expected), expected, torch.float32)


@pytest.mark.parametrize("shape, dims, order", cases())
def test_any_all(chip, shape, dims, order):
    for dtype in [*REALS, torch.bool, torch.complex64]:
        x = build(shape, order, dtype)
        for value in (x, x * 0, x * 0 + 1):
            value = value.to(dtype)
            if dtype is torch.uint8:
                reference = value != 0
            else:
                reference = value
            for name in ("any", "all"):
                expected = getattr(torch, name)(reference, dims, True)
                assert run(chip, name, value, expected).equal(expected), (name, dtype)


@pytest.mark.parametrize("shape, dims, order", cases(single=True))
def test_positions(chip, shape, dims, order):
    for dtype in REALS:
        x = build(shape, order, dtype)
        if dtype.is_floating_point:
            x = (x * 4).round()  # many equal values
            if x.numel() > 5:
                x.as_strided((1,), (1,), 5)[0] = math.nan
        for name in ("argmax", "argmin"):
            # torch promises no order among equals; ours is the first.
            found = run(chip, name, x, getattr(torch, name)(x, dims[0], True))
            function = torch.max if name == "argmax" else torch.min
            values, _ = function(x, dims[0], True)
            same = (x == values) | (x.isnan() & values.isnan())
            first = same.to(torch.uint8).argmax(dims[0], True)
            assert found.equal(first), (name, dtype)
            value, index = run(chip, "max_dim" if name == "argmax" else "min_dim", x, [values, first])
            close(value, values, dtype)
            assert index.equal(first)
    low = torch.full(shape, -math.inf)
    assert run(chip, "argmax", low, low.argmax(dims[0], True)).equal(low.argmax(dims[0], True))


@pytest.mark.parametrize("shape, dims, order", cases())
def test_statistics(chip, shape, dims, order):
    for dtype in FLOATS:
        x = build(shape, order, dtype)
        wide = x.double()
        n = math.prod(shape[d] for d in dims)
        for correction in (0, 1):
            if n == 1 and correction == 1:
                continue
            var, mean = torch.var_mean(wide, dims, correction=correction, keepdim=True)
            actual = run(chip, "var_mean", x, [var.to(dtype), mean.to(dtype)], [correction, False])
            close(actual[0], var.to(dtype), dtype)
            close(actual[1], mean.to(dtype), dtype)
            std = var.sqrt().to(dtype)
            close(run(chip, "var", x, std, [correction, True]), std, dtype)
        expected = wide.logsumexp(dims, True).to(dtype)
        close(run(chip, "logsumexp", x, expected), expected, dtype)
        for order_ in (0, 1, 2, 3, 2.5, math.inf, -math.inf):
            expected = torch.linalg.vector_norm(wide, order_, dims, True).to(dtype)
            if dtype is torch.float16 and not expected.isfinite().all():
                continue
            close(run(chip, "vector_norm", x, expected, [order_]), expected, dtype)


def test_prod(chip):
    for dtype in [*REALS, torch.bool]:
        x = make((40, 9), dtype)
        if dtype not in INTS and dtype is not torch.bool:
            x = x.abs() + 0.5
        for dims in (0, 1):
            expected = torch.prod(x, dims, True)
            if dtype in FLOATS:
                expected = torch.prod(x.double(), dims, True).to(dtype)
            close(run(chip, "prod", x, expected), expected, dtype)
    x = make((100,), torch.int64)
    assert run(chip, "prod", x, x.prod(0, True)).equal(x.prod(0, True))


def test_logsumexp_infinities(chip):
    rows = [[-math.inf] * 3, [math.inf, 1, 2], [-math.inf, 1, 2], [math.nan, 1, 2], [math.inf, -math.inf, 0],
            [1000, 1000, 999], [-1000, -1001, -1002]]  # fmt: skip
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor(rows, dtype=dtype)
        close(run(chip, "logsumexp", x, x.logsumexp(1, True)), x.logsumexp(1, True), dtype)
        close(run(chip, "logsumexp", x.t(), x.t().logsumexp(0, True)), x.t().logsumexp(0, True), dtype)
        long = torch.stack([x[0, 0].expand(4000), x[1, 0].expand(4000), x[5, 0].expand(4000), x[6, 0].expand(4000)])
        close(run(chip, "logsumexp", long, long.logsumexp(1, True)), long.logsumexp(1, True), dtype)


def test_precision_of_long_sums(chip):
    x = torch.rand(10_000_000, generator=torch.Generator().manual_seed(1))
    exact = x.double().sum().item()
    assert abs(run(chip, "sum", x, x.sum(0, True)).item() - exact) / exact < 1e-7
    wide = x.view(2500, 4000)
    for dims in (0, 1):
        exact = wide.double().sum(dims, True)
        actual = run(chip, "sum", wide, wide.sum(dims, True)).double()
        assert ((actual - exact).abs() / exact).max() < 1e-6
    y = x + 1000
    exact = y.double().var().item()
    assert abs(run(chip, "var", y, y.var(0, keepdim=True), [1, False]).item() - exact) / exact < 1e-4


def test_integer_sum_wraps(chip):
    x = torch.full((10,), torch.iinfo(torch.int64).max)
    assert run(chip, "sum", x, x.sum(0, True)).equal(x.sum(0, True))


SCANS = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "cummax": torch.cummax,
    "cummin": torch.cummin,
    "logcumsumexp": torch.logcumsumexp,
}


@pytest.mark.parametrize("name", SCANS)
def test_scans(chip, name):
    layouts = [((1000,), 0, None), ((40, 300), 1, None), ((40, 300), 0, None), ((5, 60, 70), 1, None),
               ((3, 200, 150), 2, (2, 0, 1)), ((300000,), 0, None), ((), 0, None)]  # fmt: skip
    for dtype in REALS if name != "logcumsumexp" else FLOATS:
        for shape, dim, order in layouts:
            if dtype in HALVES and shape == (300000,):
                continue
            x = build(shape, order, dtype)
            if name == "cumprod" and dtype in FLOATS:
                x = x.sign() * (1 + (x / 50).abs())
            if dtype is torch.float32 and x.numel() > 20 and name.startswith("cumm"):
                x = (x * 3).round()
                x.as_strided((1,), (1,), 9)[0] = math.nan
            options = {"dtype": dtype} if name in ("cumsum", "cumprod") else {}
            expected = SCANS[name](x, dim, **options)
            outs = expected if isinstance(expected, torch.Tensor) else list(expected)
            actual = torch.empty_like(outs) if isinstance(outs, torch.Tensor) else [torch.empty_like(e) for e in outs]
            chip.run(name, [x], actual, [dim])
            if isinstance(outs, list):
                close(actual[0], outs[0], dtype)
                assert actual[1].equal(outs[1]), (name, dtype, shape)
            elif dtype in HALVES and name != "logcumsumexp":
                reference = SCANS[name](x.double(), dim).to(dtype)
                close(actual, reference, dtype)
            else:
                close(actual, outs, dtype)
