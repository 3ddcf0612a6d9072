"""Random kernels of ninguang against the definitions of uniops.yaml, written again in plain Python."""

import math

import pytest
import torch
from kernels_python import Chip
from test_kernels_elementwise import FLOATS, HALF_LESS, HALVES, REALS, check, values


@pytest.fixture(scope="module")
def chip():
    return Chip()


def philox(seed, counter):
    """The four words of a counter."""
    words = [counter & 0xFFFFFFFF, counter >> 32 & 0xFFFFFFFF, 0, 0]
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        p, q = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [q >> 32 ^ words[1] ^ key[0], q & 0xFFFFFFFF, p >> 32 ^ words[3] ^ key[1], p & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return words


def sequence(seed, offset, n):
    return [word for c in range((n + 3) // 4) for word in philox(seed, offset + c)][:n]


SEED, OFFSET = 0x1234567890ABCDEF, 77


def test_philox_known_answer():
    # From the authors' known-answer file: all zero; the digits of pi have a counter wider than ours.
    assert philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def units(n, dtype):
    if dtype is torch.float64:
        words = sequence(SEED, OFFSET, 2 * n)
        pairs = zip(words[::2], words[1::2], strict=True)
        return torch.tensor([(a << 32 | b) >> 11 for a, b in pairs], dtype=dtype) * 2.0**-53
    return torch.tensor([w >> 8 for w in sequence(SEED, OFFSET, n)], dtype=torch.float32) * 2.0**-24


def test_uniform(chip):
    n = 1501
    for dtype in FLOATS:
        expected = (units(n, dtype) * 4 + -1).to(dtype)
        actual = chip.run("uniform", [], torch.empty(n, dtype=dtype), [SEED, OFFSET, -1.0, 3.0])
        check(actual, expected.clamp(max=torch.nextafter(torch.tensor(3.0), torch.tensor(0.0)).item())
              if dtype in HALF_LESS else torch.where(expected >= 3, actual, expected))  # fmt: skip
        assert (actual < 3).all() and (actual >= -1).all()
    many = chip.run("uniform", [], torch.empty(300_000, dtype=torch.float16), [SEED, OFFSET, 0.0, 1.0])
    assert many.max() < 1 and many.min() >= 0
    same = chip.run("uniform", [], torch.empty(5), [SEED, OFFSET, 2.0, 2.0])
    assert (same == 2).all()


def test_random_is_independent_of_layout(chip):
    dense = chip.run("uniform", [], torch.empty(100, 3001), [SEED, OFFSET, 0.0, 1.0])
    turned = chip.run("uniform", [], torch.empty(3001, 100).t(), [SEED, OFFSET, 0.0, 1.0])
    assert dense.equal(turned)
    dense = chip.run("normal", [], torch.empty(101, 333), [SEED, OFFSET, 0.0, 1.0])
    turned = chip.run("normal", [], torch.empty(333, 101).t(), [SEED, OFFSET, 0.0, 1.0])
    sliced = chip.run("normal", [], torch.empty(101, 999)[:, ::3], [SEED, OFFSET, 0.0, 1.0])
    check(turned, dense)
    check(sliced, dense)
    # A later offset continues the sequence.
    tail = chip.run("uniform", [], torch.empty(1000), [SEED, OFFSET + 25, 0.0, 1.0])
    head = chip.run("uniform", [], torch.empty(1100), [SEED, OFFSET, 0.0, 1.0])
    assert head[100:].equal(tail)


def test_normal(chip):
    n = 2001
    for dtype in FLOATS:
        u = units(n + 1, dtype)
        radius = torch.sqrt(-2 * torch.log(1 - u[::2]))
        angle = 2 * math.pi * u[1::2]
        expected = torch.stack([radius * angle.cos(), radius * angle.sin()], 1).flatten()[:n] * 2 + 5
        actual = chip.run("normal", [], torch.empty(n, dtype=dtype), [SEED, OFFSET, 5.0, 2.0])
        check(actual, expected.to(dtype), rtol=1e-5 if dtype in HALF_LESS else 1e-2, atol=1e-5)
    many = chip.run("normal", [], torch.empty(1_000_000), [1, 0, 0.0, 1.0])
    assert abs(many.mean()) < 4e-3 and abs(many.std() - 1) < 4e-3 and abs((many**4).mean() - 3) < 0.05


def test_exponential(chip):
    for dtype in FLOATS:
        expected = (-torch.log(1 - units(999, dtype)) / 2).to(dtype)
        actual = chip.run("exponential", [], torch.empty(999, dtype=dtype), [SEED, OFFSET, 2.0])
        check(actual, expected, rtol=1e-5 if dtype in HALF_LESS else 1e-2, atol=1e-6)
        assert (chip.run("exponential", [], torch.empty(200_000, dtype=dtype), [1, 0, 2.0]) > 0).all()


def test_bernoulli(chip):
    for dtype in [*REALS, torch.bool]:
        expected = (units(1111, torch.float32) < 0.3).to(dtype)
        check(chip.run("bernoulli", [], torch.empty(1111, dtype=dtype), [SEED, OFFSET, 0.3]), expected)
        check(chip.run("bernoulli", [None], torch.empty(1111, dtype=dtype), [SEED, OFFSET, 0.3]), expected)
        for p_type in HALF_LESS:
            p = torch.rand(1111, dtype=p_type)
            expected = (units(1111, torch.float32) < p).to(dtype)
            actual = chip.run("bernoulli", [p], torch.empty(1111, dtype=dtype), [SEED, OFFSET, None], p_type)
            check(actual, expected)


def test_random_int(chip):
    words = sequence(SEED, OFFSET, 2000)
    wide = [a << 32 | b for a, b in zip(words[::2], words[1::2], strict=False)]
    for dtype in [*REALS, torch.bool]:
        low, span = (0, 2) if dtype is torch.bool else (3, 100)
        expected = torch.tensor([low + w % span for w in wide], dtype=dtype)
        check(chip.run("random_int", [], torch.empty(1000, dtype=dtype), [SEED, OFFSET, low, span]), expected)
    expected = torch.tensor([(w + (1 << 63)) % (1 << 64) - (1 << 63) for w in wide])
    actual = chip.run("random_int", [], torch.empty(1000, dtype=torch.int64), [SEED, OFFSET, 0, 0])
    check(actual, expected)
    low = -(1 << 63)
    actual = chip.run("random_int", [], torch.empty(1000, dtype=torch.int64), [SEED, OFFSET, low, 0])
    check(actual, torch.tensor([w - (1 << 63) for w in wide]))


def test_dropout(chip):
    for dtype in FLOATS:
        x = values(dtype, 3001, special=False)
        out, mask = torch.empty_like(x), torch.empty(3001, dtype=torch.bool)
        chip.run("dropout", [x], [out, mask], [SEED, OFFSET, 0.25])
        expected = units(3001, torch.float32) >= 0.25
        check(mask, expected)
        check(out, (x.float() if dtype in HALVES else x).mul(expected).div(0.75).to(dtype))
        chip.run("dropout", [x], [out, mask], [SEED, OFFSET, 1.0])
        assert not mask.any() and not out.any()
