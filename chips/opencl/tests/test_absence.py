"""A machine without OpenCL, without a driver, or with a wrong option: the reason, and what to install."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from opencl_runtimes import environment, runtimes

pytestmark = pytest.mark.timeout(300)


def diagnose(chip: str, **more: str) -> dict:
    done = subprocess.run([sys.executable, "-m", "torch_fl.cli", "diagnose", chip, "--json"],
                          env=environment(chip, **more), capture_output=True, text=True, timeout=280)  # fmt: skip
    assert done.stdout, done.stderr[-3000:]
    (result,) = json.loads(done.stdout)["adapters"]
    return result


def test_no_driver(tmp_path) -> None:
    (tmp_path / "vendors").mkdir()
    result = diagnose("opencl", OCL_ICD_VENDORS=str(tmp_path / "vendors"), OCL_ICD_FILENAMES="")
    assert result["state"] in ("unavailable", "works"), result  # works: a driver that the adapter finds by itself
    if result["state"] == "unavailable":
        assert "install" in result["reason"], result["reason"]


def test_a_chip_that_is_not_here(tmp_path) -> None:
    found, _ = runtimes()
    absent = next((c for c in ("opencl-gpu", "intel-cpu", "pocl") if c not in [r.chip for r in found]), None)
    if absent is None:
        pytest.skip("all chips are here")
    result = diagnose(absent)
    assert result["state"] == "unavailable", result
    for runtime in found:
        assert runtime.device in result["reason"]
