"""Normalization, softmax and attention of ninguang against torch on the CPU."""

import math
import random

import pytest
import torch
import torch.nn.functional as F
from kernels_python import Chip
from test_kernels_nn import FLOATS, HALVES, IMAGES, close, empty, make, relayout


@pytest.fixture(scope="module")
def chip():
    return Chip()


def double(tensor):
    return None if tensor is None else tensor.double()


def leaf(tensor):
    return None if tensor is None else tensor.double().contiguous().requires_grad_()


def parameters(pick, channels, dtype):
    """Weight and bias of dtype, or float32 for half types; both, the weight alone or none."""
    dtype = torch.float32 if dtype in HALVES and pick.random() < 0.5 else dtype
    weight = make(channels, dtype=dtype) if pick.random() < 0.8 else None
    bias = make(channels, dtype=dtype) if weight is not None and pick.random() < 0.8 else None
    return weight, bias, dtype


def statistics_type(dtype):
    return dtype if dtype is torch.float64 else torch.float32


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_batch_norm(chip, dtype, training, seed):
    torch.manual_seed(seed)
    pick = random.Random(seed)
    channels, eps, momentum = pick.choice([1, 3, 16, 17, 40]), 1e-5, 0.1
    shape = (
        pick.choice([2, 8, 33]),
        channels,
        *[pick.choice([1, 7, 16, 30]) for _ in range(pick.choice([0, 1, 2, 3]))],
    )
    images = IMAGES if len(shape) > 2 else ["row_major", "sliced"]
    x = relayout(make(*shape, dtype=dtype) + pick.choice([0, 3]), pick.choice(images))
    weight, bias, dtype_w = parameters(pick, channels, dtype)
    mean, var = make(channels, dtype=dtype_w), make(channels, dtype=dtype_w).abs() + 0.5
    running = [double(mean).clone(), double(var).clone()]
    x64, w64, b64 = leaf(x), leaf(weight), leaf(bias)
    y = F.batch_norm(x64, *running, w64, b64, training, momentum, eps)
    out, saved = relayout(empty(*shape, dtype=dtype), pick.choice(images)), [None, None]
    if training:
        saved = [empty(channels, dtype=statistics_type(dtype)) for _ in range(2)]
    given = [mean.clone(), var.clone()]
    chip.run("batch_norm", [x, weight, bias, mean, var], [out, *saved, *given], [training, momentum, eps])
    close(out, y.detach(), dtype, 8)
    close(given[0], running[0], dtype_w, 2)
    close(given[1], running[1], dtype_w, 4)
    grad = relayout(make(*shape, dtype=dtype), pick.choice(images))
    leaves = [t for t in (x64, w64, b64) if t is not None]
    expected = list(torch.autograd.grad(y, leaves, grad.double()))
    outs = [relayout(empty(*shape, dtype=dtype), pick.choice(images))]
    outs += [empty(channels, dtype=dtype_w) if t is not None else None for t in (weight, bias)]
    chip.run("batch_norm_backward", [grad, x, weight, *(saved if training else [mean, var])], outs, [training, eps])
    for got, want in zip([t for t in outs if t is not None], expected, strict=True):
        close(got, want, dtype, 20)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_row_norm(chip, kind, dtype, seed):
    torch.manual_seed(seed)
    pick = random.Random(seed)
    rows, columns, eps = pick.choice([1, 2, 50, 200]), pick.choice([3, 16, 17, 64, 768, 1000]), 1e-5
    x, centred = make(rows, columns, dtype=dtype) + pick.choice([0, 4]), kind == "layer_norm"
    weight, bias, dtype_w = parameters(pick, columns, dtype)
    bias = bias if centred else None
    x64, w64, b64 = leaf(x), leaf(weight), leaf(bias)
    y = F.layer_norm(x64, [columns], w64, b64, eps) if centred else F.rms_norm(x64, [columns], w64, eps)
    saved = [empty(rows, dtype=statistics_type(dtype)) for _ in range(2 if centred else 1)]
    out = empty(rows, columns, dtype=dtype)
    chip.run(kind, [x, weight, bias] if centred else [x, weight], [out, *saved], [rows, columns, eps])
    close(out, y.detach(), dtype, 6)
    grad = make(rows, columns, dtype=dtype)
    expected = torch.autograd.grad(y, [t for t in (x64, w64, b64) if t is not None], grad.double())
    outs = [empty(rows, columns, dtype=dtype)]
    outs += [empty(columns, dtype=dtype_w) if t is not None else None for t in (weight, bias)][: 2 if centred else 1]
    chip.run(kind + "_backward", [grad, x, *saved, weight], outs, [rows, columns])
    for got, want in zip([t for t in outs if t is not None], expected, strict=True):
        close(got, want, dtype, 20)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_group_norm(chip, dtype, seed):
    torch.manual_seed(seed)
    pick = random.Random(seed)
    batch, groups, plane = pick.choice([1, 2, 5]), pick.choice([1, 2, 4]), pick.choice([5, 49, 300])
    channels = groups * pick.choice([1, 3, 8])
    x = make(batch, channels, plane, dtype=dtype)
    weight, bias, dtype_w = parameters(pick, channels, dtype)
    x64, w64, b64 = leaf(x), leaf(weight), leaf(bias)
    y = F.group_norm(x64, groups, w64, b64, 1e-5)
    saved = [empty(batch, groups, dtype=statistics_type(dtype)) for _ in range(2)]
    out, sizes = empty(*x.shape, dtype=dtype), [batch, channels, plane, groups]
    chip.run("group_norm", [x, weight, bias], [out, *saved], [*sizes, 1e-5])
    close(out, y.detach(), dtype, 6)
    grad = make(*x.shape, dtype=dtype)
    expected = torch.autograd.grad(y, [t for t in (x64, w64, b64) if t is not None], grad.double())
    outs = [empty(*x.shape, dtype=dtype)]
    outs += [empty(channels, dtype=dtype_w) if t is not None else None for t in (weight, bias)]
    chip.run("group_norm_backward", [grad, x, *saved, weight], outs, sizes)
    for got, want in zip([t for t in outs if t is not None], expected, strict=True):
        close(got, want, dtype, 40)


