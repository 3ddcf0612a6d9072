"""The tests that are written in C and C++ (core, reference chip), each as a test of this run.

`make test` builds them first; where a build folder is missing, its tests are skipped with the command that makes it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("build/core-tests", "build/dev/chips/ninguang")
CTEST = shutil.which("ctest") or shutil.which("ctest", path=str(Path(sys.executable).parent))


def _tests(folder: str) -> list[str]:
    if CTEST is None or not (ROOT / folder / "CTestTestfile.cmake").is_file():
        return []
    answer = subprocess.run(
        [CTEST, "--test-dir", ROOT / folder, "--show-only=json-v1"], capture_output=True, text=True, check=True
    )
    return [test["name"] for test in json.loads(answer.stdout)["tests"]]


def _cases() -> list[object]:
    cases: list[object] = []
    for folder in FOLDERS:
        names = _tests(folder)
        cases += [pytest.param(folder, name, id=name) for name in names]
        if not names:
            reason = f"{folder} is not built: make test-programs"
            cases.append(pytest.param(folder, "", id=folder, marks=pytest.mark.skip(reason=reason)))
    return cases


@pytest.mark.parametrize(("folder", "name"), _cases())
def test_program(folder: str, name: str) -> None:
    found = subprocess.run(
        [CTEST, "--test-dir", ROOT / folder, "-R", f"^{name}$", "--output-on-failure"], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout + found.stderr
