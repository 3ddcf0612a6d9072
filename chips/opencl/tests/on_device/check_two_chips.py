"""The reference chip and OpenCL in one process: tensors move between them, mistakes are told. Run by test_opencl.py."""

from __future__ import annotations

import copy
import os

import pytest
import torch

import torch_fl

REFERENCE, OPENCL = torch.device("fl:1"), torch.device(os.environ.get("FL_TEST_DEVICE", "fl:2"))


def test_both_are_listed() -> None:
    devices = {d["device"]: d["adapter"] for d in torch_fl.list_devices()}
    assert devices["fl:0"] == devices["fl:1"] == "ninguang" and devices[str(OPENCL)] == "opencl"


@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize("layout", ["dense", "transposed", "sliced", "other type", "bits"])
def test_tensors_move(layout: str, non_blocking: bool) -> None:
    x = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0))
    views = {"dense": lambda t: t, "transposed": lambda t: t.transpose(0, 2), "sliced": lambda t: t[1:, ::2],
             "other type": lambda t: t.to(torch.int32), "bits": lambda t: torch._neg_view(t)}  # fmt: skip
    for source, target in ((REFERENCE, OPENCL), (OPENCL, REFERENCE)):
        moved = views[layout](x.to(source)).to(target, non_blocking=non_blocking)
        assert moved.device == target and torch.equal(moved.cpu().resolve_neg(), views[layout](x).resolve_neg())
        into = torch.zeros(6, 4, 3, device=target).transpose(0, 1)
        into.copy_(x.to(source), non_blocking=non_blocking)
        assert torch.equal(into.cpu(), x)


def test_copies_are_ordered_with_both_streams() -> None:
    for _ in range(20):
        x = torch.zeros(1000, device=REFERENCE)
        for _ in range(5):
            x += 1
        y = x.to(OPENCL, non_blocking=True)
        x.zero_()
        z = (y + 1).to(REFERENCE, non_blocking=True)
        assert (z + x).sum().item() == 6000


def test_operands_of_two_chips_are_refused() -> None:
    a, b = torch.ones(3, device=REFERENCE), torch.ones(3, device=OPENCL)
    for call in (
        lambda: a + b,
        lambda: torch.mm(a[None], b[:, None]),
        lambda: torch.cat([a, b]),
        lambda: torch.where(a > 0, a, b),
        lambda: torch.addmm(a[:1, None], b[None], a[:, None]),
        lambda: torch.nn.functional.layer_norm(a, (3,), b, b),
        lambda: torch.nn.functional.conv1d(a[None, None], b[None, None, :2]),
        lambda: torch.index_select(a, 0, torch.zeros(1, dtype=torch.int64, device=OPENCL)),
    ):
        with pytest.raises(RuntimeError, match="same device") as caught:
            call()
        assert str(REFERENCE) in str(caught.value) and str(OPENCL) in str(caught.value)


def test_a_model_over_both_chips() -> None:
    torch.manual_seed(0)
    first, second, x = torch.nn.Linear(4, 5), torch.nn.Linear(5, 2), torch.randn(3, 4)

    def grads(a: torch.device, b: torch.device) -> list[torch.Tensor]:
        one, two = copy.deepcopy(first).to(a), copy.deepcopy(second).to(b)
        two(torch.relu(one(x.to(a))).to(b)).square().sum().backward()
        assert all(p.grad.device == a for p in one.parameters()) and all(p.grad.device == b for p in two.parameters())
        return [p.grad.cpu() for p in (*one.parameters(), *two.parameters())]

    wanted = grads(torch.device("cpu"), torch.device("cpu"))
    for a, b in ((REFERENCE, OPENCL), (OPENCL, REFERENCE), (OPENCL, OPENCL)):
        for got, want in zip(grads(a, b), wanted, strict=True):
            torch.testing.assert_close(got, want)


def test_the_same_random_numbers_on_both() -> None:
    torch.manual_seed(4)
    mine = torch.rand(1000, device=OPENCL).cpu()
    torch.manual_seed(4)
    assert torch.equal(torch.rand(1000, device=REFERENCE).cpu(), mine)


def test_a_side_stream_of_each() -> None:
    mine, theirs = torch.Stream(REFERENCE), torch.Stream(OPENCL)
    with mine:
        x = torch.ones(100, device=REFERENCE) * 3
    theirs.wait_event(mine.record_event())
    with theirs:
        y = torch.ones(100, device=OPENCL)
    mine.wait_stream(theirs)
    torch.accelerator.synchronize(OPENCL)
    assert x.sum().item() == 300 and y.sum().item() == 100


def test_each_counts_its_own() -> None:
    with torch_fl.routing.track() as seen:
        x = torch.ones(100, device=OPENCL)
        x + x
    assert set(seen.calls) == {OPENCL.index}
