"""The reference chip and OpenCL in one process: tensors move between them, mistakes are told. Run by test_opencl.py."""

from __future__ import annotations

import os

import between_devices
import pytest
import torch

import torch_fl

REFERENCE, OPENCL = torch.device("fl:1"), torch.device(os.environ.get("FL_TEST_DEVICE", "fl:2"))


def test_both_are_listed() -> None:
    devices = {d["device"]: d["adapter"] for d in torch_fl.list_devices()}
    assert devices["fl:0"] == devices["fl:1"] == "ninguang" and devices[str(OPENCL)] == "opencl"


@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize("layout", between_devices.LAYOUTS)
def test_tensors_move(layout: str, non_blocking: bool) -> None:
    between_devices.check_moves(REFERENCE, OPENCL, layout, non_blocking)
    between_devices.check_moves(OPENCL, REFERENCE, layout, non_blocking)


def test_copies_are_ordered_with_both_streams() -> None:
    between_devices.check_order(REFERENCE, OPENCL)
    between_devices.check_order(OPENCL, REFERENCE, size=1_000_000, rounds=4)


def test_operands_of_two_chips_are_refused() -> None:
    between_devices.check_refused(REFERENCE, OPENCL)
    between_devices.check_refused(OPENCL, REFERENCE)


def test_a_model_over_both_chips() -> None:
    between_devices.check_gradients((REFERENCE, OPENCL), (OPENCL, REFERENCE), (OPENCL, OPENCL))


def test_the_same_random_numbers_on_both() -> None:
    torch.manual_seed(4)
    mine = torch.rand(1000, device=OPENCL).cpu()
    torch.manual_seed(4)
    assert torch.equal(torch.rand(1000, device=REFERENCE).cpu(), mine)


def test_a_side_stream_of_each() -> None:
    between_devices.check_streams(REFERENCE, OPENCL)
    between_devices.check_streams(OPENCL, REFERENCE)


def test_each_counts_its_own() -> None:
    with torch_fl.routing.track() as seen:
        x = torch.ones(100, device=OPENCL)
        x + x
    assert set(seen.calls) == {OPENCL.index}
