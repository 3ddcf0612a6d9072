"""The guides' code runs as it is printed, and prints what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(600)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


def run(*words: str, folder: Path, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH_FL_", "FLAGOS_"))}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    found = subprocess.run(words, cwd=folder, env={**environment, **variables}, capture_output=True, text=True,
                           timeout=500)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def test_kernels_in_python(tmp_path):
    code = blocks("python-kernels.md", "python")
    (tmp_path / "kernels.py").write_text("\n".join(code))
    told, report = blocks("python-kernels.md", "text")
    printed = run(sys.executable, "kernels.py", folder=tmp_path)
    for line in told.splitlines():
        assert line.split("(kernels.py")[0].rstrip() in printed, f"{line!r} is not in\n{printed}"
    for line in report.splitlines()[1:3]:
        words = r"\s+".join(re.sub(r"\d[\d.]*", "NUMBER", word) for word in line.split())
        pattern = re.escape(words).replace(r"\\s\+", r"\s+").replace("NUMBER", r"[\d.e-]+")
        assert re.search(pattern, printed), f"{line!r} is not in\n{printed}"


def test_example_of_a_kernel_in_python():
    printed = run(sys.executable, "examples/python_kernel.py", "--steps", "10", folder=ROOT)
    assert "check against CPU: loss curve differs by" in printed and "library=2, cpu_fallback=0" in printed
    assert "FAILED" not in printed


def test_emulation(tmp_path):
    """The page's files, its commands in their order, and the lines that it quotes from their output."""
    (profile,), (model,) = blocks("emulation.md", "json"), blocks("emulation.md", "python")
    (tmp_path / "my_chip.json").write_text(profile)
    (tmp_path / "model.py").write_text(model)
    printed = ""
    for line in "\n".join(blocks("emulation.md", "sh")).splitlines():
        words = line.split("#")[0].split()
        if words and words[0] == "flagos-torch-fl":
            printed += run(*words, folder=tmp_path, TORCH_FL_HOME=str(tmp_path / "home"))
    quoted = [line for block in blocks("emulation.md", "text") for line in block.splitlines() if line.strip("… ")]
    assert len(quoted) > 20
    for line in quoted:
        assert " ".join(line.rstrip("…").split()) in " ".join(printed.split()), f"{line!r} is not in\n{printed}"
