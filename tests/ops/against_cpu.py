"""Runs a function on CPU tensors and on the device, and compares what comes out.

The device is fl:1, or FL_TEST_DEVICE: an operator that allocates on the current device instead of its operands' one
fails here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

DEVICE = os.environ.get("FL_TEST_DEVICE", "fl:1")


def to_device(value: Any) -> Any:
    """Copy CPU tensors, also inside tuples and lists, keeping their strides."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            return value
        storage = value.untyped_storage()
        flat = torch.empty(0, dtype=value.dtype).set_(storage)
        return flat.to(DEVICE).as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, (tuple, list)):
        return type(value)(to_device(v) for v in value)
    return value


def assert_same(actual: Any, expected: Any, **tolerance: float) -> None:
    """Compare shape, dtype, device and values (NaN equals NaN)."""
    if isinstance(expected, torch.Tensor):
        assert actual.device == torch.device(DEVICE)
        assert actual.untyped_storage().device == torch.device(DEVICE)
        torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, check_stride=False, **tolerance)
    elif isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_same(a, e, **tolerance)
    else:
        assert actual == expected


def check(function: Callable[..., Any], *args: Any, **tolerance: float) -> None:
    """Assert that `function` gives the same on the device as on the CPU, also in the operands it changes."""
    tolerance = tolerance or {"rtol": 0, "atol": 0}
    on_device = [to_device(a) for a in args]
    on_cpu = [a.clone() if isinstance(a, torch.Tensor) and a.is_contiguous() else a for a in args]
    expected = function(*on_cpu)
    actual = function(*on_device)
    assert_same(actual, expected, **tolerance)
    for a, e in zip(on_device, on_cpu, strict=True):
        if isinstance(e, torch.Tensor):
            assert_same(a, e, **tolerance)


def check_error(function: Callable[..., Any], *args: Any, match: str | None = None) -> None:
    """Assert that the device raises the CPU's exception type, at the latest at the next synchronization."""
    on_device = [to_device(a) for a in args]
    with pytest.raises(Exception) as on_cpu:
        function(*args)
    with pytest.raises(on_cpu.type, match=match):
        function(*on_device)
        torch.accelerator.synchronize(DEVICE)
