"""Elementwise and creation kernels of ninguang against torch on the CPU: types, layouts, special values."""

import itertools
import math

import pytest
import torch
from kernels_python import DIVISION_BY_ZERO, Chip, Immediate, NgError

HALVES = [torch.float16, torch.bfloat16]
FLOATS = [*HALVES, torch.float32, torch.float64]
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
REALS = FLOATS + INTS
COMPLEXES = [torch.complex64, torch.complex128]
BOOL = [torch.bool]
ALL = REALS + BOOL + COMPLEXES
nn = torch.nn.functional
aten = torch.ops.aten


@pytest.fixture(scope="module")
def chip():
    return Chip()


def values(dtype, n=1200, seed=0, low=-5.0, high=5.0, special=True):
    """Random numbers of a type; floats start with zeros, infinities, NaN, tiny and huge numbers."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(n, generator=generator) > 0.5
    if dtype in INTS:
        info = torch.iinfo(dtype)
        small = torch.randint(max(info.min, -20), 21, (n,), generator=generator, dtype=dtype)
        if special:
            small[:6] = torch.tensor([0, 1, info.max, info.min, info.max - 1, info.min + 1], dtype=dtype)
        return small
    if dtype.is_complex:
        part = torch.rand(n, 2, generator=generator, dtype=torch.float64) * (high - low) + low
        return torch.view_as_complex(part).to(dtype)
    result = (torch.rand(n, generator=generator, dtype=torch.float64) * (high - low) + low).to(dtype)
    if special:
        info = torch.finfo(dtype)
        edge = [0.0, -0.0, math.inf, -math.inf, math.nan, info.tiny, -info.tiny / 2, info.max, info.min, 1.0, -1.0,
                0.5, 1.5, 2.5, -0.5, -2.5, 3.0, -3.0, info.eps, -info.eps, 88.5, -88.5, 110.0, -110.0]  # fmt: skip
        result[: len(edge)] = torch.tensor(edge, dtype=dtype)
    return result


def pairs(dtype, n=1200, **options):
    """Two operands in which every special value meets every other."""
    edge = values(dtype, n=24, **options)
    left, right = zip(*itertools.product(edge.tolist(), edge.tolist()), strict=False)
    a = torch.cat([torch.tensor(left, dtype=dtype), values(dtype, n, seed=1, special=False, **options)])
    b = torch.cat([torch.tensor(right, dtype=dtype), values(dtype, n, seed=2, special=False, **options)])
    return a, b


def check(actual, expected, exact=False, **tolerance):
    if exact:
        tolerance = {"rtol": 0, "atol": 0}
    torch.testing.assert_close(actual, expected, equal_nan=True, **tolerance)


# name -> (reference, types, attributes, exact)
UNARY = {
    "abs": (torch.abs, REALS, (), True),
    "neg": (torch.neg, REALS + COMPLEXES, (), True),
    "sign": (torch.sign, REALS + BOOL, (), True),
    "ceil": (torch.ceil, REALS, (), True),
    "floor": (torch.floor, REALS, (), True),
    "trunc": (torch.trunc, REALS, (), True),
    "round": (torch.round, REALS, (), True),
    "frac": (torch.frac, FLOATS, (), True),
    "reciprocal": (torch.reciprocal, FLOATS + COMPLEXES, (), False),
    "relu": (torch.relu, REALS, (), True),
    "silu": (nn.silu, FLOATS, (), False),
    "mish": (nn.mish, FLOATS, (), False),
    "hardsigmoid": (nn.hardsigmoid, FLOATS, (), False),
    "hardswish": (nn.hardswish, FLOATS, (), False),
    "log_sigmoid": (nn.logsigmoid, FLOATS, (), False),
    "bitwise_not": (torch.bitwise_not, INTS + BOOL, (), True),
    "logical_not": (torch.logical_not, ALL, (), True),
    "isnan": (torch.isnan, ALL, (), True),
    "isinf": (torch.isinf, REALS, (), True),
    "isposinf": (torch.isposinf, REALS, (), True),
    "isneginf": (torch.isneginf, REALS, (), True),
    "signbit": (torch.signbit, REALS, (), True),
    "gelu": (nn.gelu, FLOATS, (0,), False),
    "gelu_tanh": (lambda x: nn.gelu(x, approximate="tanh"), FLOATS, (1,), False),
    "softplus": (lambda x: nn.softplus(x, 1.5, 10.0), FLOATS, (1.5, 10.0), False),
    "elu": (lambda x: aten.elu(x, 1.5, 1.1, 0.7), FLOATS, (1.5, 1.1, 0.7), False),
    "leaky_relu": (lambda x: nn.leaky_relu(x, 0.125), FLOATS, (0.125,), True),
    "hardshrink": (lambda x: nn.hardshrink(x, 0.5), FLOATS, (0.5,), True),
    "softshrink": (lambda x: nn.softshrink(x, 0.5), FLOATS, (0.5,), True),
    "threshold": (lambda x: nn.threshold(x, 2, 7), REALS, (2, 7), True),
    "clamp": (lambda x: torch.clamp(x, 1, 3), REALS, (1, 3), True),
    "clamp_min": (lambda x: torch.clamp(x, min=1), REALS, (1, None), True),
    "clamp_max": (lambda x: torch.clamp(x, max=3), REALS, (None, 3), True),
    "nan_to_num": (lambda x: torch.nan_to_num(x, 1, 2, 3), FLOATS, (1.0, 2.0, 3.0), True),
    "round_decimals": (lambda x: torch.round(x, decimals=2), FLOATS, (2,), False),
    "round_decimals-": (lambda x: torch.round(x, decimals=-1), FLOATS, (-1,), False),
    "pow_scalar2": (lambda x: torch.pow(x, 2), REALS, (2,), False),
    "pow_scalar3": (lambda x: torch.pow(x, 3), REALS, (3,), False),
    "pow_scalar5": (lambda x: torch.pow(x, 5), REALS, (5,), False),
    "pow_scalar.5": (lambda x: torch.pow(x, 0.5), FLOATS, (0.5,), False),
    "pow_scalar-.5": (lambda x: torch.pow(x, -0.5), FLOATS, (-0.5,), False),
    "pow_scalar-2": (lambda x: torch.pow(x, -2), FLOATS, (-2,), False),
    "pow_scalar2.7": (lambda x: torch.pow(x, 2.7), FLOATS, (2.7,), False),
    "sinc": (torch.sinc, FLOATS, (), False),
    "erfinv": (torch.erfinv, FLOATS, (), False),
    "entr": (torch.special.entr, FLOATS, (), False),
    "logit": (lambda x: torch.logit(x), FLOATS, (None,), False),
    "logit_eps": (lambda x: torch.logit(x, 0.1), FLOATS, (0.1,), False),
    "lgamma": (torch.lgamma, FLOATS, (), False),
    "digamma": (torch.digamma, FLOATS, (), False),
    "i0": (torch.i0, FLOATS, (), False),
    "i0e": (torch.special.i0e, [torch.float32, torch.float64], (), False),
    "i1": (torch.special.i1, [torch.float32, torch.float64], (), False),
    "i1e": (torch.special.i1e, [torch.float32, torch.float64], (), False),
    "ndtri": (torch.special.ndtri, [torch.float32, torch.float64], (), False),
    "log_ndtr": (torch.special.log_ndtr, [torch.float32, torch.float64], (), False),
    "erfcx": (torch.special.erfcx, [torch.float32, torch.float64], (), False),
}
for name in (
    "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "sigmoid erf erfc"
).split():
    UNARY[name] = (getattr(torch, name), FLOATS, (), False)


def kernel_name(case):
    """The UniOp of a test case's name."""
    for name in ("pow_scalar", "round_decimals", "clamp", "gelu", "logit"):
        if case.startswith(name):
            return name
    return case


