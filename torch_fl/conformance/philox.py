"""Philox4x32-10 in plain tensors: the numbers that every chip must draw for a seed (docs/ops.md, Random)."""

from __future__ import annotations

import torch

__all__ = ["uniform", "words"]

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)


def _multiply(a: int, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the high and the low word of a * b, without overflow of int64: by halves of a."""
    low = (a & 0xFFFF) * b
    high = (a >> 16) * b + (low >> 16)
    return (high >> 16) & MASK, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def words(count: int, seed: int, offset: int = 0) -> torch.Tensor:
    """Return the first `count` 32-bit words, as int64: element i is word i % 4 of counter offset + i / 4."""
    counter = torch.arange((count + 3) // 4, dtype=torch.int64) + offset
    c = [counter & MASK, counter >> 32, torch.zeros_like(counter), torch.zeros_like(counter)]
    key = [seed & MASK, seed >> 32 & MASK]
    for turn in range(10):
        if turn:
            key = [(k + w) & MASK for k, w in zip(key, WEYL, strict=True)]
        high0, low0 = _multiply(MULTIPLIERS[0], c[0])
        high1, low1 = _multiply(MULTIPLIERS[1], c[2])
        c = [high1 ^ c[1] ^ key[0], low1, high0 ^ c[3] ^ key[1], low0]
    return torch.stack(c, 1).reshape(-1)[:count]


def uniform(count: int, seed: int, double: bool = False) -> torch.Tensor:
    """Return float64 numbers in [0, 1): of 24 bits of one word, or 53 bits of two, the first one high."""
    if double:
        pairs = words(2 * count, seed).reshape(-1, 2)
        return ((pairs[:, 0] << 21) | (pairs[:, 1] >> 11)).double() * 2.0**-53
    return (words(count, seed) >> 8).double() * 2.0**-24
