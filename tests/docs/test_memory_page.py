"""docs/memory.md: its example runs, the commands read what it wrote, and its table of what is missing is true."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import torch

PAGE = (Path(__file__).resolve().parents[2] / "docs/memory.md").read_text(encoding="utf-8")


def test_the_example_and_its_commands(tmp_path: Path) -> None:
    (example, *_) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines():
        words = [sys.executable, *shlex.split(line)[1:]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
    assert "snapshot.pickle" in (tmp_path / "timeline.html").read_text()


def test_what_is_missing_is_in_the_table() -> None:
    table = PAGE.partition("| not there | why |")[2].partition("\n\n")[0]
    listed = set(re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in table.splitlines() if "|" in row[1:])))
    settings = {"get_per_process_memory_fraction", "set_per_process_memory_fraction"}  # said above the table
    for name in set(torch.cuda.memory.__all__) - settings:
        assert hasattr(torch.fl, name) == hasattr(torch.fl.memory, name) != (name in listed), name
    for name in torch.accelerator.memory.__all__:
        assert f"`{name}`" in PAGE, name
