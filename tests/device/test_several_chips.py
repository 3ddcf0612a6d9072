"""Several chips in one process: the list and its choice, what each device has of its own, copies by several threads,
a model over two chips, a lost device, a chip that comes late. Each in a process of its own."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

LIST = """
import json, torch_fl
print(json.dumps([[d["device"], d["chip"], d["uuid"]] for d in torch_fl.list_devices()]))
"""


@functools.lru_cache(maxsize=1)
def has_pocl() -> bool:
    """Whether an OpenCL runtime that the profile `pocl` knows is here."""
    code = "import torch_fl; torch_fl.register_device('pocl')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=240).returncode == 0


@pytest.fixture
def pocl() -> str:
    """Skips where PoCL is not installed."""
    if not has_pocl():
        pytest.skip("no PoCL here: apt install pocl-opencl-icd ocl-icd-libopencl1")
    return "pocl"


@pytest.fixture
def home(tmp_path: Path) -> str:
    """A home with two profiles of the reference chip's library: one with both kernels and types, one with few."""
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    whole = {"device_name": "whole", "arch": "tgpu-v2", "adapter": "libfl_ninguang.so",
             "match": {"uuid": "NG-0000-0"}}  # fmt: skip
    small = {"device_name": "small", "arch": "tgpu-v2", "adapter": "libfl_ninguang.so",
             "match": {"uuid": "NG-0000-1"},
             "memory_pool": {"prealloc_mb": 0, "min_block_bytes": 4096, "alignment": 256},
             "native_ops": [{"op": "aten::add", "compute": "native"}, {"op": "aten::mul", "compute": "native"},
                            {"op": "aten::uniform_", "compute": "native"},
                            {"op": "aten::gelu", "compute": "cpu"}]}  # fmt: skip
    for profile in (whole, small):
        (profiles / f"{profile['device_name']}.json").write_text(json.dumps(profile))
    return str(tmp_path)


def devices(run_python, **environment: str) -> list[list[str]]:
    return json.loads(run_python(LIST, **environment).stdout.strip().splitlines()[-1])


def test_the_list_is_flat_and_survives_restarts(run_python, home) -> None:
    first = devices(run_python, TORCH_FL_HOME=home, TORCH_FL_CHIPS="whole,small")
    assert first == [["fl:0", "whole", "NG-0000-0"], ["fl:1", "small", "NG-0000-1"]]
    assert devices(run_python, TORCH_FL_HOME=home, TORCH_FL_CHIPS="whole,small") == first
    turned = devices(run_python, TORCH_FL_HOME=home, TORCH_FL_CHIPS="small,whole")
    assert turned == [["fl:0", "small", "NG-0000-1"], ["fl:1", "whole", "NG-0000-0"]]


@pytest.mark.parametrize(("selectors", "chips"), [
    ("1", ["small"]), ("whole:0", ["whole"]), ("NG-0000-1,gone", ["small"]), ("small,0", ["whole", "small"]),
    ("gone,7", []),
])  # fmt: skip
def test_visible_devices(run_python, home, selectors: str, chips: list[str]) -> None:
    """Devices keep the list's order, whatever the order of the selectors; a selector that means none shows none."""
    shown = devices(run_python, TORCH_FL_HOME=home, TORCH_FL_CHIPS="whole,small", TORCH_FL_VISIBLE_DEVICES=selectors)
    assert [chip for _, chip, _ in shown] == chips
    assert [name for name, _, _ in shown] == [f"fl:{i}" for i in range(len(chips))]


