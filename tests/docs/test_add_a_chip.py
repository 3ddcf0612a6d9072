"""docs/add-a-chip.md is walked as it is written: its commands run, its changes are applied, in order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "add-a-chip.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.skipif(not (shutil.which("make") and shutil.which("cc")), reason="needs make and cc")


def apply(diff: str, folder: Path) -> None:
    """Apply a diff without line numbers: what each @@ part keeps and removes must stand in the file, once."""
    path, hunks = None, []
    for line in diff.splitlines():
        if line.startswith("+++ b/"):
            path = folder / line[6:]
        elif line.startswith("@@"):
            hunks.append((path, [], []))
        elif not line.startswith("---"):
            _, before, after = hunks[-1]
            if line[:1] != "+":
                before.append(line[1:])
            if line[:1] != "-":
                after.append(line[1:])
    for file, before, after in hunks:
        text = file.read_text(encoding="utf-8")
        old = "\n".join(before)
        assert text.count(old) == 1, f"{file.name} does not hold, once:\n{old}"
        file.write_text(text.replace(old, "\n".join(after)), encoding="utf-8")


def test_every_step_passes(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH_FL_", "FLAGOS_"))}
    environment |= {"TORCH_FL_HOME": str(tmp_path / "home"),
                    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    steps = re.findall(r"```(sh|diff)\n(.*?)```", PAGE, re.DOTALL)
    assert len(steps) >= 9
    folder = tmp_path
    for kind, text in steps:
        if kind == "diff":
            apply(text, folder)
            continue
        found = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=folder, env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=500)
        assert found.returncode == 0, f"{text}\n{found.stdout}"
        if "explain aten::mul" in text:
            assert "[2., 2., 2.]" in found.stdout
        if "--tag kernel" in text:
            assert "2 of" in found.stdout  # add and mul
        folder = tmp_path / "acme"
    assert list((folder / "dist").glob("*-py3-none-*.whl"))
