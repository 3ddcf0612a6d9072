"""The examples and the benchmarks run, check themselves, and refuse what they do not know."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH_FL_CHIPS", "FLAGOS_"))}
    return subprocess.run([sys.executable, script, *words], cwd=ROOT, env=environment, capture_output=True, text=True,
                          timeout=500)


@pytest.mark.parametrize("options", [
    ["--batch-size", "2", "--iterations", "2"],
    ["--batch-size", "2", "--iterations", "1", "--device", "fl:1", "--channels-last", "--dtype", "bfloat16"],
    ["--batch-size", "8", "--iterations", "5", "--train"],
], ids=["inference", "bfloat16", "training"])  # fmt: skip
def test_resnet50(options):
    pytest.importorskip("transformers")
    found = run("examples/run_resnet50.py", "--image-size", "64", "--no-cpu-fallback", *options)
    assert found.returncode == 0, found.stdout + found.stderr
    assert re.search(r"throughput: [\d.]+ img/s", found.stdout)
    assert re.search(r"\[Torch-FL\] Operator routing: native=\d+, decompose=\d+, cpu_fallback=0", found.stdout)


@pytest.mark.parametrize(("options", "words"), [
    (["--fuse-conv-bn"], "--fuse-conv-bn: operator fusion is not available yet"),
    (["--frobnicate"], "unknown options: --frobnicate"),
    (["--batch-size", "0"], "must be at least 1"),
    (["--train", "--dtype", "float16"], "--train is for float32"),
])  # fmt: skip
def test_resnet50_refuses(options, words):
    found = run("examples/run_resnet50.py", *options)
    assert found.returncode == 2 and words in found.stderr


def test_a_device_that_does_not_exist():
    found = run("examples/run_resnet50.py", "--device", "nosuch")
    assert found.returncode == 1 and "nosuch" in found.stderr and "Traceback" not in found.stderr
    found = run("examples/run_resnet50.py", "--device", "ninguang:99")
    assert found.returncode == 1 and "ninguang:99" in found.stderr and "Traceback" not in found.stderr


def test_a_wrong_result_is_an_exit_code():
    """A chip whose memory is changed behind its back must not pass."""
    code = (
        "import runpy, sys, torch\n"
        "sys.argv = ['run_resnet50.py', '--batch-size', '1', '--iterations', '1', '--image-size', '32']\n"
        "parts = runpy.run_path('examples/run_resnet50.py')\n"
        "real = parts['infer']\n"
        "def infer(model, images, iterations, device):\n"
        "    logits, speed = real(model, images, iterations, device)\n"
        "    return (logits * 1.01 if device.type != 'cpu' else logits), speed\n"
        "parts['main'].__globals__['infer'] = infer\n"
        "sys.exit(parts['main']())\n"
    )
    found = run("-c", code)
    assert found.returncode == 1 and "FAILED" in found.stdout, found.stdout + found.stderr


def test_digits():
    pytest.importorskip("sklearn")
    found = run("examples/train_mnist.py", "--no-cpu-fallback", "--epochs", "5")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "cpu_fallback=0" in found.stdout


def test_gpt2():
    pytest.importorskip("transformers")
    found = run("examples/generate_gpt2.py", "--no-cpu-fallback", "--tokens", "12")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "all tokens are equal" in found.stdout


@pytest.mark.parametrize("words", [
    ["benchmarks/chip_lines.py"],
    ["benchmarks/import_time.py", "--repeats", "1"],
    ["benchmarks/op_cost.py", "--calls", "5", "--repeats", "1"],
    ["benchmarks/opencl.py", "--figure", "add", "--repeats", "1", "--seconds", "0.001", "--json"],
    ["benchmarks/resnet50.py", "--batch-size", "2", "--image-size", "32", "--repeats", "1", "--json"],
], ids=lambda words: Path(words[0]).stem)  # fmt: skip
def test_benchmarks_run(words):
    found = run(*words)
    assert found.returncode == 0, found.stderr
    assert re.search(r"\d", found.stdout)
