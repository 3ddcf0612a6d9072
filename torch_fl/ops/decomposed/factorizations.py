"""Matrix factorizations, one column at a time over the whole batch: Cholesky, LU, Householder QR, triangular solves.

Last resorts: LAPACK on the CPU is faster than one small kernel after another. Real matrices only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_fl.ops.decompositions import cpu_allowed, register, resize_output

_last_resort = functools.partial(register, last_resort=True)


def real_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decline complex matrices."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(a, Tensor) and a.is_complex() for a in args):
            return NotImplemented
        return function(*args, **kwargs)

    return run


def _eye(n: int, like: Tensor) -> Tensor:
    return torch.eye(n, dtype=like.dtype, device=like.device)


def _first_true(bad: list[Tensor], shape: torch.Size, device: torch.device) -> Tensor:
    """LAPACK's info: one plus the first step that failed, or 0."""
    if not bad:
        return torch.zeros(shape, dtype=torch.int32, device=device)
    steps = torch.stack(bad, -1)
    return torch.where(steps.any(-1), steps.to(torch.int32).argmax(-1) + 1, 0).to(torch.int32)


def _raise_if(info: Tensor, what: str) -> None:
    if info.numel() and (failed := int(info.max().item())):
        raise torch.linalg.LinAlgError(f"{what} (error code: {failed}).")


# Cholesky