# Operands where torch's own vector code overflows, underflows or loses accuracy.
WITHIN = {
    "gelu": lambda x: x.abs() < 1e30,
    "pow_scalar.5": lambda x: x > -math.inf,
    "pow_scalar-.5": lambda x: x > 0,
    "i0": lambda x: x.abs() < 88,
    "i1": lambda x: x.abs() < 88,
    "sinh": lambda x: x.abs() < 88.5,
    "cosh": lambda x: x.abs() < 88.5,
}


def check_halves(actual, expected, wide):
    """Close to what torch computes in 16 bits, or to the rounded float32 result, which may be more exact."""
    rtol = 2e-3 if actual.dtype is torch.float16 else 1.6e-2
    near = [actual.isclose(e, rtol=rtol, atol=1e-3, equal_nan=True) for e in (expected, wide.to(actual.dtype))]
    assert (near[0] | near[1]).all(), (actual[~near[0]], expected[~near[0]])


@pytest.mark.parametrize("case", UNARY)
def test_unary(chip, case):
    reference, dtypes, attrs, exact = UNARY[case]
    for dtype in dtypes:
        parts = [values(dtype), values(dtype, seed=5, low=-1, high=1), values(dtype, seed=6, low=-90, high=90)]
        x = torch.cat(parts)
        if case in WITHIN:
            x = x[WITHIN[case](x)]
        expected = reference(x.double()).float() if case == "erfcx" and dtype is torch.float32 else reference(x)
        actual = chip.run(kernel_name(case), [x], torch.empty_like(expected), attrs, dtype)
        if dtype in HALVES and expected.dtype is dtype:
            check_halves(actual, expected, reference(x.float()))
        else:
            check(actual, expected, exact=exact)


