"""Eigenvalues of symmetric matrices and singular values, by Jacobi rotations; the matrix exponential, by products.

A round rotates n / 2 disjoint pairs of columns at once, as one matrix product; a sweep of n - 1 rounds meets each pair.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from torch_fl.ops.decomposed.factorizations import qr, real_only, solve_triangular
from torch_fl.ops.decompositions import register

_SWEEPS = 12  # each sweep about squares what is left to rotate away

_last_resort = functools.partial(register, last_resort=True)


def _rounds(n: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Round robin: all pairs of n in rounds of disjoint ones."""
    players = list(range(n)) + ([-1] if n % 2 else [])
    rounds = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        pairs = [(a, b) for a, b in zip(players[:half], reversed(players[half:]), strict=True) if -1 not in (a, b)]
        if pairs:
            first, second = zip(*(sorted(pair) for pair in pairs), strict=True)
            rounds.append((torch.tensor(first, device=device), torch.tensor(second, device=device)))
        players = [players[0], players[-1], *players[1:-1]]
    return rounds


def _rotation(app: Tensor, aqq: Tensor, apq: Tensor, p: Tensor, q: Tensor, n: int) -> Tensor:
    """The orthogonal matrix that makes every apq zero."""
    nothing = apq == 0
    theta = (aqq - app) / (2 * torch.where(nothing, 1, apq))
    tangent = torch.where(theta < 0, -1.0, 1.0).to(app.dtype) / (theta.abs() + torch.sqrt(theta * theta + 1))
    tangent = torch.where(nothing, 0, tangent)
    cosine = torch.rsqrt(tangent * tangent + 1)
    sine = tangent * cosine
    J = torch.eye(n, dtype=app.dtype, device=app.device).expand(*app.shape[:-1], n, n).contiguous()
    for row, column, value in ((p, p, cosine), (q, q, cosine), (p, q, sine), (q, p, -sine)):
        J[..., row, column] = value
    return J


