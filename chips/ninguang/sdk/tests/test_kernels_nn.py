"""Matrix products, convolution and pooling of ninguang against torch on the CPU: types, shapes, layouts, attributes."""

import math
import random

import pytest
import torch
import torch.nn.functional as F
from kernels_python import Chip

HALVES = [torch.float16, torch.bfloat16]
FLOATS = [*HALVES, torch.float32, torch.float64]
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
RELATIVE = {
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
    torch.float32: 1e-5,
    torch.float64: 1e-12,
    torch.complex64: 1e-5,
    torch.complex128: 1e-12,
}


@pytest.fixture(scope="module")
def chip():
    return Chip()


def wide(dtype):
    """The type to compute the expected result in."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.int64


def make(*shape, dtype):
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(*shape, dtype=wide(dtype)).to(dtype)
    return torch.randint(0 if dtype is torch.uint8 else -100, 100, shape, dtype=dtype)


def empty(*shape, dtype):
    """A result that has not been written is noticed."""
    return torch.full(shape, math.nan if dtype.is_floating_point or dtype.is_complex else 77, dtype=dtype)


def restride(tensor, how):
    """The same values in another layout of memory."""
    if how == "transposed":
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how in ("gaps", "rows"):
        step = 2 if how == "gaps" else 1
        base = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] * step + 3, dtype=tensor.dtype)
        view = base[..., 1 : 1 + tensor.shape[-1] * step : step]
        return view.copy_(tensor)
    return tensor.contiguous()


LAYOUTS = ["dense", "transposed", "gaps", "rows"]


def relayout(image, how):
    """An image [N, C, …] in another layout of memory."""
    if how == "channels_last":
        order = [0, *range(2, image.dim()), 1]
    elif how == "odd":
        order = [*range(image.dim() - 1, -1, -1)]
    elif how == "sliced":
        base = torch.zeros(image.shape[0], image.shape[1] + 3, *image.shape[2:], dtype=image.dtype)
        return base[:, 1 : 1 + image.shape[1]].copy_(image)
    else:
        return image.contiguous()
    return image.permute(order).contiguous().permute([order.index(d) for d in range(image.dim())])


IMAGES = ["row_major", "channels_last", "sliced", "odd"]


def close(got, expected, dtype, scale=1.0):
    nan = torch.isnan(got)
    assert torch.equal(nan, torch.isnan(expected))
    error = (got.to(expected.dtype) - expected).masked_fill(nan | (got.to(expected.dtype) == expected), 0).abs()
    allowed = RELATIVE[dtype] * scale * (1 + expected.nan_to_num(0, 0, 0).abs().max().item())
    assert error.max().item() <= allowed, (error.max().item(), allowed)


# ---- matrix products ----


@pytest.mark.parametrize("dtype", FLOATS + INTS + COMPLEX, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_matmul(chip, dtype, seed):
    torch.manual_seed(seed)
    pick = random.Random(seed)
    sides = [1, 2, 3, 5, 8, 14, 15, 17, 31, 32, 33, 48, 64, 65, 100]
    for _ in range(6):
        n, m, k = (pick.choice(sides) for _ in range(3))
        if pick.random() < 0.2:
            k = pick.choice([390, 801])
        if pick.random() < 0.1:
            n, m = pick.choice([(1, 700), (700, 1), (3, 1030), (300, 200)])
        batch = pick.choice([(), (), (1,), (3,), (9,)])
        a = restride(make(*batch, n, k, dtype=dtype), pick.choice(LAYOUTS))
        b = restride(make(*batch, k, m, dtype=dtype), pick.choice(LAYOUTS))
        if batch and pick.random() < 0.3:
            b = b[:1].expand(*batch, k, m)
        out = restride(empty(*batch, n, m, dtype=dtype), pick.choice(LAYOUTS))
        product = a.to(wide(dtype)) @ b.to(wide(dtype))
        magnitude = (a.to(wide(dtype)).abs() @ b.to(wide(dtype)).abs()).max().item()
        if pick.random() < 0.5:
            chip.run("bmm" if batch else "mm", [a, b], out)
        else:
            row = make(m, dtype=dtype).expand(*batch, n, m)
            addend = pick.choice([row, restride(make(*batch, n, m, dtype=dtype), pick.choice(LAYOUTS))])
            beta, alpha = pick.choice(
                [(1, 1), (2, 3), (0, 2)] if dtype in INTS else [(1.0, 1.0), (0.5, 2.0), (0.0, 1.0)]
            )
            if beta == 0 and dtype not in INTS:
                addend = torch.full_like(addend.contiguous(), math.nan)
            chip.run("baddbmm" if batch else "addmm", [addend, a, b], out, [beta, alpha])
            product = alpha * product + (beta * addend.to(wide(dtype)) if beta != 0 else 0)
        if dtype in INTS:
            assert torch.equal(out, product.to(dtype))
        else:
            close(out, product, dtype, scale=max(1.0, magnitude / (1 + product.abs().max().item())))


def test_matmul_without_depth(chip):
    out = empty(3, 5, dtype=torch.float32)
    addend = torch.randn(5).expand(3, 5)
    chip.run("addmm", [addend, torch.empty(3, 0), torch.empty(0, 5)], out, [2.0, 1.0])
    assert torch.equal(out, 2 * addend)
    chip.run("mm", [torch.empty(3, 0), torch.empty(0, 5)], out)
    assert torch.equal(out, torch.zeros(3, 5))


@pytest.mark.parametrize("dtype", HALVES + [torch.float32], ids=str)
def test_large_matmul(chip, dtype):
    torch.manual_seed(0)
    a, b = make(500, 1100, dtype=dtype), make(700, 1100, dtype=dtype).t()
    out = empty(500, 700, dtype=dtype)
    chip.run("mm", [a, b], out)
    close(out, a.double() @ b.double(), dtype)


# ---- convolution ----


def run_convolutions(chip, dtype, case, layouts, pick):
    """Forward and both backward operators of one case against autograd in float64."""
    x, w, bias, stride, padding, dilation, transposed, output_padding, groups = case
    x64, w64 = x.double().requires_grad_(), w.double().requires_grad_()
    bias64 = bias.double() if bias is not None else None
    try:
        y = torch.ops.aten.convolution(x64, w64, bias64, stride, padding, dilation, transposed, output_padding, groups)
    except RuntimeError:  # no such convolution
        return
    if y.numel() == 0:
        return
    grad = torch.randn_like(y).to(dtype)
    grad_x, grad_w = torch.autograd.grad(y, (x64, w64), grad.double())
    attrs = [len(stride), *stride, *padding, *dilation, transposed, *output_padding, groups]

    def lay(image):
        return relayout(image, pick.choice(layouts))

    x, w, grad = lay(x), lay(w), lay(grad)
    out = lay(empty(*y.shape, dtype=dtype))
    chip.run("convolution", [x, w, bias], out, attrs)
    close(out, y.detach(), dtype, 2)
    out = lay(empty(*x.shape, dtype=dtype))
    chip.run("convolution_backward_input", [grad, w], out, attrs)
    close(out, grad_x, dtype, 2)
    out = lay(empty(*w.shape, dtype=dtype))
    chip.run("convolution_backward_weight", [grad, x], out, attrs)
    close(out, grad_w, dtype, 2)


@pytest.mark.parametrize("layouts", [["row_major"], ["channels_last"], ["row_major", "channels_last"]], ids=len)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_convolution(chip, dtype, layouts, seed):
    torch.manual_seed(seed)
    pick = random.Random(seed)
    for _ in range(5):
        dims, groups = pick.choice([1, 2, 2, 3]), pick.choice([1, 1, 2, 3])
        ins, outs = pick.choice([1, 2, 3, 8, 17]), pick.choice([1, 4, 5, 16, 20])
        if pick.random() < 0.2:
            groups, ins, outs = 18, 1, pick.choice([1, 2])
        kernel = [pick.choice([1, 2, 3, 5]) for _ in range(dims)]
        stride = [pick.choice([1, 1, 2, 3]) for _ in range(dims)]
        dilation = [pick.choice([1, 1, 2]) for _ in range(dims)]
        padding = [pick.randint(0, 2) for _ in range(dims)]
        if pick.random() < 0.25:
            kernel, padding = [1] * dims, [0] * dims
        transposed = pick.random() < 0.3
        output_padding = [
            pick.randint(0, max(s, d) - 1) if transposed else 0 for s, d in zip(stride, dilation, strict=True)
        ]
        most = {1: 60, 2: 30, 3: 10}[dims]
        size = [pick.randint(d * (k - 1) + 1, most) for d, k in zip(dilation, kernel, strict=True)]
        batch = pick.choice([1, 2, 5])
        weight_shape = (groups * ins, outs) if transposed else (groups * outs, ins)
        case = (
            make(batch, groups * ins, *size, dtype=dtype),
            make(*weight_shape, *kernel, dtype=dtype),
            make(groups * outs, dtype=dtype) if pick.random() < 0.5 else None,
            stride, padding, dilation, transposed, output_padding, groups,
        )  # fmt: skip
        run_convolutions(chip, dtype, case, layouts, pick)


@pytest.mark.parametrize("layout", ["row_major", "channels_last"])
@pytest.mark.parametrize("seed", range(6))
def test_convolution_3x3(chip, layout, seed):
    """The shapes that are computed in Winograd's domain."""
    torch.manual_seed(seed)
    pick = random.Random(seed)
    batch, ins, outs = pick.choice([1, 2, 5]), pick.choice([32, 33, 64]), pick.choice([32, 45, 130])
    size, padding = [pick.randint(14, 40), pick.randint(14, 40)], [pick.randint(0, 2), pick.randint(0, 2)]
    x, w = torch.randn(batch, ins, *size), torch.randn(outs, ins, 3, 3)
    case = (x, w, torch.randn(outs), [1, 1], padding, [1, 1], False, [0, 0], 1)
    run_convolutions(chip, torch.float32, case, [layout], pick)