def test_abs_complex(chip):
    for dtype in COMPLEXES:
        x = values(dtype)
        x[0] = 0
        check(chip.run("abs", [x], torch.empty(x.shape, dtype=x.real.dtype)), x.abs())
        check(chip.run("sign", [x], torch.empty_like(x)), x.sgn())


HALF_LESS = [torch.float32, torch.float64]
# name -> (reference, types, attributes, exact)
BINARY = {
    "add": (lambda x, y: torch.add(x, y, alpha=2), REALS + COMPLEXES, (2,), True),
    "sub": (lambda x, y: torch.sub(x, y, alpha=3), REALS + COMPLEXES, (3,), True),
    "mul": (torch.mul, REALS + BOOL, (), True),
    "div": (torch.div, FLOATS, (), True),
    "div_trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), FLOATS, (), True),
    "div_floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), FLOATS, (), True),
    "remainder": (torch.remainder, FLOATS, (), True),
    "fmod": (torch.fmod, FLOATS, (), True),
    "pow": (torch.pow, FLOATS, (), False),
    "atan2": (torch.atan2, FLOATS, (), False),
    "maximum": (torch.maximum, REALS + BOOL, (), True),
    "minimum": (torch.minimum, REALS + BOOL, (), True),
    "fmax": (torch.fmax, REALS + BOOL, (), True),
    "fmin": (torch.fmin, REALS + BOOL, (), True),
    "hypot": (torch.hypot, FLOATS, (), False),
    "logaddexp": (torch.logaddexp, FLOATS, (), False),
    "logaddexp2": (torch.logaddexp2, HALF_LESS, (), False),
    "xlogy": (torch.xlogy, FLOATS, (), False),
    "xlog1py": (torch.special.xlog1py, FLOATS, (), False),
    "copysign": (torch.copysign, FLOATS, (), True),
    "nextafter": (torch.nextafter, [torch.bfloat16, torch.float32, torch.float64], (), True),
    "heaviside": (torch.heaviside, REALS + BOOL, (), True),
    "bitwise_and": (torch.bitwise_and, INTS + BOOL, (), True),
    "bitwise_or": (torch.bitwise_or, INTS + BOOL, (), True),
    "bitwise_xor": (torch.bitwise_xor, INTS + BOOL, (), True),
    "shift_left": (torch.bitwise_left_shift, INTS, (), True),
    "shift_right": (torch.bitwise_right_shift, INTS, (), True),
    "logical_and": (torch.logical_and, ALL, (), True),
    "logical_or": (torch.logical_or, ALL, (), True),
    "logical_xor": (torch.logical_xor, ALL, (), True),
    "eq": (torch.eq, ALL, (), True),
    "ne": (torch.ne, ALL, (), True),
    "lt": (torch.lt, REALS + BOOL, (), True),
    "le": (torch.le, REALS + BOOL, (), True),
    "gt": (torch.gt, REALS + BOOL, (), True),
    "ge": (torch.ge, REALS + BOOL, (), True),
    "mse": (lambda x, y: nn.mse_loss(x, y, reduction="none"), FLOATS, (), True),
    "smooth_l1": (lambda x, y: nn.smooth_l1_loss(x, y, reduction="none", beta=0.7), FLOATS, (0.7,), False),
    "huber": (lambda x, y: nn.huber_loss(x, y, reduction="none", delta=0.7), FLOATS, (0.7,), False),
    "sigmoid_backward": (aten.sigmoid_backward, FLOATS, (), False),
    "tanh_backward": (aten.tanh_backward, FLOATS, (), False),
    "gelu_backward": (lambda g, x: aten.gelu_backward(g, x), FLOATS, (0,), False),
    "gelu_backward_tanh": (lambda g, x: aten.gelu_backward(g, x, approximate="tanh"), FLOATS, (1,), False),
    "silu_backward": (aten.silu_backward, FLOATS, (), False),
    "threshold_backward": (lambda g, x: aten.threshold_backward(g, x, 1), REALS, (1,), True),
    "elu_backward": (lambda g, x: aten.elu_backward(g, 1.5, 1.1, 0.7, False, x), FLOATS, (1.5, 1.1, 0.7, False), False),
    "elu_backward_result": (lambda g, x: aten.elu_backward(g, 1.5, 1.1, 0.7, True, x), FLOATS, (1.5, 1.1, 0.7, True),
                            False),
    "leaky_relu_backward": (lambda g, x: aten.leaky_relu_backward(g, x, 0.125, False), FLOATS, (0.125,), True),
    "hardtanh_backward": (lambda g, x: aten.hardtanh_backward(g, x, -1.0, 3.0), HALF_LESS, (-1.0, 3.0), True),
    "hardsigmoid_backward": (aten.hardsigmoid_backward, FLOATS, (), False),
    "hardswish_backward": (aten.hardswish_backward, FLOATS, (), False),
    "hardshrink_backward": (lambda g, x: aten.hardshrink_backward(g, x, 0.5), FLOATS, (0.5,), True),
    "softplus_backward": (lambda g, x: aten.softplus_backward(g, x, 1.5, 10.0), FLOATS, (1.5, 10.0), False),
    "logit_backward": (lambda g, x: aten.logit_backward(g, x, None), FLOATS, (None,), False),
    "logit_backward_eps": (lambda g, x: aten.logit_backward(g, x, 0.1), FLOATS, (0.1,), False),
    "mish_backward": (aten.mish_backward, FLOATS, (), False),
    "log_sigmoid_backward": (lambda g, x: aten.log_sigmoid_backward(g, x, (-x.abs()).exp()), FLOATS, (), False),
    "lerp_scalar": (lambda x, y: torch.lerp(x, y, 0.3), FLOATS, (0.3,), False),
    "zeta": (torch.special.zeta, HALF_LESS, (), False),
    "igamma": (torch.igamma, FLOATS, (), False),
    "igammac": (torch.igammac, FLOATS, (), False),
}  # fmt: skip
# Operands where torch's vector code overflows or gives up, or the result is ill-conditioned.
WITHIN2 = {
    "div_floor": lambda x, y: x.isfinite() & y.isfinite() & (y != 0),
    "remainder": lambda x, y: x.isfinite() & y.isfinite() & ((x.double() / y).abs() < 1e6),
    "fmod": lambda x, y: x.isfinite() & y.isfinite() & ((x.double() / y).abs() < 1e6),
    "pow": lambda x, y: x.isfinite() & y.isfinite(),
    "sigmoid_backward": lambda x, y: ~(x.abs() > 100),
    "elu_backward": lambda x, y: ~(x.abs() > 100),
    "elu_backward_result": lambda x, y: ~(x.abs() > 100),
    "gelu_backward": lambda x, y: (x.abs() < 5) & (y.abs() < 1e5),
    "gelu_backward_tanh": lambda x, y: (x.abs() < 5) & (y.abs() < 1e5),
}
POSITIVE = {"zeta", "igamma", "igammac"}


