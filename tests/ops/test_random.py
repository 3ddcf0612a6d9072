"""Random operators: repeatable from the seed, equal on every device, and of the right distribution."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from against_cpu import DEVICE, check_error

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
COUNT = 40_000


def generator(seed: int = 0, device: str = DEVICE) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed)


def empty(*shape: int, dtype: torch.dtype = torch.float32, device: str = DEVICE) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device=device)


DRAWS: dict[str, Callable[[torch.Tensor, torch.Generator | None], torch.Tensor]] = {
    "uniform": lambda x, g: x.uniform_(generator=g),
    "normal": lambda x, g: x.normal_(generator=g),
    "exponential": lambda x, g: x.exponential_(generator=g),
    "bernoulli": lambda x, g: x.bernoulli_(0.3, generator=g),
    "bernoulli_tensor": lambda x, g: x.bernoulli_(torch.full_like(x, 0.3), generator=g),
    "random": lambda x, g: x.random_(generator=g),
    "random_from": lambda x, g: x.random_(-5, 100, generator=g),
    "log_normal": lambda x, g: x.log_normal_(generator=g),
    "cauchy": lambda x, g: x.cauchy_(generator=g),
    "geometric": lambda x, g: x.geometric_(0.3, generator=g),
    "randperm": lambda x, g: torch.randperm(x.numel(), generator=g, device=x.device),
    "multinomial": lambda x, g: torch.multinomial(torch.ones_like(x), 5, generator=g),
    "multinomial_replacement": lambda x, g: torch.multinomial(torch.ones_like(x), 50, replacement=True, generator=g),
    "normal_tensor": lambda x, g: torch.normal(torch.zeros_like(x), torch.ones_like(x), generator=g),
    "poisson": lambda x, g: torch.poisson(torch.full_like(x, 4.0), generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_repeats_and_advances(name: str) -> None:
    draw, g = DRAWS[name], generator(7)
    first, second = draw(empty(101), g).cpu(), draw(empty(101), g).cpu()
    again = generator(7)
    assert torch.equal(first, draw(empty(101), again).cpu())
    assert torch.equal(second, draw(empty(101), again).cpu())
    assert not torch.equal(first, second)
    assert not torch.equal(first, draw(empty(101), generator(8)).cpu())


@pytest.mark.parametrize("name", DRAWS)
def test_every_device_draws_the_same(name: str) -> None:
    results = [DRAWS[name](empty(101, device=d), generator(3, d)).cpu() for d in ("fl:0", DEVICE)]
    assert torch.equal(*results)


@pytest.mark.parametrize("name", DRAWS)
def test_manual_seed(name: str) -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(11)
        results.append(DRAWS[name](empty(101), None).cpu())
    assert torch.equal(*results)


def test_state_goes_with_the_generator() -> None:
    g = generator(5)
    torch.rand(10, generator=g, device=DEVICE)
    state = g.get_state()
    first = torch.rand(10, generator=g, device=DEVICE).cpu()
    g.set_state(state)
    assert torch.equal(first, torch.rand(10, generator=g, device=DEVICE).cpu())


def philox(seed: int, counter: int) -> list[int]:
    """Philox4x32-10, written from its paper: key = seed, counter = (counter, 0)."""
    words = [counter & 0xFFFFFFFF, counter >> 32, 0, 0]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [(b >> 32) ^ words[1] ^ key[0], b & 0xFFFFFFFF, (a >> 32) ^ words[3] ^ key[1], a & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return words


def test_uniform_numbers_are_philox() -> None:
    seed = 0x123456789ABCDEF
    expected = [(word >> 8) * 2.0**-24 for counter in range(5) for word in philox(seed, counter)]
    assert torch.rand(20, generator=generator(seed), device=DEVICE).tolist() == expected
    g = generator(seed)
    parts = [torch.rand(n, generator=g, device=DEVICE) for n in (8, 12)]
    assert torch.cat(parts).tolist() == expected


@pytest.mark.parametrize("name", ["uniform", "normal", "exponential", "bernoulli", "random"])
def test_strides_do_not_change_the_numbers(name: str) -> None:
    dense = DRAWS[name](empty(6, 10), generator(2))
    transposed = empty(10, 6).t()
    assert torch.equal(DRAWS[name](transposed, generator(2)).cpu(), dense.cpu())
    wide = torch.zeros(6, 20, device=DEVICE)
    assert torch.equal(DRAWS[name](wide[:, ::2], generator(2)).cpu(), dense.cpu())
    assert wide[:, 1::2].eq(0).all()


@pytest.mark.parametrize("name", ["uniform", "normal", "exponential", "bernoulli", "random", "log_normal", "cauchy",
                                  "geometric"])
def test_empty_and_scalar(name: str) -> None:
    g = generator()
    state = g.get_state()
    assert DRAWS[name](empty(0, 3), g).shape == (0, 3)
    assert torch.equal(g.get_state(), state)
    assert DRAWS[name](torch.empty((), device=DEVICE), g).isfinite().item()


# ---- distributions


def moments(x: torch.Tensor) -> tuple[float, float]:
    x = x.cpu().double()
    assert x.isfinite().all()
    return x.mean().item(), x.std().item()


def assert_moments(x: torch.Tensor, mean: float, std: float) -> None:
    """Within five standard errors of the mean, and 5 % of the deviation."""
    m, s = moments(x)
    assert abs(m - mean) < 5 * std / math.sqrt(x.numel()), (m, mean)
    assert abs(s - std) < 0.05 * std, (s, std)


@pytest.mark.parametrize("dtype", FLOATS)
def test_continuous_distributions(dtype: torch.dtype) -> None:
    g = generator(1)
    uniform = empty(COUNT, dtype=dtype).uniform_(-2, 5, generator=g)
    assert uniform.min() >= -2 and uniform.max() < 5
    assert_moments(uniform, 1.5, 7 / math.sqrt(12))
    assert_moments(empty(COUNT, dtype=dtype).normal_(3, 2, generator=g), 3, 2)
    exponential = empty(COUNT, dtype=dtype).exponential_(2, generator=g)
    assert exponential.min() > 0
    assert_moments(exponential, 0.5, 0.5)
    spread = math.exp(0.125) * math.sqrt(math.exp(0.25) - 1)
    assert_moments(empty(COUNT, dtype=dtype).log_normal_(0, 0.5, generator=g), math.exp(0.125), spread)
    cauchy = empty(COUNT, dtype=dtype).cauchy_(2, 3, generator=g).cpu().float()
    assert abs(cauchy.quantile(0.5).item() - 2) < 0.2
    assert abs((cauchy.quantile(0.75) - cauchy.quantile(0.25)).item() - 6) < 0.4


def test_normal_has_normal_quantiles() -> None:
    x = empty(COUNT).normal_(generator=generator(4)).cpu()
    expected = torch.tensor([-1.959964, -0.674490, 0.0, 0.674490, 1.959964])
    actual = x.quantile(torch.tensor([0.025, 0.25, 0.5, 0.75, 0.975]))
    assert (actual - expected).abs().max() < 0.05
    pairs = x.view(-1, 2)  # Box-Muller makes two at a time: they must not depend on each other
    assert abs(torch.corrcoef(pairs.t())[0, 1].item()) < 0.03


def test_complex() -> None:
    x = torch.empty(COUNT, dtype=torch.complex64, device=DEVICE).normal_(generator=generator(1)).cpu()
    assert abs(x.abs().square().mean().item() - 1) < 0.03
    u = torch.rand(100, dtype=torch.complex64, device=DEVICE, generator=generator(1)).cpu()
    assert u.real.min() >= 0 and u.imag.max() < 1


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool])
def test_bernoulli(dtype: torch.dtype) -> None:
    x = empty(COUNT, dtype=dtype).bernoulli_(0.3, generator=generator(2)).cpu()
    assert set(x.unique().tolist()) == {0, 1}
    assert_moments(x, 0.3, math.sqrt(0.21))
    assert empty(100, dtype=dtype).bernoulli_(0.0).sum() == 0
    assert empty(100, dtype=dtype).bernoulli_(1.0).sum() == 100


def test_bernoulli_of_probabilities() -> None:
    p = torch.tensor([0.0, 0.25, 1.0], device=DEVICE)
    x = torch.bernoulli(p.expand(COUNT, 3), generator=generator(2)).cpu()
    assert x[:, 0].sum() == 0 and x[:, 2].sum() == COUNT
    assert_moments(x[:, 1], 0.25, math.sqrt(3 / 16))
    for dtype in (torch.float64, torch.float16):
        y = empty(COUNT, 3).bernoulli_(p.to(dtype), generator=generator(2)).cpu()
        assert_moments(y[:, 1], 0.25, math.sqrt(3 / 16))
    assert torch.bernoulli(p, out=empty(0)).shape == (3,)


@pytest.mark.parametrize("dtype", INTS)
def test_integers(dtype: torch.dtype) -> None:
    g = generator(3)
    x = torch.randint(3, 13, (COUNT,), dtype=dtype, device=DEVICE, generator=g).cpu()
    counts = torch.bincount(x.long(), minlength=13)
    assert counts[:3].sum() == 0
    assert (counts[3:] - COUNT / 10).abs().max() < 5 * math.sqrt(COUNT * 0.09)
    full = empty(COUNT, dtype=dtype).random_(generator=g).cpu()
    top = torch.iinfo(dtype).max
    assert full.min() >= 0 and full.max() <= top
    assert abs(full.double().mean().item() / top - 0.5) < 0.02
    if dtype == torch.int64:
        wide = empty(COUNT, dtype=dtype).random_(-(2**63), None, generator=g).cpu()
        assert abs(wide.double().mean().item()) < 2.0**63 * 0.02 and wide.min() < -(2**62) and wide.max() > 2**62


@pytest.mark.parametrize("dtype", [*FLOATS, torch.bool])
def test_random_of_other_types(dtype: torch.dtype) -> None:
    x = empty(COUNT, dtype=dtype).random_(generator=generator(3)).cpu()
    assert (x == x.floor()).all() if dtype.is_floating_point else 0.4 < x.float().mean() < 0.6
    low_high = empty(1000, dtype=dtype).random_(0, 2, generator=generator(3)).cpu()
    assert set(low_high.float().unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.int8])
def test_geometric(dtype: torch.dtype) -> None:
    x = empty(COUNT, dtype=dtype).geometric_(0.5, generator=generator(6)).cpu()
    assert x.min() == 1
    assert_moments(x, 2, math.sqrt(2))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
def test_randperm(dtype: torch.dtype) -> None:
    for n in (0, 1, 2, 1000):
        x = torch.randperm(n, dtype=dtype, device=DEVICE, generator=generator(n))
        assert x.dtype == dtype and x.device == torch.device(DEVICE)
        assert torch.equal(x.cpu().sort().values, torch.arange(n, dtype=dtype))
    places = torch.stack([torch.randperm(4, device=DEVICE, generator=generator(s)) for s in range(400)]).cpu()
    assert torch.bincount(places[:, 0], minlength=4).min() > 70


def test_multinomial() -> None:
    p = torch.tensor([[1.0, 0.0, 3.0, 4.0], [0.0, 1.0, 0.0, 0.0]], device=DEVICE)
    x = torch.multinomial(p, COUNT, replacement=True, generator=generator(1)).cpu()
    counts = torch.bincount(x[0], minlength=4) / COUNT
    assert (counts - torch.tensor([0.125, 0, 0.375, 0.5])).abs().max() < 0.015
    assert counts[1] == 0
    assert x[1].eq(1).all()
    without = torch.multinomial(p[0], 3, generator=generator(1)).cpu()
    assert sorted(without.tolist()) == [0, 2, 3]
    firsts = torch.multinomial(p[:1].expand(COUNT, 4), 1, generator=generator(2)).cpu().flatten()
    assert (torch.bincount(firsts, minlength=4) / COUNT - torch.tensor([0.125, 0, 0.375, 0.5])).abs().max() < 0.015
    for replacement in (True, False):
        for bad in ([-1.0, 2.0], [float("nan"), 1.0], [float("inf"), 1.0], [0.0, 0.0]):
            check_error(lambda q: torch.multinomial(q, 1 + replacement, replacement), torch.tensor(bad))  # noqa: B023
    check_error(lambda q: torch.multinomial(q, 3), torch.ones(2))


def test_normal_of_tensors() -> None:
    mean, std = torch.tensor([0.0, 10.0], device=DEVICE), torch.tensor([1.0, 3.0], device=DEVICE)
    g = generator(1)
    both = torch.normal(mean.expand(COUNT, 2), std.expand(COUNT, 2), generator=g)
    for k in range(2):
        assert_moments(both[:, k], mean[k].item(), std[k].item())
    assert_moments(torch.normal(mean.expand(COUNT, 2), 2.0, generator=g)[:, 1], 10, 2)
    assert_moments(torch.normal(5.0, std.expand(COUNT, 2), generator=g)[:, 1], 5, 3)
    assert torch.normal(mean, std, out=empty(0)).shape == (2,)
    assert torch.normal(0.0, 1.0, (3,), device=DEVICE).shape == (3,)


# ---- dropout and rrelu


@pytest.mark.parametrize("dtype", FLOATS)
def test_dropout(dtype: torch.dtype) -> None:
    x = torch.ones(200, 200, dtype=dtype, device=DEVICE, requires_grad=True)
    torch.manual_seed(3)
    y = F.dropout(x, 0.25)
    y.sum().backward()
    kept = y.detach().cpu() != 0
    assert abs(kept.float().mean().item() - 0.75) < 0.02
    assert torch.equal(y.detach().cpu()[kept], torch.full_like(y.detach().cpu()[kept], 4 / 3))
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), y.detach().cpu(), rtol=1e-2, atol=0)
    torch.manual_seed(3)
    assert torch.equal(F.dropout(x, 0.25).cpu(), y.cpu())


def test_dropout_edges() -> None:
    x = torch.randn(4, 6, device=DEVICE)
    assert torch.equal(F.dropout(x, 0.5, training=False).cpu(), x.cpu())
    assert torch.equal(F.dropout(x, 0.0).cpu(), x.cpu())
    assert F.dropout(x, 1.0).abs().sum() == 0
    assert F.dropout(x[:0], 0.5).shape == (0, 6)
    out, mask = torch.ops.aten.native_dropout(x[:, ::2], 0.5, True)
    assert torch.equal(out.cpu(), (x[:, ::2] * mask * 2).cpu())
    out, mask = torch.ops.aten.native_dropout(x.t(), 0.5, None)
    assert torch.equal(out.cpu(), (x.t() * mask * 2).cpu())
    out, mask = torch.ops.aten.native_dropout(x, 0.5, False)
    assert mask.all() and torch.equal(out.cpu(), x.cpu())
    check_error(lambda x: F.dropout(x, 1.5), torch.ones(2))


def test_rrelu() -> None:
    x = torch.randn(1000, device=DEVICE, requires_grad=True)
    y = F.rrelu(x, 0.1, 0.3, training=True)
    y.sum().backward()
    host, slope = x.detach().cpu(), (y / x).detach().cpu()
    assert torch.equal(slope[host > 0], torch.ones_like(slope[host > 0]))
    negative = slope[host < 0]
    assert negative.min() > 0.0999 and negative.max() < 0.3001 and abs(negative.mean() - 0.2) < 0.02
    torch.testing.assert_close(x.grad.cpu(), slope)  # type: ignore[union-attr]
    torch.testing.assert_close(F.rrelu(x, 0.1, 0.3).detach().cpu(), F.rrelu(host, 0.1, 0.3))


# ---- errors


def test_errors() -> None:
    x = torch.empty(3)
    check_error(lambda x: x.uniform_(2, 1), x)
    check_error(lambda x: x.uniform_(), x.long())
    check_error(lambda x: x.normal_(0, -1), x)
    check_error(lambda x: x.exponential_(0), x)
    check_error(lambda x: x.bernoulli_(1.5), x)
    check_error(lambda x: x.random_(3, 3), x)
    check_error(lambda x: x.random_(0, 1000), x.to(torch.int8))
    check_error(lambda x: x.geometric_(1.0), x)
    check_error(lambda x: x.log_normal_(0, 0), x)
    check_error(lambda x: x.cauchy_(0, 0), x)
    check_error(lambda x: x.expand(2, 3).uniform_(), x)
    check_error(lambda x: torch.normal(x, x - 1), torch.zeros(3))
    with pytest.raises(RuntimeError):
        torch.randperm(-1, device=DEVICE)
    with pytest.raises(RuntimeError, match="generator"):
        empty(3).uniform_(generator=torch.Generator())
