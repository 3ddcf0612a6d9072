"""What the device tests share: a subprocess runner with a time limit, and faults of the reference chip by context."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest
import torch
from ninguang_faults import Faults

LIMIT = 240  # seconds; a busy machine needs several to import torch


@pytest.fixture
def faults() -> Iterator[Faults]:
    """Arms faults of the reference chip; disarms them and lets reported failures pass at the end."""
    armed = Faults()
    yield armed
    armed.disarm()
    for index in range(torch.fl.device_count()):
        try:
            torch.fl.synchronize(index)
        except RuntimeError:
            pass


Run = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def run_python() -> Run:
    """Runs a script in a process of its own; a hang is a failure with the output so far."""

    def run(
        code: str, *, check: bool = True, timeout: float = LIMIT, **environment: str
    ) -> subprocess.CompletedProcess:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.path.dirname(__file__), **environment}
        try:
            done = subprocess.run(
                [sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True, timeout=timeout
            )
        except subprocess.TimeoutExpired as hang:
            pytest.fail(f"the process hangs; stdout: {hang.stdout!r}, stderr: {hang.stderr!r}")
        if check:
            assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