@pytest.mark.parametrize("case", BINARY)
def test_binary(chip, case):
    reference, dtypes, attrs, exact = BINARY[case]
    name = case.removesuffix("_tanh").removesuffix("_result").removesuffix("_eps")
    for dtype in dtypes:
        x, y = pairs(dtype)
        if case in POSITIVE:
            x, y = values(dtype, special=False, low=1.1, high=9), values(dtype, seed=3, special=False, low=0.1, high=9)
        elif case in WITHIN2:
            keep = WITHIN2[case](x, y)
            x, y = x[keep], y[keep]
        expected = reference(x, y)
        actual = chip.run(name, [x, y], torch.empty_like(expected), attrs, dtype)
        if dtype in HALVES and expected.dtype is dtype:
            check_halves(actual, expected, reference(x.float(), y.float()))
        elif dtype.is_complex or case in ("add", "sub", "mse"):
            check(actual, expected, rtol=1e-6, atol=1e-6)  # fused or not
        elif "gelu" in case and dtype is torch.float32:
            check(actual, expected, rtol=1e-5, atol=1e-5)
        else:
            check(actual, expected, exact=exact)


def test_complex_products(chip):
    for dtype in COMPLEXES:
        x, y = values(dtype), values(dtype, seed=1)
        check(chip.run("mul", [x, y], torch.empty_like(x)), x * y)
        check(chip.run("div", [x, y], torch.empty_like(x)), x / y)


