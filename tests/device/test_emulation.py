"""Emulation by profile: the host gives a chip nothing that its profile does not declare, and results stay right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
pytestmark = pytest.mark.timeout(600)

ACCELERATOR = [{"op": name} for name in ("add", "mul", "relu", "aten::mm", "aten::addmm", "aten::convolution", "sum")]
PROFILES = {
    # A matrix engine of one type, whose kernels take dense, aligned operands and nothing by value.
    "matrix": {
        "native_ops": ACCELERATOR, "dtypes": ["float32"], "sync_primitive": "stream",
        "memory_pool": {"total_mb": 96, "alignment": 256, "min_block_bytes": 1024},
        "constraints": {"contiguous": True, "no_broadcast": True, "no_immediate": True, "max_ndim": 4, "alignment": 64},
    },
    # The same with a copy engine, and small launches; one operator in half precision only.
    "small": {
        "native_ops": [*ACCELERATOR, {"op": "copy", "constraints": {}}, {"op": "gelu", "dtypes": ["float16"]}],
        "dtypes": ["float32", "float16"], "sync_primitive": "device",
        "constraints": {"contiguous": True, "max_ndim": 3, "max_numel": 8192},
    },
    # All operators, few types and dimensions, and one kernel that reads whole cache lines.
    "wide": {
        "native_ops": [{"op": "*"}, {"op": "softmax", "constraints": {"alignment": 128}},
                       {"op": "gelu", "compute": "cpu"}, {"op": "aten::layer_norm", "compute": "decompose"}],
        "dtypes": ["float32", "int64"], "unified_memory": False, "constraints": {"max_ndim": 2},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PROFILES)
def test_nothing_undeclared_is_launched(name: str, tmp_path: Path) -> None:
    fields = PROFILES[name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(FOLDER)}
    done = subprocess.run([sys.executable, str(FOLDER / "emulated_workload.py"), str(tmp_path), json.dumps(fields)],
                          env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["undeclared"] == []
    assert answer["wrong"] == {}
    assert answer["mm"] == "native" and {"mm", "relu"} <= set(answer["uniops"])  # else nothing was tested
    if name == "wide":
        assert "gelu" not in answer["uniops"] and "aten::gelu" in answer["cpu"]
        assert answer["events"] > 0 and answer["streams"] > 0
    else:
        assert answer["cpu"]
        assert answer["events"] == 0 and (answer["streams"] > 0) == (name == "matrix")
    if name == "matrix":
        assert answer["memory"] == 96 << 20


@pytest.mark.parametrize("sync", ["event", "stream", "device"])
def test_two_profiles_of_one_library(run_python, tmp_path: Path, sync: str) -> None:
    """fl:0 and fl:1 are the reference chip, fl:2 and fl:3 are the same library under another profile."""
    profile = tmp_path / "my-chip.json"
    profile.write_text(json.dumps({
        "device_name": "my-chip", "adapter": "ninguang", "dtypes": ["float32"], "sync_primitive": sync,
        "memory_pool": {"total_mb": 64, "alignment": 512, "min_block_bytes": 2048}, "unified_memory": False,
        "native_ops": [{"op": "add"}, {"op": "mul", "fp16": False},
                       {"op": "mm", "constraints": {"contiguous": True}}]}))
    run_python(f"""
        import torch, torch_fl
        from torch_fl import routing
        torch.fl.init()
        assert [d.index for d in torch_fl.register_device({str(profile)!r})] == [2, 3]
        x = torch.randn(64, 48, generator=torch.Generator().manual_seed(0))
        for device, tier in (("fl:1", "native"), ("fl:3", "cpu")):
            with routing.track() as seen:
                y = torch.exp(x.to(device)) + 1
            torch.testing.assert_close(y.cpu(), x.exp() + 1)
            assert list(seen.calls) == [int(device[-1])], seen.calls
            assert seen[tier].get("aten::exp") == 1 and seen.native["aten::add.Tensor"] == 1, seen.calls
        assert routing.explain("aten::exp", device="fl:1").tier == "native"
        assert routing.explain("aten::mm", torch.float32, "fl:3").tier == "native"
        assert routing.explain("aten::mm", torch.float16, "fl:3").tier != "native"
        torch.testing.assert_close((x.to("fl:3").t() @ x.to("fl:3")).cpu(), x.t() @ x)
        # There and back, from one view of the memory to the other, behind work that is still queued.
        y = x.to("fl:1")
        for _ in range(20):
            y = y * 1.01
            z = (y.to("fl:3") * 2).to("fl:1", non_blocking=True)
            torch.testing.assert_close((z / 2).cpu(), y.cpu())
        free, total = torch.fl.mem_get_info(3)
        assert total == 64 << 20 and torch.fl.mem_get_info(1)[1] > total
        before = torch.fl.memory_allocated(1)
        try:
            torch.empty(65 << 20, dtype=torch.uint8, device="fl:3")
            raise AssertionError("more than the profile's memory")
        except torch.OutOfMemoryError as error:
            assert "out of memory" in str(error)
        assert torch.fl.memory_allocated(1) == before
        small = [torch.empty(3, device="fl:3") for _ in range(4)]
        assert all(t.data_ptr() % 512 == 0 for t in small) and len({{t.data_ptr() // 2048 for t in small}}) == 4
        # Streams and events, or what the host makes of them.
        side, done = torch.fl.Stream(3), torch.fl.Event(enable_timing=True)
        with torch.fl.stream(side):
            a = torch.full((1 << 16,), 3.0, device="fl:3") * 2
            done.record(side)
        done.wait(torch.fl.current_stream(3))
        assert done.query() or {sync!r} == "event"
        assert float((a + 1).sum()) == 7 * (1 << 16)
        start = torch.fl.Event(enable_timing=True)
        start.record(torch.fl.current_stream(3))
        torch.fl.synchronize(3)
        assert done.elapsed_time(start) >= 0
    """)


def test_unified_memory_is_what_the_profile_declares(run_python, tmp_path: Path) -> None:
    for declared in (True, False):
        (tmp_path / f"{declared}.json".lower()).write_text(json.dumps({
            "device_name": f"chip-{declared}".lower(), "adapter": "ninguang", "native_ops": [],
            "unified_memory": declared}))
    code = f"""
        import torch, torch_fl
        from torch_fl import routing
        def moved(profile):
            (device, *_) = torch_fl.register_device({str(tmp_path)!r} + "/" + profile)
            x = torch.rand(8, 8, device=device)
            with routing.track() as seen:
                y = torch.exp(x)
            torch.testing.assert_close(y.cpu(), x.cpu().exp())
            assert seen.cpu_fallback == {{"aten::exp": 1}}
            return seen.bytes_moved[device.index]
    """
    # The operand is read in place, or copied; the result is copied.
    run_python(code + """
        assert (moved("true.json"), moved("false.json")) == (256, 512)
    """, NINGUANG_UNIFIED="1")
    run_python(code + """
        assert moved("false.json") == 512
        try:
            moved("true.json")
        except RuntimeError as error:
            assert "declares unified_memory" in str(error) and "true.json" in str(error), error
        else:
            raise AssertionError("emulated what the adapter does not have")
    """, NINGUANG_UNIFIED="0")