def test_each_device_has_its_own_routes_memory_seeds_and_counts(run_python, home) -> None:
    run_python("""
        import torch, torch_fl
        from torch_fl import routing
        whole, small = torch_fl.device("whole"), torch_fl.device("small")
        tier = lambda name, device: routing.explain(name, torch.float32, device).tier
        assert tier("aten::add", whole) == tier("aten::add", small) == "native"
        assert tier("aten::mm", whole) == "native" and tier("aten::mm", small) != "native"
        x = torch.linspace(-2, 2, 9)
        gelu = torch.nn.functional.gelu
        with routing.track() as seen:
            a, b = gelu(x.to(whole)), gelu(x.to(small))
        assert torch.allclose(a.cpu(), b.cpu(), atol=1e-6)
        assert seen.calls[whole.index]["native"]["aten::gelu"] == 1 and "cpu" not in seen.calls[whole.index]
        assert seen.calls[small.index]["cpu"]["aten::gelu"] == 1
        routing.pin("aten::erf", "cpu", whole.index)
        with routing.track() as seen:
            torch.erf(x.to(whole))
        assert seen.calls[whole.index]["cpu"]["aten::erf"] == 1

        held = torch.fl.memory_allocated(whole)
        room = torch.empty(1 << 20, device=small)
        assert torch.fl.memory_allocated(whole) == held and torch.fl.memory_allocated(small) >= 4 << 20
        assert torch.empty(1, device=small).data_ptr() % 256 == 0

        torch.manual_seed(7)  # seeds all
        one = [torch.rand(5, device=d).cpu() for d in (whole, small)]
        assert torch.equal(*one)
        torch.rand(3, device=whole)  # one device's numbers do not move the other's
        state = torch.fl.get_rng_state(small)
        torch.rand(3, device=whole)
        assert torch.equal(torch.fl.get_rng_state(small), state)
        torch.fl.set_rng_state(torch.fl.get_rng_state(whole), small)
        assert torch.equal(torch.rand(5, device=whole).cpu(), torch.rand(5, device=small).cpu())
        mine = torch.Generator(small).manual_seed(3)
        assert torch.equal(torch.rand(5, generator=mine, device=small).cpu(),
                           torch.rand(5, generator=torch.Generator(whole).manual_seed(3), device=whole).cpu())
    """, TORCH_FL_HOME=home, TORCH_FL_CHIPS="whole,small")


def test_copies_by_several_threads(run_python, pocl) -> None:
    """Six threads copy between three devices of two chips at the same time, each both ways, small and large."""
    run_python("""
        import itertools, threading, torch
        devices = [torch.device("fl", i) for i in range(3)]
        errors = []
        def work(a, b, seed):
            try:
                for i, size in enumerate((100, 3_000_000, 70_000) * 3):
                    x = torch.arange(size, dtype=torch.float32) + seed
                    there = x.to(a)
                    there += 1
                    moved = there.to(b, non_blocking=i % 2 == 0)
                    there.zero_()
                    back = (moved * 2).to(a, non_blocking=True)
                    del moved
                    assert torch.equal(back.cpu(), (x + 1) * 2), (a, b, size)
            except BaseException as error:
                errors.append(repr(error))
        threads = [threading.Thread(target=work, args=(a, b, i * 10))
                   for i, (a, b) in enumerate(itertools.permutations(devices, 2))]
        for t in threads: t.start()
        for t in threads: t.join()
        assert not errors, errors
    """, TORCH_FL_CHIPS="ninguang,pocl")


def test_a_chip_that_comes_after_the_first_backward(run_python, pocl) -> None:
    run_python("""
        import warnings, torch, torch_fl
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch_fl.register_device("ninguang")
        torch.ones(3, device="fl:0", requires_grad=True).sum().backward()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            (late,) = torch_fl.register_device("pocl")
            torch_fl.register_device("pocl")
        assert len(told) == 1 and "first backward()" in str(told[0].message) and str(late) in str(told[0].message)
        assert "TORCH_FL_CHIPS" in str(told[0].message) and told[0].filename == "<string>"
        assert (torch.ones(3, device=late) + 1).sum().item() == 6
        try:
            torch.ones(3, device=late, requires_grad=True).sum().backward()
            raise SystemExit("backward() works on a late device: drop the warning")
        except RuntimeError as error:
            assert "device_ready_queues_" in str(error)
        x = torch.ones(3, device="fl:1", requires_grad=True)
        x.sum().backward()
        assert x.grad.tolist() == [1, 1, 1]
    """)