def test_add_bool(chip):
    x, y = values(torch.bool), values(torch.bool, seed=1)
    check(chip.run("add", [x, y], torch.empty_like(x), [1]), x | y)


INTEGER = {
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "pow": torch.pow,
    "gcd": torch.gcd,
    "lcm": torch.lcm,
}


@pytest.mark.parametrize("name", INTEGER)
def test_integer(chip, name):
    for dtype in INTS:
        x, y = pairs(dtype)
        if name in ("gcd", "lcm"):
            keep = (x != torch.iinfo(dtype).min) & (y != torch.iinfo(dtype).min)
        elif name == "pow":
            keep = x == x
        else:  # torch itself may trap on min / -1
            keep = (y != 0) & ~((x == torch.iinfo(dtype).min) & (y == -1))
        x, y = x[keep], y[keep]
        check(chip.run(name, [x, y], torch.empty_like(x)), INTEGER[name](x, y), exact=True)


@pytest.mark.parametrize("name", ["div_trunc", "div_floor", "remainder", "fmod"])
def test_integer_division_edges(chip, name):
    for dtype in INTS:
        info = torch.iinfo(dtype)
        x, y = torch.tensor([5, 6], dtype=dtype), torch.tensor([1, 0], dtype=dtype)
        with pytest.raises(NgError, match="ZeroDivisionError") as caught:
            chip.run(name, [x, y], torch.empty_like(x))
        assert caught.value.code == DIVISION_BY_ZERO
        if info.min < 0:
            x, y = torch.tensor([info.min] * 3, dtype=dtype), torch.tensor([-1] * 3, dtype=dtype)
            expected = info.min if name.startswith("div") else 0
            check(chip.run(name, [x, y], torch.empty_like(x)), torch.full_like(x, expected))


def test_ternary(chip):
    for dtype in FLOATS:
        x, y = pairs(dtype)
        z = values(dtype, x.numel(), seed=9)
        out = torch.empty_like(x)
        tolerance = {} if dtype in HALF_LESS else {"rtol": 1.6e-2, "atol": 1e-2}
        finite = x.isfinite() & y.isfinite() & z.isfinite() & (x.abs() < 1e3) & (y.abs() < 1e3) & (z.abs() < 1e3)
        fx, fy, fz = x[finite], y[finite], z[finite]
        fout = torch.empty_like(fx)
        check(chip.run("addcmul", [fx, fy, fz], fout, [0.5]), torch.addcmul(fx, fy, fz, value=0.5), **tolerance)
        check(chip.run("addcdiv", [fx, fy, fz], fout, [0.5]), torch.addcdiv(fx, fy, fz, value=0.5), **tolerance)
        check(chip.run("lerp", [fx, fy, fz], fout), torch.lerp(fx, fy, fz), **tolerance)
        check(chip.run("clamp_tensor", [x, y, z], out), torch.clamp(x, y, z))
    for dtype in INTS:
        x, y = pairs(dtype)
        z = values(dtype, x.numel(), seed=9)
        check(chip.run("clamp_tensor", [x, y, z], torch.empty_like(x)), torch.clamp(x, y, z))
        check(chip.run("addcmul", [x, y, z], torch.empty_like(x), [2]), torch.addcmul(x, y, z, value=2))


def test_selection(chip):
    for dtype in ALL:
        x, y = values(dtype), values(dtype, seed=1)
        mask = values(torch.bool, x.numel(), seed=2)
        check(chip.run("where", [mask, x, y], torch.empty_like(x), (), dtype), torch.where(mask, x, y), exact=True)
        value = True if dtype is torch.bool else 3 + 4j if dtype.is_complex else 7
        actual = chip.run("masked_fill", [x, mask], torch.empty_like(x), [value])
        check(actual, x.masked_fill(mask, value), exact=True)


