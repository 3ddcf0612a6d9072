"""Tests of the OpenCL chip run once for each runtime of this machine; without one they are skipped, with the reason."""

from __future__ import annotations

import pytest
from opencl_runtimes import runtimes


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "runtime" not in metafunc.fixturenames:
        return
    found, reason = runtimes()
    cases: list[object] = list(found) or [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
    metafunc.parametrize("runtime", cases, ids=[str(r) for r in found] or ["no runtime"])
