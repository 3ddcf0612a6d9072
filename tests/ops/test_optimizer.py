"""Fused optimizer steps on the device against PyTorch's single-tensor ones on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from against_cpu import DEVICE

SHAPES = [(5, 7), (3,), (), (2, 3, 4), (0, 2)]


def parameters(dtype: torch.dtype, device: str) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype).to(device)) for s in SHAPES]


def set_gradients(params: list[torch.nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype).to(p.device)


def compare(optimizer: type[torch.optim.Optimizer], dtype: torch.dtype, steps: int = 4, **options: Any) -> None:
    on_cpu, on_device = parameters(dtype, "cpu"), parameters(dtype, DEVICE)
    reference = optimizer(on_cpu, foreach=False, fused=False, **options)  # type: ignore[call-arg]
    fused = optimizer(on_device, fused=True, **options)  # type: ignore[call-arg]
    for step in range(steps):
        for params, stepper in ((on_cpu, reference), (on_device, fused)):
            set_gradients(params, step)
            stepper.step()
    close = 3e-2 if dtype.itemsize == 2 else 1e-5
    for c, d in zip(on_cpu, on_device, strict=True):
        assert d.device == torch.device(DEVICE)
        torch.testing.assert_close(d.detach().cpu(), c.detach(), rtol=close, atol=close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"maximize": True, "betas": (0.5, 0.9), "eps": 1e-4},
                                     {"amsgrad": True}, {"lr": torch.tensor(0.01)}])
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
def test_adam(optimizer: type[torch.optim.Optimizer], options: dict[str, Any], dtype: torch.dtype) -> None:
    if dtype == torch.float16:
        options = {"eps": 1e-3, **options}  # the default vanishes in half
    compare(optimizer, dtype, **{"lr": 0.01, **options})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True},
                                     {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}, {"maximize": True}])
def test_sgd(options: dict[str, Any], dtype: torch.dtype) -> None:
    compare(torch.optim.SGD, dtype, lr=0.05, **options)


def test_parameters_of_different_ages() -> None:
    """A parameter that got no gradient at first has a younger step count."""
    results = []
    for device, options in (("cpu", {"foreach": False, "fused": False}), (DEVICE, {"fused": True})):
        params = parameters(torch.float32, device)
        stepper = torch.optim.Adam(params, lr=0.1, **options)
        for step in range(3):
            set_gradients(params, step)
            if step == 0:
                params[1].grad = None
            stepper.step()
        results.append(params)
    for c, d in zip(*results, strict=True):
        torch.testing.assert_close(d.detach().cpu(), c.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("overflow", [False, True])
def test_gradient_scaler_operands(optimizer: type[torch.optim.Optimizer], overflow: bool) -> None:
    params = parameters(torch.float32, DEVICE)
    before = [p.detach().cpu().clone() for p in params]
    set_gradients(params, 0)
    plain = parameters(torch.float32, DEVICE)
    set_gradients(plain, 0)
    optimizer(plain, lr=0.1, fused=True).step()  # type: ignore[call-arg]
    scaled = optimizer(params, lr=0.1, fused=True)  # type: ignore[call-arg]
    for p in params:
        p.grad.mul_(8)  # type: ignore[union-attr]
    scaled.grad_scale = torch.tensor(8.0, device=DEVICE)  # type: ignore[attr-defined]
    scaled.found_inf = torch.tensor(float(overflow), device=DEVICE)  # type: ignore[attr-defined]
    scaled.step()
    for p, q, b in zip(params, plain, before, strict=True):
        expected = b if overflow else q.detach().cpu()
        torch.testing.assert_close(p.detach().cpu(), expected, rtol=1e-5, atol=1e-6)


def test_channels_last_parameters() -> None:
    results = []
    for device, options in (("cpu", {"foreach": False, "fused": False}), (DEVICE, {"fused": True})):
        x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(1)).to(memory_format=torch.channels_last)
        p = torch.nn.Parameter(x.to(device))
        stepper = torch.optim.AdamW([p], lr=0.1, **options)
        for step in range(2):
            p.grad = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(step)).to(device)
            stepper.step()
        results.append(p.detach().cpu())
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
