"""Which OpenCL runtimes this machine has, and processes that use one of them.

Each test runs in a process of its own: a runtime's environment is read once, and a runtime that crashes must not take
the other tests with it.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[3]
ON_DEVICE = Path(__file__).with_name("on_device")
SHARED = ROOT / "tests" / "device"  # what holds between any two devices
CACHE = ROOT / "build" / "cache"
CHIPS = (("pocl-*", "pocl"), ("intel-cpu", "intel-cpu"), ("*-gpu", "opencl-gpu"))
MODES = ("usm", "svm", "buffer")
FULL = os.environ.get("FL_OPENCL_FULL") == "1"  # make test-opencl: everything; otherwise what fits into make test


@dataclass(frozen=True)
class Runtime:
    """A chip of profiles/ that has at least one device here."""

    chip: str
    device: str  # the device's own name

    def __str__(self) -> str:
        return self.chip


def environment(chips: str, **more: str) -> dict[str, str]:
    """The variables of a child that opens these chips: none of the user's settings, warm caches below build/."""
    kept = {name: value for name, value in os.environ.items()
            if name == "TORCH_FL_ADAPTER_PATH" or not name.startswith(("TORCH_FL_", "FLAGOS_", "FL_", "PYTEST_"))}
    return kept | {
        "TORCH_FL_HOME": str(ROOT / "build" / "home" / "opencl"), "TORCH_FL_CHIPS": chips,
        "TORCH_FL_CACHE_DIR": str(CACHE), "POCL_CACHE_DIR": str(CACHE / "pocl"), "FL_TEST_DEVICE": "fl:0",
        "FL_OPINFO_SECONDS": "200",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ON_DEVICE), str(SHARED), kept.get("PYTHONPATH")))),
    } | more  # fmt: skip


def run_python(code: str, chips: str = "opencl", timeout: float = 300.0, **more: str) -> str:
    """Run code in a process that opens `chips`; returns what it printed."""
    done = subprocess.run([sys.executable, "-c", code], env=environment(chips, **more), capture_output=True, text=True,
                          timeout=timeout)  # fmt: skip
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}"
    return done.stdout


@functools.lru_cache(maxsize=1)
def runtimes() -> tuple[tuple[Runtime, ...], str]:
    """Return the runtimes that are here, and the reason if there is none."""
    CACHE.mkdir(parents=True, exist_ok=True)
    code = """
import json, torch_fl
from torch_fl import _C
print(json.dumps([torch_fl.list_devices(), [f["reason"] for f in _C.adapter_failures()]]))
"""
    try:
        devices, failures = json.loads(run_python(code).strip().splitlines()[-1])
    except (AssertionError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        return (), f"the OpenCL chip does not open: {error}"
    found = {}
    for device in devices:
        chip = next((chip for glob, chip in CHIPS if fnmatch(device["arch"], glob)), None)
        if chip is not None:
            found.setdefault(chip, Runtime(chip, device["name"]))
    return tuple(found.values()), "; ".join(failures) or "no OpenCL device that a profile knows"


@dataclass(frozen=True)
class Outcome:
    """What a nested pytest found."""

    passed: int
    skipped: int
    failures: dict[str, str]  # test -> last lines

    def text(self) -> str:
        return "\n".join(f"{name}:\n    {' '.join(words.split())[:300]}" for name, words in self.failures.items())


def run_pytest(paths: list[str | Path], chips: str, *words: str, timeout: float = 1200.0, **more: str) -> Outcome:
    """Run tests in a process that opens `chips`.

    Raises:
        AssertionError: pytest itself failed, or the process died; the text has its last output.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short",
                   "-o", "python_files=test_*.py check_*.py", f"--junitxml={report}", *words,
                   *map(str, paths)]  # fmt: skip
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment(chips, **more), capture_output=True, text=True,
                                  timeout=timeout)  # fmt: skip
        except subprocess.TimeoutExpired as hang:
            raise AssertionError(f"no end after {timeout:.0f} s: {(hang.stdout or b'')[-2000:]!r}") from None
        output = (done.stdout + done.stderr)[-4000:]
        assert report.is_file() and done.returncode in (0, 1), f"pytest ended with {done.returncode}:\n{output}"
        suite = ElementTree.parse(report).getroot()
        return _read(suite)


def _read(suite: Any) -> Outcome:
    passed, skipped, failures = 0, 0, {}
    for case in suite.iter("testcase"):
        wrong = next((child for child in case if child.tag in ("failure", "error")), None)
        if wrong is not None:
            failures[f"{case.get('classname')}::{case.get('name')}"] = (wrong.get("message") or "")[:400]
        elif any(child.tag == "skipped" for child in case):
            skipped += 1
        else:
            passed += 1
    return Outcome(passed, skipped, failures)
