"""Samples of indexing, creation, random numbers, losses and optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_fl.conformance import philox
from torch_fl.conformance.sample import Make, Sample

__all__ = ["INDEX"]

aten = torch.ops.aten
F = torch.nn.functional


def _gather(make: Make) -> list[Sample]:
    x = make(6, 7, 5)
    return [
        Sample(
            f"dim {dim}", lambda x, i, dim=dim: torch.gather(x, dim, i), (x, make.indices(4, 3, 5, below=x.shape[dim]))
        )
        for dim in range(3)
    ]


def _unique(make: Make, shape: tuple[int, int], dim: int, below: int) -> torch.Tensor:
    """Indices that do not repeat along `dim`, so that the order of writes does not matter."""
    other = shape[1 - dim]
    rows = torch.stack([torch.randperm(below, generator=make._generator)[: shape[dim]] for _ in range(other)])
    return rows if dim == 1 else rows.t()


def _scatter(make: Make) -> list[Sample]:
    return [
        Sample(
            f"dim {dim}",
            lambda x, i, s, dim=dim: torch.scatter(x, dim, i, s),
            (make(8, 8), _unique(make, (5, 6), dim, 8), make(5, 6)),
        )
        for dim in (0, 1)
    ] + [Sample("value", lambda x, i: torch.scatter(x, 1, i, 1), (make(8, 8), make.indices(8, 3, below=8)))]


def _scatter_reduce(make: Make) -> list[Sample]:
    operands = (make(8, 8), make.indices(6, 8, below=8), make(6, 8))
    modes = ("sum", "amax", "amin") if make.dtype != torch.bool else ("amax", "amin")
    return [
        Sample(mode, lambda x, i, s, mode=mode: torch.scatter_reduce(x, 0, i, s, mode), operands, 20) for mode in modes
    ]


def _index_select(make: Make) -> list[Sample]:
    x = make(6, 7, 5)
    return [
        Sample(
            f"dim {dim}", lambda x, i, dim=dim: torch.index_select(x, dim, i), (x, make.indices(9, below=x.shape[dim]))
        )
        for dim in range(3)
    ]


def _index(make: Make) -> list[Sample]:
    i, j = make.indices(4, below=6), make.indices(4, below=7)
    return [
        Sample("one", lambda x, i: x[i], (make(6, 7), i)),
        Sample("two", lambda x, i, j: x[i, j], (make(6, 7), i, j)),
        Sample("second", lambda x, j: x[:, j], (make(6, 7), j)),
        Sample("negative", lambda x, i: x[-1 - i], (make(6, 7), i)),
    ]


def _index_put(make: Make) -> list[Sample]:
    def put(x: Any, i: Any, values: Any, accumulate: bool) -> Any:
        return torch.index_put(x, (i,), values, accumulate)

    i = torch.tensor([0, 3, 5, 1])
    found = [Sample("replace", lambda x, i, v: put(x, i, v, False), (make(6, 7), i, make(4, 7)))]
    if make.dtype != torch.bool:
        repeated = torch.tensor([0, 3, 0, 1])
        found.append(Sample("accumulate", lambda x, i, v: put(x, i, v, True), (make(6, 7), repeated, make(4, 7)), 4))
    return found


def _cat(make: Make) -> list[Sample]:
    return [
        Sample("dim 0", lambda *x: torch.cat(x), (make(3, 4), make(1, 4), make(2, 4))),
        Sample("dim 1", lambda *x: torch.cat(x, 1), (make(3, 4), make(3, 1), make(2, 3).t())),
    ]


def _embedding_backward(make: Make) -> list[Sample]:
    return [
        Sample(
            f"padding {padding}, by frequency {scale}",
            lambda g, i, p=padding, s=scale: aten.embedding_dense_backward(g, i, 10, p, s),
            (make(12, 6), make.indices(12, below=10)),
            10,
        )
        for padding, scale in ((-1, False), (3, True))
    ]


def _distinct(make: Make, *shape: int) -> torch.Tensor:
    """Values that do not repeat, where the type has room for them."""
    count = torch.Size(shape).numel()
    return torch.randperm(count, generator=make._generator).reshape(shape).to(make.dtype)


def _random(
    draw: Callable[[torch.Tensor], torch.Tensor], expected: Callable[[torch.dtype], torch.Tensor], rough: float = 1.0
) -> Callable[[Make], list[Sample]]:
    """A sample that seeds the device and compares with the numbers that every chip must draw."""

    def samples(make: Make) -> list[Sample]:
        def call(x: torch.Tensor) -> torch.Tensor:
            torch.manual_seed(SEED)
            return draw(x)

        return [
            Sample("1003 numbers", call, (torch.zeros(1003, dtype=make.dtype),), rough, lambda: expected(make.dtype))
        ]

    return samples


SEED = 0x1234_5678_9ABC


def _uniform(dtype: torch.dtype, count: int = 1003) -> torch.Tensor:
    return philox.uniform(count, SEED, double=dtype == torch.float64)


def _normal(dtype: torch.dtype) -> torch.Tensor:
    u = _uniform(dtype, 1004).reshape(-1, 2)
    radius, angle = (-2 * torch.log1p(-u[:, 0])).sqrt(), 2 * torch.pi * u[:, 1]
    return torch.stack((radius * angle.cos(), radius * angle.sin()), 1).reshape(-1)[:1003].to(dtype)


def _random_int(dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return philox.words(2006, SEED)[1::2] % 2 == 1
    # Unsigned 64 bits modulo 100, by halves: 2^32 = 96 (mod 100).
    words = philox.words(2006, SEED).reshape(-1, 2)
    return ((words[:, 0] % 100 * 96 + words[:, 1] % 100) % 100).to(dtype)


def _dropout(make: Make) -> list[Sample]:
    x = make(1003)

    def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(SEED)
        return aten.native_dropout(x, 0.25, True)

    def expected() -> tuple[torch.Tensor, torch.Tensor]:
        mask = philox.uniform(1003, SEED) >= 0.25
        return (x.double() * mask / 0.75).to(x.dtype), mask

    return [Sample("1003 numbers", call, (x,), 2, expected)]


def _nll(make: Make) -> list[Sample]:
    target = make.indices(6, below=5)
    target[2] = -100
    return [
        Sample(
            reduction,
            lambda x, t, w, r=reduction: F.nll_loss(x, t, w, reduction=r),
            (make(6, 5), target, make(5, low=0.5, high=1)),
            4,
        )
        for reduction in ("none", "mean", "sum")
    ]


def _nll_backward(make: Make) -> list[Sample]:
    def call(x: Any, t: Any, w: Any) -> Any:
        x = x.detach().clone().requires_grad_()
        return torch.autograd.grad(F.nll_loss(x, t, w), x)

    return [Sample("mean", call, (make(6, 5), make.indices(6, below=5), make(5, low=0.5, high=1)), 4)]


def _adam(make: Make) -> list[Sample]:
    def call(name: str, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        copies = [x.clone() for x in tensors]
        groups = [copies[i : i + 2] for i in range(0, 8, 2)]
        steps = [torch.tensor(3.0, device=copies[0].device) for _ in range(2)]
        getattr(aten, name)(
            *groups,
            [],
            steps,
            lr=0.01,
            beta1=0.9,
            beta2=0.99,
            weight_decay=0.1,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
        return (*groups[0], *groups[2], *groups[3])

    tensors = [make(*shape) for shape in ((5, 6), (7,)) * 3] + [make(*s, low=0.1, high=1) for s in ((5, 6), (7,))]
    return [
        Sample(name, lambda *x, name=name: call(name, *x), tuple(tensors), 10)
        for name in ("_fused_adam_", "_fused_adamw_")
    ]


def _sgd(make: Make) -> list[Sample]:
    def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        copies = [x.clone() for x in tensors]
        aten._fused_sgd_(
            copies[:2],
            copies[2:4],
            copies[4:],
            weight_decay=0.1,
            momentum=0.9,
            lr=0.01,
            dampening=0.1,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
        return (*copies[:2], *copies[4:])

    def expected() -> tuple[torch.Tensor, ...]:  # PyTorch 2.13's CPU kernel is wrong for half types
        wide = [x.double() for x in tensors]
        buffers = [0.9 * b + 0.9 * (g + 0.1 * p) for p, g, b in zip(wide[:2], wide[2:4], wide[4:], strict=True)]
        params = [p - 0.01 * b for p, b in zip(wide[:2], buffers, strict=True)]
        return tuple(x.to(make.dtype) for x in (*params, *buffers))

    tensors = tuple(make(*shape) for shape in ((5, 6), (7,)) * 3)
    return [Sample("momentum", call, tensors, 10, expected)]


INDEX: dict[str, Callable[[Make], list[Sample]]] = {
    "gather": _gather,
    "scatter": _scatter,
    "scatter_reduce": _scatter_reduce,
    "index_select": _index_select,
    "index_add": lambda make: [
        Sample(
            "dim 0", lambda x, i, s: torch.index_add(x, 0, i, s), (make(6, 7), make.indices(9, below=6), make(9, 7)), 20
        )
    ],
    "index_copy": lambda make: [
        Sample("dim 0", lambda x, i, s: torch.index_copy(x, 0, i, s), (make(6, 7), torch.tensor([1, 5, 0]), make(3, 7)))
    ],
    "index": _index,
    "index_put": _index_put,
    "cat": _cat,
    "triangle": lambda make: [Sample("both", lambda x: (x.triu(), x.tril(-1), x.triu(2)), (make(3, 6, 7),))],
    "flip": lambda make: [Sample("dims 0 and 2", lambda x: x.flip(0, 2), (make(3, 4, 5),))],
    "nonzero": lambda make: [Sample("two dims", torch.nonzero, (make(9, 10),))],
    "masked_select": lambda make: [Sample("half", torch.masked_select, (make(9, 10), make(9, 10, dtype=torch.bool)))],
    "embedding_backward": _embedding_backward,
    "sort": lambda make: [
        Sample(
            "both ways",
            lambda x: (*torch.sort(x, stable=True, dim=0), *torch.sort(x, stable=True, descending=True)),
            (make(40, 9),),
        )
    ],
    "topk": lambda make: [
        Sample("3 of 8", lambda x: (*torch.topk(x, 3), *torch.topk(x, 3, 0, largest=False)), (_distinct(make, 8, 8),))
    ],
    "searchsorted": lambda make: [
        Sample(
            "both sides",
            lambda s, v: (torch.searchsorted(s, v), torch.searchsorted(s, v, right=True)),
            (make(50).sort().values, make(20)),
        ),
        Sample("int32", lambda s, v: torch.bucketize(v, s, out_int32=True), (make(50).sort().values, make(20))),
    ],
    "bincount": lambda make: [Sample("counts", torch.bincount, (make(50, low=0, high=9),))],
    "arange": lambda make: [
        Sample(
            "steps",
            lambda x: (
                torch.arange(0, 50, 3, dtype=x.dtype, device=x.device),
                torch.arange(9, 2, -2, dtype=x.dtype, device=x.device),
            ),
            (make(1),),
        )
    ],
    "eye": lambda make: [Sample("5x7", lambda x: torch.eye(5, 7, dtype=x.dtype, device=x.device), (make(1),))],
    "linspace": lambda make: [
        Sample("11 steps", lambda x: torch.linspace(1, 6, 11, dtype=x.dtype, device=x.device), (make(1),), 2)
    ],
    "uniform": _random(lambda x: x.uniform_(), lambda dtype: _uniform(dtype).to(dtype)),
    "normal": _random(lambda x: x.normal_(), _normal, 4),
    "bernoulli": _random(lambda x: x.bernoulli_(0.3), lambda dtype: (philox.uniform(1003, SEED) < 0.3).to(dtype)),
    "random_int": _random(lambda x: x.random_(0, 2 if x.dtype == torch.bool else 100), _random_int),
    "exponential": _random(
        lambda x: x.exponential_(2.0), lambda dtype: (-torch.log1p(-_uniform(dtype)) / 2).to(dtype), 4
    ),
    "dropout": _dropout,
    "nll_loss": _nll,
    "nll_loss_backward": _nll_backward,
    "adam": _adam,
    "sgd": _sgd,
}