def _cholesky(matrix: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
    work = (matrix.mT if upper else matrix).clone(memory_format=torch.contiguous_format)
    n = work.size(-1)
    factor, bad = torch.zeros_like(work), []
    for j in range(n):
        pivot = work[..., j, j]
        bad.append(~(pivot > 0))
        column = work[..., j:, j] / torch.sqrt(pivot).unsqueeze(-1)
        factor[..., j:, j] = column
        tail = column[..., 1:]
        work[..., j + 1 :, j + 1 :] -= tail.unsqueeze(-1) * tail.unsqueeze(-2)
    return (factor.mT if upper else factor), _first_true(bad, matrix.shape[:-2], matrix.device)


@_last_resort("aten::linalg_cholesky_ex")
@real_only
def linalg_cholesky_ex(self: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    factor, info = _cholesky(self, upper)
    if check_errors:
        _raise_if(info, "linalg.cholesky_ex: The factorization could not be completed because the input is not "
                        "positive-definite")  # fmt: skip
    return factor, info


@_last_resort("aten::cholesky")
@real_only
def cholesky(self: Tensor, upper: bool = False) -> Tensor:
    factor, info = _cholesky(self, upper)
    _raise_if(info, "cholesky: The factorization could not be completed because the input is not positive-definite")
    return factor


@_last_resort("aten::_cholesky_solve_helper")
@real_only
def cholesky_solve(self: Tensor, A: Tensor, upper: bool) -> Tensor:
    lower = A.mT if upper else A
    return solve_triangular(lower.mT, solve_triangular(lower, self, upper=False), upper=True)


@_last_resort("aten::cholesky_inverse")
@real_only
def cholesky_inverse(self: Tensor, upper: bool = False) -> Tensor:
    return cholesky_solve(_eye(self.size(-1), self).expand_as(self), self, upper)


# Triangular systems


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """X with A X = B (or X A = B); only A's named triangle is read."""
    if not left:
        return solve_triangular(A.mT, B.mT, upper=not upper, unitriangular=unitriangular).mT
    batch = torch.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    A, B = A.expand(*batch, *A.shape[-2:]), B.expand(*batch, *B.shape[-2:])
    n = A.size(-1)
    X = B.clone(memory_format=torch.contiguous_format)
    for i in reversed(range(n)) if upper else range(n):
        known = slice(i + 1, n) if upper else slice(0, i)
        row = X[..., i : i + 1, :]
        if known.stop > known.start:
            row = row - A[..., i : i + 1, known] @ X[..., known, :]
        X[..., i : i + 1, :] = row if unitriangular else row / A[..., i : i + 1, i : i + 1]
    return X


@_last_resort("aten::linalg_solve_triangular")
@real_only
def linalg_solve_triangular(self: Tensor, B: Tensor, *, upper: bool, left: bool = True,
                            unitriangular: bool = False) -> Tensor:  # fmt: skip
    return solve_triangular(self, B, upper=upper, left=left, unitriangular=unitriangular)


@_last_resort("aten::linalg_solve_triangular.out")
@real_only
def linalg_solve_triangular_out(self: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False,
                                out: Tensor) -> Tensor:  # fmt: skip
    X = solve_triangular(self, B, upper=upper, left=left, unitriangular=unitriangular)
    resize_output(out, X.shape)
    return out.copy_(X)


@_last_resort("aten::triangular_solve")
@real_only
def triangular_solve(self: Tensor, A: Tensor, upper: bool = True, transpose: bool = False,
                     unitriangular: bool = False) -> tuple[Tensor, Tensor]:  # fmt: skip
    matrix = A.mT if transpose else A
    X = solve_triangular(matrix, self, upper=upper != transpose, unitriangular=unitriangular)
    return X, A.expand(*X.shape[:-2], *A.shape[-2:]).clone()


# LU with partial pivoting


def lu_factor(A: Tensor, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """(L and U in one matrix, the row each row was exchanged with counted from 1, info)"""
    work = A.clone(memory_format=torch.contiguous_format)
    rows, columns = A.shape[-2:]
    steps, pivots, bad = min(rows, columns), [], []
    for k in range(steps):
        if pivot:
            chosen = work[..., k:, k].abs().argmax(-1, keepdim=True) + k
            pivots.append(chosen.squeeze(-1) + 1)
            place = chosen.unsqueeze(-1).expand(*chosen.shape[:-1], 1, columns)
            top, other = work[..., k : k + 1, :].clone(), work.gather(-2, place)
            work.scatter_(-2, place, top)
            work[..., k : k + 1, :] = other
        diagonal = work[..., k, k]
        bad.append(diagonal == 0)
        factor = work[..., k + 1 :, k] / torch.where(diagonal == 0, 1, diagonal).unsqueeze(-1)
        work[..., k + 1 :, k] = factor
        work[..., k + 1 :, k + 1 :] -= factor.unsqueeze(-1) * work[..., k, k + 1 :].unsqueeze(-2)
    batch = A.shape[:-2]
    if pivot and pivots:
        exchanged = torch.stack(pivots, -1).to(torch.int32)
    else:
        exchanged = torch.arange(1, steps + 1, dtype=torch.int32, device=A.device).expand(*batch, steps).contiguous()
    return work, exchanged, _first_true(bad, batch, A.device)


def _order(pivots: Tensor, rows: int) -> Tensor:
    """The row of A that stands at each row of L U."""
    order = torch.arange(rows, device=pivots.device).expand(*pivots.shape[:-1], rows).contiguous()
    for k in range(pivots.size(-1)):
        place = (pivots[..., k : k + 1] - 1).to(torch.int64)
        top, other = order[..., k : k + 1].clone(), order.gather(-1, place)
        order.scatter_(-1, place, top)
        order[..., k : k + 1] = other
    return order


def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """X with A X = B or X A = B, where A (or its transpose) was factored."""
    if not left:
        return lu_solve(LU, pivots, B.mT, True, not transpose).mT
    batch = torch.broadcast_shapes(LU.shape[:-2], B.shape[:-2])
    B = B.expand(*batch, *B.shape[-2:])
    order = _order(pivots, LU.size(-1)).expand(*batch, LU.size(-1)).unsqueeze(-1).expand_as(B)
    if not transpose:
        Y = solve_triangular(LU, B.gather(-2, order), upper=False, unitriangular=True)
        return solve_triangular(LU, Y, upper=True)
    Y = solve_triangular(LU.mT, B, upper=False)
    Y = solve_triangular(LU.mT, Y, upper=True, unitriangular=True)
    return torch.empty_like(Y).scatter_(-2, order, Y)


@_last_resort("aten::linalg_lu_factor_ex")
@real_only
def linalg_lu_factor_ex(A: Tensor, *, pivot: bool = True,
                        check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    LU, pivots, info = lu_factor(A, pivot)
    if check_errors:
        _raise_if(info, "torch.linalg.lu_factor_ex: U is exactly zero on its diagonal and using it on lu_solve would "
                        "result in a division by zero")  # fmt: skip
    return LU, pivots, info


@register("aten::lu_unpack")
@real_only
def lu_unpack(LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True,
              unpack_pivots: bool = True) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _unpack(LU_data, LU_pivots, unpack_data, unpack_pivots)


def _unpack(LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool, unpack_pivots: bool) -> tuple[Tensor, ...]:
    rows, columns = LU_data.shape[-2:]
    k = min(rows, columns)
    P = L = U = LU_data.new_empty(0)
    if unpack_data:
        L = torch.tril(LU_data[..., :, :k], -1) + torch.eye(rows, k, dtype=LU_data.dtype, device=LU_data.device)
        U = torch.triu(LU_data[..., :k, :])
    if unpack_pivots:
        order = _order(LU_pivots, rows).unsqueeze(-2)
        ones = torch.ones_like(order, dtype=LU_data.dtype)
        P = LU_data.new_zeros(*LU_data.shape[:-2], rows, rows).scatter_(-2, order, ones)
    return P, L, U


@_last_resort("aten::linalg_lu")
@real_only
def linalg_lu(A: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    LU, pivots, _ = lu_factor(A, pivot)
    return _unpack(LU, pivots, True, pivot)


@register("aten::linalg_lu.out")
@real_only
def linalg_lu_out(A: Tensor, *, pivot: bool = True, P: Tensor, L: Tensor, U: Tensor) -> tuple[Tensor, ...]:
    """Through new results: LAPACK's wrapper in PyTorch writes wrong numbers into strided outputs."""
    factor = torch.ops.aten.linalg_lu if cpu_allowed() else linalg_lu
    for out, result in zip((P, L, U), factor(A, pivot=pivot), strict=True):
        resize_output(out, result.shape)
        out.copy_(result)
    return P, L, U


@_last_resort("aten::linalg_lu_solve")
@real_only
def linalg_lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    return lu_solve(LU, pivots, B, left, adjoint)


@_last_resort("aten::_linalg_solve_ex")
@real_only
def linalg_solve_ex(A: Tensor, B: Tensor, *, left: bool = True,
                    check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    LU, pivots, info = lu_factor(A)
    if check_errors:
        _raise_if(info, "torch.linalg.solve: The solver failed because the input matrix is singular")
    # As torch.linalg.solve: B of one dimension less than A, or of A's batch shape, is a batch of vectors.
    vector = B.dim() == 1 or (A.dim() - 1 == B.dim() and B.shape == A.shape[:-1])
    X = lu_solve(LU, pivots, B.unsqueeze(-1) if vector else B, left or vector)
    return (X.squeeze(-1) if vector else X), LU, pivots, info


@_last_resort("aten::linalg_inv_ex")
@real_only
def linalg_inv_ex(A: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    LU, pivots, info = lu_factor(A)
    if check_errors:
        _raise_if(info, "torch.linalg.inv: The diagonal element is zero, the inversion could not be completed because "
                        "the input matrix is singular")  # fmt: skip
    return lu_solve(LU, pivots, _eye(A.size(-1), A).expand_as(A)), info


def _sign(LU: Tensor, pivots: Tensor) -> Tensor:
    """The sign of the determinant."""
    place = torch.arange(1, pivots.size(-1) + 1, device=LU.device)
    odd = (pivots != place).sum(-1) % 2
    return torch.prod(torch.sign(LU.diagonal(0, -2, -1)), -1) * (1 - 2 * odd).to(LU.dtype)


@_last_resort("aten::_linalg_det")
@real_only
def linalg_det(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    LU, pivots, _ = lu_factor(A)
    return _sign(LU, pivots) * torch.prod(LU.diagonal(0, -2, -1).abs(), -1), LU, pivots


@_last_resort("aten::_linalg_slogdet")
@real_only
def linalg_slogdet(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    LU, pivots, _ = lu_factor(A)
    return _sign(LU, pivots), LU.diagonal(0, -2, -1).abs().log().sum(-1), LU, pivots


# QR by Householder reflections, in LAPACK's storage


@_last_resort("aten::geqrf")
@real_only
def geqrf(self: Tensor) -> tuple[Tensor, Tensor]:
    return householder_qr(self)


def householder_qr(A: Tensor) -> tuple[Tensor, Tensor]:
    """(R above and the reflections below the diagonal, their factors tau)"""
    work = A.clone(memory_format=torch.contiguous_format)
    rows, columns = A.shape[-2:]
    factors = []
    for k in range(min(rows, columns)):
        head, tail = work[..., k, k].clone(), work[..., k + 1 :, k]
        rest = (tail * tail).sum(-1)
        beta = -torch.where(head < 0, -1.0, 1.0).to(A.dtype) * torch.sqrt(head * head + rest)
        flat = rest == 0  # nothing to reflect
        beta = torch.where(flat, head, beta)
        tau = torch.where(flat, 0, (beta - head) / torch.where(beta == 0, 1, beta))
        below = torch.where(flat, 1, head - beta).unsqueeze(-1)
        vector = torch.cat([torch.ones_like(below), tail / below], -1)
        block = work[..., k:, k + 1 :]
        change = (vector.unsqueeze(-2) @ block) * tau[..., None, None]
        work[..., k:, k + 1 :] = block - vector.unsqueeze(-1) * change
        work[..., k, k] = beta
        work[..., k + 1 :, k] = vector[..., 1:]
        factors.append(tau)
    return work, torch.stack(factors, -1) if factors else A.new_zeros(*A.shape[:-2], 0)


def _reflect(A: Tensor, tau: Tensor, C: Tensor, i: int) -> None:
    """C <- H_i C"""
    ones = torch.ones_like(A[..., :1, i])
    vector = torch.cat([ones, A[..., i + 1 :, i]], -1)
    block = C[..., i:, :]
    C[..., i:, :] = block - vector.unsqueeze(-1) * ((vector.unsqueeze(-2) @ block) * tau[..., i, None, None])


def householder_product(A: Tensor, tau: Tensor, columns: int) -> Tensor:
    """The first columns of H_1 H_2 ... H_k."""
    rows = A.size(-2)
    Q = torch.eye(rows, columns, dtype=A.dtype, device=A.device).expand(*A.shape[:-2], rows, columns).contiguous()
    for i in reversed(range(tau.size(-1))):
        _reflect(A, tau, Q, i)
    return Q


@_last_resort("aten::linalg_householder_product")
@real_only
def linalg_householder_product(input: Tensor, tau: Tensor) -> Tensor:
    return householder_product(input, tau, input.size(-1))


@_last_resort("aten::ormqr")
@real_only
def ormqr(self: Tensor, input2: Tensor, input3: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    C = (input3 if left else input3.mT).clone(memory_format=torch.contiguous_format)
    steps = range(input2.size(-1))
    for i in steps if transpose == left else reversed(steps):
        _reflect(self, input2, C, i)
    return C if left else C.mT


def qr(A: Tensor, complete: bool = False) -> tuple[Tensor, Tensor]:
    rows, columns = A.shape[-2:]
    packed, tau = householder_qr(A)
    size = rows if complete else min(rows, columns)
    return householder_product(packed, tau, size), torch.triu(packed[..., :size, :])


@_last_resort("aten::linalg_qr")
@real_only
def linalg_qr(A: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    if mode == "r":
        packed, _ = householder_qr(A)
        return A.new_empty(0), torch.triu(packed[..., : min(A.shape[-2:]), :])
    return qr(A, mode == "complete")