def _sweeps(rounds: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(_SWEEPS):
        yield from rounds


@_last_resort("aten::_linalg_eigh")
@real_only
def linalg_eigh(A: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    n = A.size(-1)
    lower = torch.tril(A) if UPLO.upper() == "L" else torch.triu(A).mT
    work = lower + torch.tril(lower, -1).mT
    V = torch.eye(n, dtype=A.dtype, device=A.device).expand_as(A)
    for p, q in _sweeps(_rounds(n, A.device)):
        J = _rotation(work[..., p, p], work[..., q, q], work[..., p, q], p, q, n)
        work = J.mT @ work @ J
        V = V @ J
    values, order = torch.sort(work.diagonal(0, -2, -1), dim=-1)
    if not compute_v:
        return values, A.new_empty(0)
    return values, V.gather(-1, order.unsqueeze(-2).expand_as(A))


def svd(A: Tensor, full_matrices: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """One-sided Jacobi: rotate A's columns until they are orthogonal; their lengths are the singular values."""
    rows, n = A.shape[-2:]
    if rows < n:
        V, S, Uh = svd(A.mT, full_matrices)
        return Uh.mT, S, V.mT
    work = A
    V = torch.eye(n, dtype=A.dtype, device=A.device).expand(*A.shape[:-2], n, n)
    for p, q in _sweeps(_rounds(n, A.device)):
        left, right = work.index_select(-1, p), work.index_select(-1, q)
        products = ((left * left).sum(-2), (right * right).sum(-2), (left * right).sum(-2))
        J = _rotation(*products, p, q, n)
        work, V = work @ J, V @ J
    order = torch.sort((work * work).sum(-2), dim=-1, descending=True).indices
    work = work.gather(-1, order.unsqueeze(-2).expand_as(work))
    V = V.gather(-1, order.unsqueeze(-2).expand_as(V))
    # QR of orthogonal columns scales them to length one, and completes them where the rank or the shape lacks some.
    Q, R = qr(work, complete=full_matrices)
    diagonal = R.diagonal(0, -2, -1)
    sign = torch.where(diagonal < 0, -1.0, 1.0).to(A.dtype)
    signs = torch.cat([sign, sign.new_ones(*sign.shape[:-1], Q.size(-1) - n)], -1)
    return Q * signs.unsqueeze(-2), diagonal.abs(), V.mT


@_last_resort("aten::_linalg_svd")
@real_only
def linalg_svd(A: Tensor, full_matrices: bool = False, compute_uv: bool = True, *,
               driver: str | None = None) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    U, S, Vh = svd(A, full_matrices and compute_uv)
    return (U, S, Vh) if compute_uv else (A.new_empty(0), S, A.new_empty(0))


@_last_resort("aten::linalg_lstsq")
@real_only
def linalg_lstsq(self: Tensor, b: Tensor, rcond: float | None = None, *,
                 driver: str | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """By QR for matrices of full rank; by singular values for the drivers that are asked for them."""
    rows, columns = self.shape[-2:]
    vector = b.dim() == 1 or (self.dim() - 1 == b.dim() and b.shape == self.shape[:-1])
    B = b.unsqueeze(-1) if vector else b
    solved = _by_singular_values(self, B, rcond) if driver in ("gelsd", "gelss") else _by_qr(self, B)
    if solved is NotImplemented:
        return NotImplemented
    X, rank, values = solved
    residuals = self.new_empty(0)
    if rows > columns and driver not in (None, "gelsy"):
        difference = self @ X - B
        residuals = (difference * difference).sum(-2)
    if driver == "gels":
        rank = rank.new_empty(0)
    return (X.squeeze(-1) if vector else X), residuals, rank, values


def _by_qr(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = A.shape[-2:]
    Q, R = qr(A if rows >= columns else A.mT)
    diagonal = R.diagonal(0, -2, -1).abs()
    if diagonal.numel() and (diagonal.amin(-1) <= torch.finfo(A.dtype).eps * rows * diagonal.amax(-1)).any():
        return NotImplemented
    X = (solve_triangular(R, Q.mT @ B, upper=True) if rows >= columns
         else Q @ solve_triangular(R.mT, B, upper=False))  # fmt: skip
    rank = torch.full(A.shape[:-2], min(rows, columns), dtype=torch.int64, device=A.device)
    return X, rank, A.new_empty(0)


def _by_singular_values(A: Tensor, B: Tensor, rcond: float | None) -> tuple[Tensor, Tensor, Tensor]:
    U, S, Vh = svd(A)
    limit = torch.finfo(A.dtype).eps * max(A.shape[-2:]) if rcond is None else rcond
    kept = S > limit * S[..., :1]
    inverse = torch.where(kept, 1 / torch.where(kept, S, 1), 0)
    return Vh.mT @ (inverse.unsqueeze(-1) * (U.mT @ B)), kept.sum(-1), S


@register("aten::linalg_matrix_exp")
def linalg_matrix_exp(self: Tensor) -> Tensor:
    """Scaled until the norm is small, then Taylor's series, then squared back (which doubles errors each time)."""
    n = self.size(-1)
    if self.numel() == 0:
        return self.clone()
    if self.dtype in (torch.float16, torch.bfloat16):
        return linalg_matrix_exp(self.float()).to(self.dtype)
    size = float(self.abs().sum(-2).amax().item())
    if not math.isfinite(size):
        return torch.full_like(self, math.nan)
    limit = 1.0 if self.dtype in (torch.float64, torch.complex128) else 3.0
    squarings = max(0, math.ceil(math.log2(size / limit))) if size > 0 else 0
    small = self / 2.0**squarings
    one = torch.eye(n, dtype=self.dtype, device=self.device).expand_as(self)
    degree = 18
    result = one + small / degree
    for k in range(degree - 1, 0, -1):
        result = one + (small @ result) / k
    for _ in range(squarings):
        result = result @ result
    return result
