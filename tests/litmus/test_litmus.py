"""The litmus programs in short: a few runs under delays, some programs' waits removed. `make litmus` does it all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RUNS = 3
# One for each way to wait: an event, a stream, the device, a query, the host's reads, memory of streams, pinned memory,
# two devices, the CPU tier, autograd.
MUTATED = (
    "consume_after_event",
    "download_into_pinned_memory",
    "queries_until_done",
    "between_two_devices",
    "cpu_tier_in_unified_memory",
    "freed_while_several_streams_read",
    "pinned_memory_freed_while_written",
    "gradients_accumulate_from_two_streams",
)
pytestmark = pytest.mark.timeout(600)


def script(name: str, *arguments: str) -> str:
    """Runs one of the scripts; what it prints. They fork, which a process that has used a chip must not."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NINGUANG_")}
    environment["TORCH_FL_CHIPS"] = "ninguang"
    done = subprocess.run([sys.executable, HERE / name, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_program_is_right_under_delays() -> None:
    said = script("run.py", "--runs", str(RUNS))
    runs, programs, failures = map(int, re.search(r"(\d+) runs of (\d+) programs, .*: (\d+) failures", said).groups())
    assert (runs, failures) == (RUNS, 0) and programs == sum(
        len(re.findall(r"^@litmus\(", path.read_text(), re.MULTILINE)) for path in HERE.glob("programs_*.py")
    )


def test_no_wait_of_these_programs_can_be_removed() -> None:
    said = script("mutate.py", *MUTATED)
    removed, caught = map(int, re.search(r"(\d+) waits of .*: (\d+) caught", said).groups())
    assert removed == caught >= 30, said


def test_a_program_that_is_wrong_is_told(tmp_path: Path) -> None:
    """The frame itself: without any wait the check fails, and the failure is counted."""
    (tmp_path / "check.py").write_text(
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "import torch, litmus, run\n"
        "@litmus.litmus()\n"
        "def forgets_to_wait(run):\n"
        "    v = run.values(4096)\n"
        "    x = run.on(torch.fl.Stream(litmus.ONE), v)\n"
        "    with torch.fl.stream(torch.fl.Stream(litmus.ONE)):\n"
        "        run.check((x + 1).cpu(), v + 1, 'x')\n"
        "litmus.programs()\n"
        "failures = run.run_all([litmus.PROGRAMS['forgets_to_wait']], 20, 0)\n"
        "sys.exit(0 if 3 <= len(failures) and all('Wrong: x' in line for line in failures) else 1)\n"
    )
    done = subprocess.run([sys.executable, tmp_path / "check.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
