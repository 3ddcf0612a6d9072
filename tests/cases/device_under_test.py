"""Helpers of the report cases: the device (FL_TEST_DEVICE, by default fl:1), comparison, fresh interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import torch

DEVICE = torch.device(os.environ.get("FL_TEST_DEVICE", "fl:1"))
INF, NAN = float("inf"), float("nan")

PREAMBLE = """
import os
try:
    import torch_fl
except ImportError:
    pass
import torch, torch.nn as nn, torch.nn.functional as F
device = torch.device(os.environ.get("FL_TEST_DEVICE", "fl:1"))
"""


def dev(x):
    """Move a tensor (always a fresh copy) or a module to the device under test."""
    y = x.to(DEVICE)
    return y.clone() if y is x and torch.is_tensor(x) else y


def same(actual, expected, rtol=1e-4, atol=1e-5):
    """Right device, dtype, shape and values (NaN equals NaN)."""
    assert actual.device.type == DEVICE.type, f"result landed on {actual.device}"
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    if not expected.dtype.is_floating_point and not expected.dtype.is_complex:
        rtol = atol = 0
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=rtol, atol=atol, equal_nan=True)


def run_py(code, preamble=PREAMBLE, timeout=300, **env):
    """Run code in a fresh interpreter; returns the completed process."""
    return subprocess.run(
        [sys.executable, "-c", preamble + textwrap.dedent(code)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
