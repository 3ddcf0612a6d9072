"""Two devices of one runtime: copies both ways, streams and events across, autograd on each. Run by test_opencl.py."""

from __future__ import annotations

import copy

import pytest
import torch

import torch_fl

ZERO, ONE = torch.device("fl:0"), torch.device("fl:1")


def test_there_are_two() -> None:
    first, second = torch_fl.list_devices()
    assert first["chip"] == second["chip"] and first["uuid"] != second["uuid"]
    assert "peer" in first["capabilities"]


@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize("layout", ["dense", "transposed", "sliced", "other type"])
def test_peer_copies(layout: str, non_blocking: bool) -> None:
    x = torch.randn(40, 60, 3, generator=torch.Generator().manual_seed(0))
    views = {"dense": lambda t: t, "transposed": lambda t: t.transpose(0, 2), "sliced": lambda t: t[1:, ::2],
             "other type": lambda t: t.to(torch.int32)}  # fmt: skip
    for source, target in ((ZERO, ONE), (ONE, ZERO)):
        moved = views[layout](x.to(source)).to(target, non_blocking=non_blocking)
        assert moved.device == target and torch.equal(moved.cpu(), views[layout](x))


def test_copies_are_ordered_with_both_streams() -> None:
    for _ in range(20):
        x = torch.zeros(1000, device=ZERO)
        for _ in range(5):
            x += 1
        y = x.to(ONE, non_blocking=True)
        x.zero_()
        z = (y + 1).to(ZERO, non_blocking=True)
        assert (z + x).sum().item() == 6000


def test_a_stream_waits_for_the_other_devices_event() -> None:
    x = torch.zeros(1 << 20, device=ZERO)
    for _ in range(10):
        x += 1
    done = torch.Event(ZERO)
    done.record(torch.accelerator.current_stream(ZERO))
    torch.accelerator.current_stream(ONE).wait_event(done)
    with torch.accelerator.device_index(1):
        y = torch.ones(3, device=ONE)
    torch.accelerator.synchronize(ONE)
    assert done.query() and y.sum().item() == 3


def test_operands_of_two_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="same device.*fl:[01].*fl:[01]"):
        torch.ones(3, device=ZERO) + torch.ones(3, device=ONE)


def test_a_model_over_both() -> None:
    torch.manual_seed(0)
    first, second, x = torch.nn.Linear(4, 5), torch.nn.Linear(5, 2), torch.randn(3, 4)

    def grads(a: torch.device, b: torch.device) -> list[torch.Tensor]:
        one, two = copy.deepcopy(first).to(a), copy.deepcopy(second).to(b)
        two(torch.relu(one(x.to(a))).to(b)).square().sum().backward()
        return [p.grad.cpu() for p in (*one.parameters(), *two.parameters())]

    for got, want in zip(grads(ZERO, ONE), grads(torch.device("cpu"), torch.device("cpu")), strict=True):
        torch.testing.assert_close(got, want)


def test_memory_of_each() -> None:
    before = torch.accelerator.memory_allocated(ONE)
    x = torch.ones(1000, device=ZERO)
    assert torch.accelerator.memory_allocated(ONE) == before
    assert torch.accelerator.memory_allocated(ZERO) >= x.numel() * 4