# ---- pooling ----


def pool_case(pick, dims):
    kernel = [pick.randint(1, 4) for _ in range(dims)]
    stride = [pick.randint(1, 3) for _ in range(dims)]
    padding = [pick.randint(0, k // 2) for k in kernel]
    dilation = [pick.choice([1, 1, 2]) for _ in range(dims)]
    size = [pick.randint(d * (k - 1) + 1, 16 if dims == 3 else 40) for k, d in zip(kernel, dilation, strict=True)]
    return kernel, stride, padding, dilation, (pick.choice([1, 3]), pick.choice([1, 3, 16, 33]), *size)


@pytest.mark.parametrize("dtype", FLOATS + INTS, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_max_pool(chip, dtype, seed):
    torch.manual_seed(seed)
    pick = random.Random(seed)
    dims = pick.choice([2, 2, 3]) if dtype.is_floating_point else 2
    kernel, stride, padding, dilation, shape = pool_case(pick, dims)
    x = torch.randint(-9 if dtype is not torch.uint8 else 0, 9, shape).to(dtype)
    if dtype.is_floating_point and pick.random() < 0.5:
        x.view(-1)[pick.randrange(x.numel())] = math.nan
    if dtype.is_floating_point and pick.random() < 0.2:
        x.fill_(-math.inf)
    pool = F.max_pool2d if dims == 2 else F.max_pool3d
    y, places = pool(x if dtype.is_floating_point else x.long(), kernel, stride, padding, dilation, return_indices=True)
    x = relayout(x, pick.choice(IMAGES))
    out, indices = empty(*y.shape, dtype=dtype), relayout(torch.full_like(places, -7), pick.choice(IMAGES))
    chip.run("max_pool", [x], [relayout(out, "row_major"), indices], [dims, *kernel, *stride, *padding, *dilation])
    out = relayout(out, pick.choice(IMAGES))
    chip.run("max_pool", [x], [out, indices], [dims, *kernel, *stride, *padding, *dilation])
    assert torch.equal(out.nan_to_num(99) if dtype.is_floating_point else out, y.to(dtype).nan_to_num(99))
    assert torch.equal(indices, places)
    if not dtype.is_floating_point:
        return
    grad = relayout(make(*y.shape, dtype=dtype), pick.choice(IMAGES))
    expected = torch.zeros(*shape[:2], math.prod(shape[2:]), dtype=torch.float64)
    expected.scatter_add_(2, places.flatten(2), grad.double().contiguous().flatten(2))
    out = relayout(empty(*shape, dtype=dtype), pick.choice(IMAGES))
    chip.run("max_pool_backward", [grad, indices], out, [dims])
    close(out, expected.view(shape), dtype)


@pytest.mark.parametrize("adaptive", [False, True], ids=["regular", "adaptive"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_avg_pool(chip, dtype, adaptive, seed):
    torch.manual_seed(seed)
    pick = random.Random(seed)
    dims = pick.choice([2, 2, 3])
    kernel, stride, padding, _, shape = pool_case(pick, dims)
    x = relayout(make(*shape, dtype=dtype), pick.choice(IMAGES))
    x64 = x.double().contiguous().requires_grad_()
    if adaptive:
        size = [1] * dims if pick.random() < 0.4 else [pick.choice([2, 5, 7]) for _ in range(dims)]
        y = (F.adaptive_avg_pool2d if dims == 2 else F.adaptive_avg_pool3d)(x64, size)
        name, attrs = "adaptive_avg_pool", [dims]
    else:
        include, divisor = pick.random() < 0.5, pick.choice([None, None, 3])
        y = (F.avg_pool2d if dims == 2 else F.avg_pool3d)(x64, kernel, stride, padding, False, include, divisor)
        name, attrs = "avg_pool", [dims, *kernel, *stride, *padding, include, divisor or 0]
    out = relayout(empty(*y.shape, dtype=dtype), pick.choice(IMAGES))
    chip.run(name, [x], out, attrs)
    close(out, y.detach(), dtype)
    grad = relayout(make(*y.shape, dtype=dtype), pick.choice(IMAGES))
    out = relayout(empty(*shape, dtype=dtype), pick.choice(IMAGES))
    chip.run(name + "_backward", [grad], out, attrs)
    close(out, torch.autograd.grad(y, x64, grad.double())[0], dtype)