def layouts():
    """Pairs of operands and an output that exercise each path of the driver."""
    a, b = torch.randn(6, 40, 200), torch.randn(6, 40, 200)
    yield "dense", a, b, torch.empty(6, 40, 200)
    yield "row", a, b[0, 0].expand(6, 40, 200), torch.empty(6, 40, 200)
    yield "column", a, b[:, :, :1].expand(6, 40, 200), torch.empty(6, 40, 200)
    yield "scalar", a, b[0, 0, 0].expand(6, 40, 200), torch.empty(6, 40, 200)
    yield "transposed", a, torch.randn(200, 40, 6).permute(2, 1, 0), torch.empty(6, 40, 200)
    yield "sliced", a[:, ::2, ::3], b[:, 1::2, 1::3], torch.empty(6, 20, 67)
    yield "sliced out", a, b, torch.zeros(6, 40, 401)[:, :, ::2][:, :, :200]
    yield "transposed out", a, b, torch.empty(200, 40, 6).permute(2, 1, 0)
    yield "short rows", torch.randn(3000, 3), torch.randn(3).expand(3000, 3), torch.empty(3000, 3)
    yield "short sliced rows", torch.randn(3000, 4)[:, :3], torch.randn(3, 3000).t(), torch.empty(3000, 3)
    twos = (2,) * 12
    yield "many dims", torch.randn(twos), torch.randn(twos).permute(*range(11, -1, -1)), torch.empty(twos)
    yield "one", torch.randn(1), torch.randn(1), torch.empty(1)
    yield "no dims", torch.randn(()), torch.randn(()), torch.empty(())
    yield "seven", torch.randn(7), torch.randn(7), torch.empty(7)
    yield "big", torch.randn(3, 700001), torch.randn(3, 700001), torch.empty(3, 700001)
    yield "big rows", torch.randn(2000, 1001), torch.randn(1001).expand(2000, 1001), torch.empty(2000, 1001)


