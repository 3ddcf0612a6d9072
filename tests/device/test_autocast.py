"""Mixed precision: cast lists, nesting, cache, gradients, the gradient scaler."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

DEVICE = "fl:1"
pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_cast_lists(dtype: torch.dtype) -> None:
    a = torch.randn(4, 4, device=DEVICE)
    half = a.to(dtype)
    with torch.autocast("fl", dtype=dtype):
        assert torch.is_autocast_enabled("fl") and torch.get_autocast_dtype("fl") == dtype
        assert (a @ a).dtype == F.linear(a, a).dtype == dtype
        assert torch.bmm(a[None], a[None]).dtype == dtype
        assert F.conv2d(a[None, None], a[None, None]).dtype == dtype
        assert F.scaled_dot_product_attention(a[None], a[None], a[None]).dtype == dtype
        assert F.softmax(half, 0).dtype == torch.float32
        assert F.layer_norm(half, (4,)).dtype == torch.float32
        assert half.exp().dtype == half.sum().dtype == torch.float32
        assert F.cross_entropy(half, torch.zeros(4, dtype=torch.int64, device=DEVICE)).dtype == torch.float32
        assert (half + a).dtype == torch.float32 and (half + half).dtype == dtype and a.relu().dtype == torch.float32
        assert torch.cat([half, a]).dtype == torch.float32
        assert (a.double() @ a.double()).dtype == torch.float64
        with torch.autocast("fl", enabled=False):
            assert (a @ a).dtype == torch.float32
        with pytest.raises(RuntimeError):
            F.binary_cross_entropy(a.sigmoid(), torch.zeros_like(a))
        assert (a.cpu() @ a.cpu()).dtype == torch.float32
    assert (a @ a).dtype == torch.float32 and not torch.is_autocast_enabled("fl")


def test_values_are_those_of_the_lower_type() -> None:
    a, b = torch.randn(8, 8, device=DEVICE), torch.randn(8, 8, device=DEVICE)
    with torch.autocast("fl", dtype=torch.bfloat16):
        result = a @ b
    wanted = (a.bfloat16().float().cpu() @ b.bfloat16().float().cpu()).bfloat16()
    torch.testing.assert_close(result.cpu(), wanted, rtol=1e-2, atol=1e-2)


def test_unsupported_type_is_said() -> None:
    with pytest.warns(UserWarning, match="fl"):
        with torch.autocast("fl", dtype=torch.float64):
            pass
    assert set(torch.fl.get_amp_supported_dtype()) >= {torch.float16, torch.bfloat16}


def test_gradients_keep_the_type_of_parameters() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)).to(DEVICE)
    with torch.autocast("fl", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(torch.randn(4, 8, device=DEVICE)), torch.tensor([0, 1, 0, 1], device=DEVICE))
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all().item() for p in model.parameters())


def test_the_scaler_skips_steps_with_infinities() -> None:
    weight = torch.nn.Parameter(torch.ones(3, device=DEVICE))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("fl", init_scale=8.0, growth_interval=1)
    for factor, wanted, scale in ((1.0, 0.9, 16.0), (float("inf"), 0.9, 8.0), (1.0, 0.8, 16.0)):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.unscale_(optimizer)
        if factor == 1.0:
            assert weight.grad.tolist() == [1, 1, 1]
        scaler.step(optimizer)
        scaler.update()
        assert weight.tolist() == pytest.approx([wanted] * 3)
        assert scaler.get_scale() == scale
