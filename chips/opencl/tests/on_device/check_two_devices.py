"""Two devices of one runtime: copies both ways, streams and events across, autograd on each. Run by test_opencl.py."""

from __future__ import annotations

import between_devices
import pytest
import torch

import torch_fl

ZERO, ONE = torch.device("fl:0"), torch.device("fl:1")


def test_there_are_two() -> None:
    first, second = torch_fl.list_devices()
    assert first["chip"] == second["chip"] and first["uuid"] != second["uuid"]
    assert "peer" in first["capabilities"]


@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize("layout", between_devices.LAYOUTS)
def test_peer_copies(layout: str, non_blocking: bool) -> None:
    between_devices.check_moves(ZERO, ONE, layout, non_blocking)
    between_devices.check_moves(ONE, ZERO, layout, non_blocking)


def test_copies_are_ordered_with_both_streams() -> None:
    between_devices.check_order(ZERO, ONE)
    between_devices.check_streams(ZERO, ONE)


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
    between_devices.check_refused(ZERO, ONE)


def test_a_model_over_both() -> None:
    between_devices.check_gradients((ZERO, ONE), (ONE, ZERO))


def test_memory_of_each() -> None:
    before = torch.accelerator.memory_allocated(ONE)
    x = torch.ones(1000, device=ZERO)
    assert torch.accelerator.memory_allocated(ONE) == before
    assert torch.accelerator.memory_allocated(ZERO) >= x.numel() * 4