@pytest.mark.parametrize("layout", [name for name, *_ in layouts()])
def test_layouts(chip, layout):
    _, a, b, out = next(x for x in layouts() if x[0] == layout)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.complex128):
        x, y = typed(a, dtype), typed(b, dtype)
        result = torch.zeros(out.untyped_storage().nbytes() // 4, dtype=dtype).as_strided(out.shape, out.stride())
        check(chip.run("sub", [x, y], result, [1]), x - y, exact=True)
        flags = torch.empty(out.shape, dtype=torch.bool).as_strided(out.shape, out.stride()) if out.is_contiguous() \
            else torch.empty(out.shape, dtype=torch.bool)  # fmt: skip
        check(chip.run("ne", [x, y], flags), x != y)
        copied = torch.zeros_like(result)
        check(chip.run("copy", [y], copied), y.clone(), exact=True)
    # In place.
    expected = a * b
    place = a.clone()
    chip.run("mul", [place, b], place)
    check(place, expected, exact=True)


def typed(tensor, dtype):
    """A tensor of another type with the same strides, its values multiplied to fill the integers."""
    storage = torch.tensor([], dtype=tensor.dtype).set_(tensor.untyped_storage())
    factor = 1 if dtype.is_floating_point or dtype.is_complex else 20
    return (storage * factor).to(dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def test_sliced_output_leaves_gaps(chip):
    for dtype in (torch.float32, torch.float16):
        base = torch.full((4, 300), 9.0, dtype=dtype)
        chip.run("fill", [], base[:, ::3], [1.0])
        chip.run("mul", [base[:, ::3], Immediate(5.0, dtype)], base[:, ::3])
        expected = torch.full((4, 300), 9.0, dtype=dtype)
        expected[:, ::3] = 5
        check(base, expected)


def test_immediates(chip):
    for dtype in REALS:
        x = values(dtype)
        check(chip.run("mul", [x, Immediate(3, dtype)], torch.empty_like(x)), x * 3, exact=True)
        check(chip.run("sub", [Immediate(3, dtype), x], torch.empty_like(x), [1]), 3 - x, exact=True)
        check(chip.run("lt", [Immediate(3, dtype), x], torch.empty(x.shape, dtype=torch.bool)), x > 3)
        one = torch.ones((), dtype=dtype)
        check(chip.run("mul", [Immediate(3, dtype), one], torch.empty_like(one)), one * 3)


@pytest.mark.parametrize("source", ALL, ids=str)
def test_copy_types(chip, source):
    for target in ALL:
        x = values(source)
        if source.is_floating_point and not target.is_floating_point and not target.is_complex and target != torch.bool:
            x = x[x.isfinite() & (x.abs() < 100) & (x >= (0 if target is torch.uint8 else -100))]
        if source.is_complex and target is torch.uint8:
            x = x[x.real >= 0]
        expected = x.to(target)
        check(chip.run("copy", [x], torch.empty(x.shape, dtype=target)), expected, exact=True)
        short = x[: x.numel() // 2 * 2].view(-1, 2).t()
        check(chip.run("copy", [short], torch.empty(short.shape, dtype=target)), short.to(target), exact=True)


def test_copy_transposes(chip):
    for dtype in (torch.uint8, torch.float16, torch.float32, torch.float64, torch.complex128):
        for shape, order in (((100, 75), (1, 0)), ((5, 33, 60), (0, 2, 1)), ((17, 40, 9, 20), (3, 1, 2, 0)),
                             ((3, 64, 64), (1, 2, 0)), ((700, 900), (1, 0))):  # fmt: skip
            x = (torch.rand(shape) * 100).to(dtype).permute(order)
            check(chip.run("copy", [x], torch.empty(x.shape, dtype=dtype)), x, exact=True)
            wide = torch.zeros([*x.shape[:-1], x.shape[-1] + 5], dtype=dtype)[..., :-5]
            check(chip.run("copy", [x], wide), x, exact=True)


def test_fill(chip):
    for dtype in ALL:
        for value in (0, 1, 2.5, True, -3):
            if value == -3 and dtype is torch.uint8:
                continue
            x = torch.empty(1000, dtype=dtype)
            check(chip.run("fill", [], x, [value]), torch.full_like(x, value), exact=True)
    z = torch.empty(10, dtype=torch.complex64)
    check(chip.run("fill", [], z, [1 + 2j]), torch.full_like(z, 1 + 2j))


# ---- creation ----


def test_arange(chip):
    for dtype in REALS:
        for start, end, step in ((0, 100, 1), (3, 90, 4), (100, 0, -3), (0.5, 20, 0.25)):
            if (dtype is torch.uint8 and step < 0) or (isinstance(step, float) and not dtype.is_floating_point):
                continue
            expected = torch.arange(start, end, step, dtype=dtype)
            check(chip.run("arange", [], torch.empty_like(expected), [start, step]), expected, exact=True)


def test_linspace(chip):
    for dtype in REALS:
        for start, end, steps in ((0, 10, 5), (0, 99, 100), (-5, 5, 11), (3, 3, 4), (1, 9, 1), (0.5, 99.5, 1000)):
            if dtype is torch.uint8 and start < 0:
                continue
            if dtype in INTS and isinstance(start, float):
                continue
            expected = torch.linspace(start, end, steps, dtype=dtype)
            check(chip.run("linspace", [], torch.empty_like(expected), [start, end]), expected)


def test_eye(chip):
    for dtype in ALL:
        for n, m in ((5, 5), (3, 700), (700, 3), (1, 1), (300, 301)):
            check(chip.run("eye", [], torch.empty(n, m, dtype=dtype)), torch.eye(n, m, dtype=dtype), exact=True)
    turned = torch.empty(30, 40).t()
    check(chip.run("eye", [], turned), torch.eye(40, 30))


def test_large_outputs(chip):
    """Past the size from which results are written around the caches; the output starts off a cache line."""
    n = 6_000_001
    x, y = torch.randn(n + 3)[3:], torch.randn(n)
    out = torch.zeros(n + 8)
    chip.run("mul", [x, y], out[5:-3])
    check(out[5:-3], x * y, exact=True)
    assert not out[:5].any() and not out[-3:].any()
    short = torch.randn(2_000_003, 5)
    row = torch.randn(5)
    for column in (0, 1):
        place = torch.zeros(short.numel() + 1)[column : short.numel() + column].view(short.shape)
        check(chip.run("mul", [short, row.expand(short.shape)], place), short * row, exact=True)
