"""Samples of reductions, scans, matrix products, convolution, pooling, normalization, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_fl.conformance.sample import Make, Sample

__all__ = ["DENSE"]

aten = torch.ops.aten
F = torch.nn.functional


def _each_dim(call: Callable[..., Any], rough: float = 1.0, **domain: float) -> Callable[[Make], list[Sample]]:
    """Samples of call(x, dim) over the first, a middle and the last dimension, also transposed."""

    def samples(make: Make) -> list[Sample]:
        found = [
            Sample(f"dim {dim}", lambda x, dim=dim: call(x, dim), (make(5, 6, 37, **domain),), rough)
            for dim in (0, 1, 2)
        ]
        return found + [Sample("transposed", lambda x: call(x, 0), (make(40, 7, **domain).t(),), rough)]

    return samples


def _one(
    call: Callable[..., Any], *shapes: tuple[int, ...], rough: float = 1.0, **domain: float
) -> Callable[[Make], list[Sample]]:
    return lambda make: [Sample("dense", call, tuple(make(*shape, **domain) for shape in shapes), rough)]


def _reduce(make: Make, call: Callable[..., Any], rough: float = 1.0, **domain: float) -> list[Sample]:
    x = make(5, 6, 37, **domain)
    return [
        Sample("all", lambda x: call(x, [0, 1, 2]), (x,), rough),
        Sample("dim 1", lambda x: call(x, [1]), (x,), rough),
        Sample("dims 0 and 2", lambda x: call(x, [0, 2]), (x,), rough),
        Sample("transposed", lambda x: call(x, [1]), (make(40, 7, **domain).t(),), rough),
    ]


def _sum(make: Make) -> list[Sample]:
    dtype = make.dtype if make.is_float else torch.int64
    return _reduce(make, lambda x, dims: torch.sum(x, dims, dtype=dtype), 10)


def _mm(make: Make) -> list[Sample]:
    call = torch.mm
    return [
        Sample("17x33 by 33x9", call, (make(17, 33), make(33, 9)), 10),
        Sample("transposed", call, (make(33, 17).t(), make(9, 33).t()), 10),
        Sample("one row", call, (make(1, 40), make(40, 3)), 10),
        Sample("130x70 by 70x90", call, (make(130, 70), make(70, 90)), 20),
    ]


def _addmm(make: Make) -> list[Sample]:
    return [
        Sample("bias", torch.addmm, (make(9), make(17, 33), make(33, 9)), 10),
        Sample(
            "alpha and beta",
            lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=3),
            (make(17, 9), make(17, 33), make(33, 9)),
            30,
        ),
    ]


def _bmm(make: Make) -> list[Sample]:
    return [
        Sample("3 of 5x6 by 6x4", torch.bmm, (make(3, 5, 6), make(3, 6, 4)), 10),
        Sample("expanded", torch.bmm, (make(1, 5, 6).expand(3, 5, 6), make(3, 4, 6).transpose(1, 2)), 10),
    ]


def _baddbmm(make: Make) -> list[Sample]:
    return [
        Sample(
            "alpha and beta",
            lambda c, a, b: torch.baddbmm(c, a, b, beta=2, alpha=3),
            (make(3, 5, 4), make(3, 5, 6), make(3, 6, 4)),
            30,
        )
    ]


# input, weight, then stride, padding, dilation, transposed, output padding, groups
CONVOLUTIONS: dict[str, tuple[Any, ...]] = {
    "1d": ((2, 3, 20), (4, 3, 3), [2], [1], [1], False, [0], 1),
    "3x3": ((2, 8, 12, 12), (16, 8, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    "1x1": ((2, 8, 7, 7), (16, 8, 1, 1), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    "stride and dilation": ((2, 4, 17, 15), (6, 4, 3, 3), [2, 1], [2, 1], [2, 1], False, [0, 0], 1),
    "groups": ((2, 6, 9, 9), (12, 2, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 3),
    "depthwise": ((2, 8, 9, 9), (8, 1, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 8),
    "transposed": ((2, 4, 7, 7), (4, 5, 3, 3), [2, 2], [1, 1], [1, 1], True, [1, 1], 1),
    "3d": ((1, 2, 5, 6, 7), (3, 2, 3, 3, 3), [1, 1, 1], [1, 1, 1], [1, 1, 1], False, [0, 0, 0], 1),
}


def _convolution(make: Make) -> list[Sample]:
    found = []
    for label, (image, kernel, *options) in CONVOLUTIONS.items():
        channels = kernel[1] * options[-1] if options[3] else kernel[0]
        found.append(
            Sample(
                label,
                lambda x, w, b, o=options: aten.convolution(x, w, b, *o),
                (make(*image), make(*kernel), make(channels)),
                20,
            )
        )
    image, kernel, *options = CONVOLUTIONS["3x3"]
    channels_last = make(*image).to(memory_format=torch.channels_last)
    found.append(
        Sample(
            "channels last",
            lambda x, w: aten.convolution(x, w, None, *options),
            (channels_last, make(*kernel).to(memory_format=torch.channels_last)),
            20,
        )
    )
    return found


def _convolution_backward(mask: list[bool]) -> Callable[[Make], list[Sample]]:
    def samples(make: Make) -> list[Sample]:
        found = []
        for label, (image, kernel, *options) in CONVOLUTIONS.items():
            x, w = make(*image), make(*kernel)
            shape = aten.convolution(x.float().to("meta"), w.float().to("meta"), None, *options).shape
            found.append(
                Sample(
                    label,
                    lambda g, x, w, o=options: [
                        y for y in aten.convolution_backward(g, x, w, None, *o, mask) if y is not None
                    ],
                    (make(*shape), x, w),
                    40,
                )
            )
        return found

    return samples


def _max_pool(make: Make) -> list[Sample]:
    x = make(2, 3, 13, 12, low=-100, high=100)
    return [
        Sample("3x3", lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (x,)),
        Sample("dilation", lambda x: F.max_pool2d(x, 2, 1, 0, 2, return_indices=True), (x,)),
    ]


def _max_pool_backward(make: Make) -> list[Sample]:
    x = make(2, 3, 12, 12)
    indices = F.max_pool2d(x, 3, 2, 1, return_indices=True)[1]
    return [
        Sample(
            "3x3",
            lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, [3, 3], [2, 2], [1, 1], [1, 1], False, i),
            (make(*indices.shape), x, indices),
            4,
        )
    ]


def _avg_pool(make: Make) -> list[Sample]:
    x = make(2, 3, 13, 12)
    return [
        Sample("3x3", lambda x: F.avg_pool2d(x, 3, 2, 1), (x,), 4),
        Sample("not padding", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (x,), 4),
    ]


def _avg_pool_backward(make: Make) -> list[Sample]:
    return [
        Sample(
            "3x3",
            lambda g, x: aten.avg_pool2d_backward(g, x, [3, 3], [2, 2], [1, 1], False, True, None),
            (make(2, 3, 7, 6), make(2, 3, 13, 12)),
            4,
        )
    ]


def _batch_norm(make: Make) -> list[Sample]:
    def training(x: Any, w: Any, b: Any, mean: Any, var: Any) -> Any:
        return (*aten.native_batch_norm(x, w, b, mean, var, True, 0.1, 1e-5), mean, var)

    def inference(x: Any, w: Any, b: Any, mean: Any, var: Any) -> Any:
        return aten.native_batch_norm(x, w, b, mean, var, False, 0.1, 1e-5)[0]

    def operands() -> tuple[torch.Tensor, ...]:
        return make(4, 5, 6, 6), make(5), make(5), make(5), make(5, low=0.5, high=2)

    return [Sample("training", training, operands(), 10), Sample("inference", inference, operands(), 10)]


def _batch_norm_backward(make: Make) -> list[Sample]:
    def call(g: Any, x: Any, w: Any, mean: Any, invstd: Any) -> Any:
        return aten.native_batch_norm_backward(g, x, w, None, None, mean, invstd, True, 1e-5, [True, True, True])

    x = make(4, 5, 6, 6)
    wide = x.double()
    mean = wide.mean((0, 2, 3)).to(x.dtype)
    invstd = (wide.var((0, 2, 3), correction=0) + 1e-5).rsqrt().to(x.dtype)
    return [Sample("training", call, (make(4, 5, 6, 6), x, make(5), mean, invstd), 40)]


def _layer_norm_backward(make: Make) -> list[Sample]:
    x = make(10, 32)
    _, mean, rstd = aten.native_layer_norm(x, [32], None, None, 1e-5)
    return [
        Sample(
            "rows of 32",
            lambda *o: aten.native_layer_norm_backward(o[0], o[1], [32], *o[2:], [True] * 3),
            (make(10, 32), x, mean, rstd, make(32), make(32)),
            40,
        )
    ]


def _group_norm_backward(make: Make) -> list[Sample]:
    x = make(3, 6, 20)
    _, mean, rstd = aten.native_group_norm(x, None, None, 3, 6, 20, 2, 1e-5)
    return [
        Sample(
            "2 groups",
            lambda g, x, m, r, w: aten.native_group_norm_backward(g, x, m, r, w, 3, 6, 20, 2, [True] * 3),
            (make(3, 6, 20), x, mean, rstd, make(6)),
            40,
        )
    ]


def _rms_norm_backward(make: Make) -> list[Sample]:
    def call(x: Any, w: Any, g: Any) -> Any:
        x, w = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
        return torch.autograd.grad(F.rms_norm(x, [32], w, 1e-5), (x, w), g)

    return [Sample("rows of 32", call, (make(10, 32), make(32), make(10, 32)), 40)]


def _softmax_backward(name: str) -> Callable[[Make], list[Sample]]:
    def samples(make: Make) -> list[Sample]:
        output = getattr(torch, name)(make(5, 6, 37), 1)
        return [
            Sample(
                "dim 1",
                lambda g, y: getattr(aten, f"_{name}_backward_data")(g, y, 1, y.dtype),
                (make(5, 6, 37), output),
                10,
            )
        ]

    return samples


def _attention(call: Callable[..., Any]) -> Callable[[Make], list[Sample]]:
    def samples(make: Make) -> list[Sample]:
        operands = tuple(make(2, 3, 10, 8, low=-1, high=1) for _ in "qkv")
        mask = make(2, 1, 10, 10)
        return [
            Sample("plain", call, (*operands, None, False), 20),
            Sample("causal", call, (*operands, None, True), 20),
            Sample("mask", call, (*operands, mask, False), 20),
        ]

    return samples


def _attend(q: Any, k: Any, v: Any, mask: Any, causal: bool) -> Any:
    if q.device.type == "cpu":
        return F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal)
    return aten._scaled_dot_product_fused_attention_overrideable(q, k, v, mask, 0.0, causal)[0]


def _attend_backward(q: Any, k: Any, v: Any, mask: Any, causal: bool) -> Any:
    operands = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(_attend(*operands, mask, causal).sum(), operands)


DENSE: dict[str, Callable[[Make], list[Sample]]] = {
    "sum": _sum,
    "prod": lambda make: [
        Sample("all", lambda x: x.prod(), (make(40, low=1, high=2),), 10),
        Sample("dim 0", lambda x: x.prod(0), (make(7, 6, low=-2, high=2),), 10),
    ],
    "amax": lambda make: _reduce(make, torch.amax),
    "amin": lambda make: _reduce(make, torch.amin),
    "any": lambda make: _reduce(make, lambda x, dims: torch.any(x, dims)),
    "all": lambda make: _reduce(make, lambda x, dims: torch.all(x, dims)),
    "argmax": _each_dim(torch.argmax),
    "argmin": _each_dim(torch.argmin),
    "max_dim": _each_dim(torch.max),
    "min_dim": _each_dim(torch.min),
    "vector_norm": lambda make: [
        sample
        for power in (2, 1, 0, float("inf"))
        for sample in _reduce(make, lambda x, dims, power=power: torch.linalg.vector_norm(x, power, dims), 10)
    ],
    "var": lambda make: _reduce(make, lambda x, dims: (torch.var(x, dims), torch.std(x, dims, correction=0)), 10),
    "var_mean": lambda make: _reduce(make, lambda x, dims: torch.var_mean(x, dims), 10),
    "logsumexp": lambda make: _reduce(make, torch.logsumexp, 10),
    "cumsum": _each_dim(torch.cumsum, 20),
    "cumprod": _each_dim(torch.cumprod, 20, low=0.5, high=1.5),
    "cummax": _each_dim(torch.cummax),
    "cummin": _each_dim(torch.cummin),
    "logcumsumexp": _each_dim(torch.logcumsumexp, 20),
    "mm": _mm,
    "addmm": _addmm,
    "bmm": _bmm,
    "baddbmm": _baddbmm,
    "convolution": _convolution,
    "convolution_backward_input": _convolution_backward([True, False, False]),
    "convolution_backward_weight": _convolution_backward([False, True, False]),
    "max_pool": _max_pool,
    "max_pool_backward": _max_pool_backward,
    "avg_pool": _avg_pool,
    "avg_pool_backward": _avg_pool_backward,
    "adaptive_avg_pool": _one(
        lambda x: (aten._adaptive_avg_pool2d(x, [3, 5]), aten._adaptive_avg_pool2d(x, [1, 1])), (2, 3, 13, 12), rough=10
    ),
    "adaptive_avg_pool_backward": _one(
        lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), (2, 3, 3, 5), (2, 3, 13, 12), rough=10
    ),
    "batch_norm": _batch_norm,
    "batch_norm_backward": _batch_norm_backward,
    "layer_norm": _one(lambda x, w, b: aten.native_layer_norm(x, [32], w, b, 1e-5), (10, 32), (32,), (32,), rough=10),
    "layer_norm_backward": _layer_norm_backward,
    "group_norm": _one(
        lambda x, w, b: aten.native_group_norm(x, w, b, 3, 6, 20, 2, 1e-5), (3, 6, 20), (6,), (6,), rough=10
    ),
    "group_norm_backward": _group_norm_backward,
    "rms_norm": _one(lambda x, w: F.rms_norm(x, [32], w, 1e-5), (10, 32), (32,), rough=10),
    "rms_norm_backward": _rms_norm_backward,
    "softmax": _each_dim(torch.softmax, 10),
    "log_softmax": _each_dim(torch.log_softmax, 10),
    "softmax_backward": _softmax_backward("softmax"),
    "log_softmax_backward": _softmax_backward("log_softmax"),
    "attention": _attention(_attend),
    "attention_backward": _attention(_attend_backward),
}
