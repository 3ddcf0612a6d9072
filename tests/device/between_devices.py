"""What must hold between any two fl devices, of one chip or of two. For the tests of every pair of chips."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda t: t,
    "transposed": lambda t: t.transpose(0, 2),
    "sliced": lambda t: t[1:, ::2],
    "offset": lambda t: t.flatten()[5:],
    "expanded": lambda t: t[:1].expand(3, *t.shape[1:]),
    "other type": lambda t: t.to(torch.int32),
    "half": lambda t: t.to(torch.float16),
    "bits": lambda t: torch._neg_view(t),
    "conjugate": lambda t: torch.complex(t, t + 1).conj(),
    "no dimensions": lambda t: t[0, 0, 0],
    "no elements": lambda t: t[:0],
}


def check_moves(source: torch.device, target: torch.device, layout: str, non_blocking: bool) -> None:
    """A tensor of this layout moves from `source` to `target`, into new memory and into a strided tensor."""
    x = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0))
    view = LAYOUTS[layout]
    wanted = view(x).resolve_conj().resolve_neg()
    moved = view(x.to(source)).to(target, non_blocking=non_blocking)
    assert moved.device == moved.untyped_storage().device == target
    assert torch.equal(moved.cpu().resolve_conj().resolve_neg(), wanted)
    if moved.dim():
        room = torch.zeros(*wanted.shape[:-1], 2 * wanted.shape[-1], dtype=wanted.dtype, device=target)
        room[..., ::2].copy_(view(x.to(source)), non_blocking=non_blocking)
        assert torch.equal(room[..., ::2].cpu(), wanted) and not room[..., 1::2].any()
    into = torch.zeros(6, 4, 3, device=target).transpose(0, 1)
    into.copy_(x.to(source), non_blocking=non_blocking)
    assert torch.equal(into.cpu(), x)


def check_order(source: torch.device, target: torch.device, size: int = 1000, rounds: int = 20) -> None:
    """A copy comes after what either stream had to do, and before what comes later; the source may go at once."""
    for _ in range(rounds):
        x = torch.zeros(size, device=source)
        y = torch.zeros(size, device=target)
        for _ in range(5):
            x += 1
            y -= 1
        y.copy_(x, non_blocking=True)  # after y's own work
        x.zero_()
        del x
        again = torch.full((size,), -7.0, device=source)  # likely in the memory of x
        z = (y + 1).to(source, non_blocking=True)
        y.zero_()
        assert (z + again).cpu().eq(-1).all()


def check_refused(mine: torch.device, theirs: torch.device) -> None:
    """Operators of every tier refuse operands on two devices, and name both."""
    a, b = torch.ones(3, device=mine), torch.ones(3, device=theirs)
    functional = torch.nn.functional
    for call in (
        lambda: a + b,
        lambda: torch.mm(a[None], b[:, None]),
        lambda: a.copy_(b).add_(b),
        lambda: torch.cat([a, b]),
        lambda: torch.where(a > 0, a, b),
        lambda: torch.addmm(a[:1, None], b[None], a[:, None]),
        lambda: torch.linalg.cross(a, b),
        lambda: torch.linalg.solve(torch.eye(3, device=mine), b),
        lambda: functional.layer_norm(a, (3,), b, b),
        lambda: functional.conv1d(a[None, None], b[None, None, :2]),
        lambda: torch.index_select(a, 0, torch.zeros(1, dtype=torch.int64, device=theirs)),
    ):
        with pytest.raises(RuntimeError, match="same device") as caught:
            call()
        assert str(mine) in str(caught.value) and str(theirs) in str(caught.value), caught.value


def check_gradients(*pairs: tuple[torch.device, torch.device]) -> None:
    """A model with its layers on two devices has the CPU's gradients, each on its layer's device."""
    torch.manual_seed(0)
    first, second, x = torch.nn.Linear(4, 5), torch.nn.Linear(5, 2), torch.randn(3, 4)

    def grads(a: torch.device, b: torch.device) -> list[torch.Tensor]:
        one, two = copy.deepcopy(first).to(a), copy.deepcopy(second).to(b)
        two(torch.relu(one(x.to(a))).to(b)).square().sum().backward()
        assert all(p.grad.device == a for p in one.parameters()) and all(p.grad.device == b for p in two.parameters())
        return [p.grad.cpu() for p in (*one.parameters(), *two.parameters())]

    wanted = grads(torch.device("cpu"), torch.device("cpu"))
    for a, b in pairs:
        for got, want in zip(grads(a, b), wanted, strict=True):
            torch.testing.assert_close(got, want)


def check_streams(mine: torch.device, theirs: torch.device) -> None:
    """Side streams of two devices wait for each other's events."""
    a, b = torch.Stream(mine), torch.Stream(theirs)
    with a:
        x = torch.ones(100, device=mine) * 3
    b.wait_event(a.record_event())
    with b:
        y = x.to(theirs, non_blocking=True) + 1
    a.wait_stream(b)
    with a:
        z = y.to(mine, non_blocking=True)
    torch.accelerator.synchronize(mine)
    torch.accelerator.synchronize(theirs)
    assert x.sum().item() == 300 and y.sum().item() == z.sum().item() == 400