def shuffled(pick, tensor):
    order = list(range(tensor.dim()))
    pick.shuffle(order)
    return tensor.permute(order).contiguous().permute([order.index(d) for d in range(tensor.dim())])


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_softmax(chip, name, dtype, seed):
    torch.manual_seed(seed)
    pick = random.Random(seed)
    shape = [pick.choice([1, 2, 3, 8, 17, 40, 300]) for _ in range(pick.choice([1, 2, 3]))]
    dim = pick.randrange(len(shape))
    x = shuffled(pick, make(*shape, dtype=dtype) * 3)
    if pick.random() < 0.3:
        x[tuple(pick.randrange(s) for s in shape)] = pick.choice([-math.inf, math.nan, math.inf])
    if pick.random() < 0.1:
        x.fill_(-math.inf)
    wide = torch.float32 if dtype in HALVES and pick.random() < 0.3 else dtype
    y = getattr(F, name)(x.double().contiguous(), dim)
    out = shuffled(pick, empty(*shape, dtype=wide))
    chip.run(name, [x], out, [dim])
    close(out, y, dtype)
    if not torch.isfinite(y).all():
        return
    grad, y = shuffled(pick, make(*shape, dtype=wide)), shuffled(pick, y).to(wide)
    backward = getattr(torch.ops.aten, f"_{name}_backward_data")
    out = shuffled(pick, empty(*shape, dtype=dtype))
    chip.run(name + "_backward", [grad, y], out, [dim])
    close(out, backward(grad.double(), y.double(), dim, torch.float64), dtype, 4)


def attention(query, key, value, mask, scale, causal):
    """Weights and values in float64; a row whose keys are all hidden gives zeros."""
    scores = query @ key.transpose(-1, -2) * scale
    if mask is not None:
        scores = scores + mask.double()
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    hidden = scores.amax(-1, keepdim=True) == -math.inf
    weights = torch.softmax(scores.masked_fill(hidden, 0.0), -1) * ~hidden
    return weights @ value, torch.logsumexp(scores, -1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("seed", range(10))
def test_attention(chip, dtype, seed):
    torch.manual_seed(seed)
    pick = random.Random(seed)
    batch, heads = pick.choice([1, 2]), pick.choice([1, 3])
    queries, keys = pick.choice([1, 2, 5, 17, 64, 130]), pick.choice([1, 3, 16, 33, 100, 700])
    depth = pick.choice([3, 16, 32, 64, 80])
    value_depth, causal = pick.choice([depth, depth, 8, 40]), pick.random() < 0.4
    lengths = [(queries, depth), (keys, depth), (keys, value_depth)]

    def lay(tensor):
        dims = pick.choice([None, (1, 2), (2, 3)])
        return tensor.contiguous() if dims is None else tensor.transpose(*dims).contiguous().transpose(*dims)

    q, k, v = (lay(make(batch, heads, length, e, dtype=dtype)) for length, e in lengths)
    mask = None
    if pick.random() < 0.6:
        mask = make(
            *pick.choice([(batch, heads, queries, keys), (1, 1, queries, keys), (batch, 1, 1, keys)]), dtype=dtype
        )
        if pick.random() < 0.5:
            mask.masked_fill_(torch.rand(mask.shape) < 0.5, -math.inf)
        if pick.random() < 0.3:
            mask[..., 0, :] = -math.inf
        mask = mask.expand(batch, heads, queries, keys)
    scale = 1 / math.sqrt(depth)
    leaves = [leaf(t) for t in (q, k, v)]
    y, logsumexp = attention(*leaves, mask, scale, causal)
    out, saved = lay(empty(*y.shape, dtype=dtype)), empty(batch, heads, queries, dtype=torch.float32)
    chip.run("attention", [q, k, v, mask], [out, saved], [scale, causal])
    close(out, y.detach(), dtype, 4)
    close(saved, logsumexp.detach(), torch.bfloat16 if dtype in HALVES else torch.float32, 4)
    grad = lay(make(*y.shape, dtype=dtype))
    expected = torch.autograd.grad(y, leaves, grad.double())
    outs = [lay(empty(*t.shape, dtype=dtype)) for t in (q, k, v)]
    chip.run("attention_backward", [grad, q, k, v, mask, out, saved], outs, [scale, causal], dtype=dtype)
    for got, want in zip(outs, expected, strict=True):
        # The saved logsumexp is float32 also for float64.
        close(got, want, torch.float32 if dtype is torch.float64 else dtype, 8)
