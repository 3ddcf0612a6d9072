"""PyTorch's operator database on two devices of one process at the same time: bit for bit what each computes alone.

Here every seventeenth entry; all of them with FL_LONG=1 (`make test-long`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from opinfo_cases import OPS

WORKER = Path(__file__).with_name("concurrent_worker.py")
LONG = os.environ.get("FL_LONG") == "1"
# Not alone either: they read memory that nobody wrote, or need CUDA.
NAMES = [name for name in OPS if not name.startswith("jiterator")]
PAIRS = {"two devices of one chip": ("ninguang", "fl:0", "fl:1"), "two chips": ("ninguang,pocl", "fl:0", "fl:2")}


@pytest.mark.timeout(7200 if LONG else 600)
@pytest.mark.parametrize("pair", PAIRS)
def test_operators_on_two_devices_at_the_same_time(pair: str) -> None:
    chips, *devices = PAIRS[pair]
    names = NAMES if LONG else NAMES[::17]
    done = subprocess.run(
        [sys.executable, str(WORKER), *devices, ",".join(names)], capture_output=True, text=True, timeout=7000,
        env={**os.environ, "TORCH_FL_CHIPS": chips, "OMP_NUM_THREADS": "1", "TORCH_FL_VERBOSE": "0"})  # fmt: skip
    if "pocl" in chips and "fl:2 does not exist" in done.stderr:
        pytest.skip("no PoCL here: apt install pocl-opencl-icd ocl-icd-libopencl1")
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    print(f"{pair}: {answer['results']} results, {answer['errors']} errors, of {len(names)} entries")
    assert not answer["different"], f"{len(answer['different'])} results differ:\n" + "\n".join(answer["different"])
    assert answer["results"] > 2 * len(names) and answer["errors"] < answer["results"] / 50, answer
