"""Two adapters in one process: copies between their devices, autograd on each, mistakes told, names."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import between_devices
import pytest
import torch
from constrained_chip import Chip, drop_aliases

import torch_fl
from torch_fl import routing

NINGUANG = torch.device("fl:1")
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", params=[(), ("-DOPAQUE",)], ids=["pointers", "handles"])
def other(request, tmp_path_factory) -> Iterator[torch.device]:
    name = "second" if not request.param else "second_opaque"
    chip = Chip(tmp_path_factory.mktemp("adapters"), name, "-DSTRIDED_COPY", *request.param)
    yield chip.device
    drop_aliases()


def test_both_are_listed(other: torch.device) -> None:
    devices = {d["device"]: d["chip"] for d in torch_fl.list_devices()}
    assert devices["fl:0"] == devices["fl:1"] == "ninguang" and devices[str(other)].startswith("second")
    assert other.index >= 2 and torch.fl.device_count() == len(devices)
    chip = devices[str(other)]
    assert torch_fl.device(chip) == other and torch.ones(2, device=chip).device == other
    assert torch.fl.get_device_name(other) == "Constrained"
    with pytest.raises(RuntimeError, match="does not exist"):
        torch_fl.device(f"{chip}:1")


@pytest.mark.parametrize("layout", between_devices.LAYOUTS)
@pytest.mark.parametrize("non_blocking", [False, True])
def test_copies_between_chips(other: torch.device, layout: str, non_blocking: bool) -> None:
    between_devices.check_moves(NINGUANG, other, layout, non_blocking)
    between_devices.check_moves(other, NINGUANG, layout, non_blocking)


@pytest.mark.parametrize("size", [1000, 1_000_000])
def test_copies_are_ordered_with_both_streams(other: torch.device, size: int) -> None:
    between_devices.check_order(NINGUANG, other, size, rounds=20 if size < 10_000 else 4)
    between_devices.check_order(other, NINGUANG, size, rounds=20 if size < 10_000 else 4)


def test_memory_without_its_block(other: torch.device) -> None:
    """DLPack brings an address alone; a chip with handles must find the buffer behind it."""
    x = torch.arange(12.0, device=other)
    y = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x[3:9]))
    assert y.device == other and (y + 1).cpu().tolist() == [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    y.mul_(2)
    assert x.cpu().tolist()[2:5] == [2.0, 6.0, 8.0]


def test_tensors_without_elements(other: torch.device) -> None:
    x = torch.empty(0, 3, device=other)
    assert (x * 2 + 1).shape == (0, 3) and x.sum().item() == 0 and torch.cat([x, x]).shape == (0, 3)
    assert torch.mm(x, torch.ones(3, 2, device=other)).shape == (0, 2)
    assert torch.cat([x, torch.ones(1, 3, device=other)]).cpu().tolist() == [[1.0, 1.0, 1.0]]
    assert x.to(NINGUANG).to(other).cpu().shape == (0, 3)


@pytest.mark.parametrize("flags", ["", "-DOPAQUE"])
def test_peers_that_do_not_reach_each_other(run_python, tmp_path, flags: str) -> None:
    run_python(f"""
        import ctypes, pathlib, torch, torch_fl, constrained_chip
        folder, register = pathlib.Path({str(tmp_path)!r}), torch_fl.register_device
        torch_fl.register_device = lambda path: register(path)[:1]
        chip = constrained_chip.Chip(folder, "pair", "-DTWO", "-DSTRIDED_COPY", *{flags!r}.split())
        first, second = chip.device, torch.device("fl", chip.device.index + 1)
        x = torch.arange(12.0).reshape(3, 4)
        for view in (lambda t: t, lambda t: t.t(), lambda t: t[:, ::2]):
            moved = view(x.to(first)).to(second)
            assert moved.device == second and torch.equal(moved.cpu(), view(x))
        assert chip._library.constrained_peer_copies() == 3
    """)


def test_operands_of_two_chips_are_refused(other: torch.device) -> None:
    between_devices.check_refused(NINGUANG, other)
    between_devices.check_refused(other, NINGUANG)


@pytest.mark.parametrize("flags", ["-DSTRIDED_COPY", "-DSTRIDED_COPY -DOPAQUE"])
def test_autograd_runs_on_each_device(run_python, tmp_path, flags: str) -> None:
    # In a process of its own: autograd serves the devices that are there at its first backward.
    run_python(f"""
        import pathlib, torch
        from between_devices import check_gradients
        from constrained_chip import Chip
        other = Chip(pathlib.Path({str(tmp_path)!r}), "second", *{flags!r}.split()).device
        zero, one = torch.device("fl:0"), torch.device("fl:1")
        check_gradients((one, other), (other, one), (other, other), (zero, one))
    """)


def test_each_device_has_its_own_counts_and_memory(other: torch.device) -> None:
    gc.collect()
    held = torch.fl.memory_allocated(NINGUANG)
    with routing.track() as seen:
        x = torch.ones(100, device=other)
        x + x
    assert torch.fl.memory_allocated(NINGUANG) == held and torch.fl.memory_allocated(other) > 0
    assert set(seen.calls) == {other.index}


def test_streams_and_events_of_two_chips(other: torch.device) -> None:
    between_devices.check_streams(NINGUANG, other)
    between_devices.check_streams(other, NINGUANG)


def test_the_same_random_numbers_on_every_chip(other: torch.device) -> None:
    torch.manual_seed(4)
    if routing.explain("aten::uniform_", torch.float32, other).tier == "native":
        assert torch.rand(10, device=other).tolist() == torch.rand(10, device=NINGUANG).tolist()
    first = torch.rand(10, device=other)
    torch.manual_seed(4)
    assert torch.equal(torch.rand(10, device=other).cpu(), first.cpu())
