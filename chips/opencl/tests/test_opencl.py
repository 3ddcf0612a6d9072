"""The OpenCL chip on each runtime that is here: the project's own suites, memory modes, several devices and chips.

`make test` runs what shows that everything is in place; `make test-opencl` (FL_OPENCL_FULL=1) runs the suites whole.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from opencl_runtimes import FULL, MODES, ON_DEVICE, ROOT, Runtime, environment, run_pytest, run_python

pytestmark = pytest.mark.timeout(3000 if FULL else 1200)
# One case compares gradients that are nearly all cancellation. The CPU's own error there depends on its threads; with
# one thread it has the sign that is not ours, and the difference is above the case's tolerance.
AS_USERS = {"OMP_NUM_THREADS": "2"}
full_only = pytest.mark.skipif(not FULL, reason="make test-opencl runs it")


def assert_all_pass(paths: list[str | Path], chips: str, *words: str, least: int = 1, **more: str) -> None:
    outcome = run_pytest(paths, chips, *words, timeout=2900 if FULL else 1100, **more)
    if outcome.failures:  # each told in a line or two; `assert` would repeat them all
        pytest.fail(f"{len(outcome.failures)} failed, {outcome.passed} passed:\n{outcome.text()}", pytrace=False)
    assert outcome.passed >= least, f"only {outcome.passed} tests passed, {outcome.skipped} were skipped"


def profile_with(folder: Path, name: str, runtime: Runtime, **options: str) -> dict[str, str]:
    """The variables that make chip `name`: the runtime's devices, with other options of the adapter."""
    file = {"pocl": "pocl", "intel-cpu": "intel-cpu", "opencl-gpu": "gpu"}[runtime.chip]
    profile = json.loads((ROOT / "chips" / "opencl" / "profiles" / f"{file}.json").read_text())
    profile |= {"device_name": name, "options": options}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "profile.json").write_text(json.dumps(profile))
    path = [str(folder), environment(name).get("TORCH_FL_ADAPTER_PATH", "")]
    return {"TORCH_FL_ADAPTER_PATH": ":".join(filter(None, path))}


def has_mode(runtime: Runtime, mode: str, variables: dict[str, str]) -> bool:
    code = "import torch; print(torch.ones(2, device='fl').sum().item())"
    done = subprocess.run([sys.executable, "-c", code], env=environment(f"opencl-{mode}", **variables),
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    if done.returncode == 0:
        return True
    assert f"{mode.upper()})" in done.stderr or "shared memory" in done.stderr, done.stderr[-3000:]
    return False  # the adapter says that the device does not have it


# ---------------------------------------------------------------- the project's suites


def test_device(runtime: Runtime) -> None:
    """Memory, streams, events, errors, the profiler."""
    assert_all_pass([ON_DEVICE / "check_device.py"], runtime.chip, least=15)


@pytest.mark.parametrize("mode", MODES)
def test_memory_modes(runtime: Runtime, mode: str, tmp_path: Path) -> None:
    variables = profile_with(tmp_path, f"opencl-{mode}", runtime, memory=mode)
    if not has_mode(runtime, mode, variables):
        pytest.skip(f"{runtime.device} has no {mode} memory")
    assert_all_pass([ON_DEVICE / "check_device.py"], f"opencl-{mode}", least=15, FL_OPENCL_MODE=mode, **variables)


def test_operators(runtime: Runtime) -> None:
    """A sample of PyTorch's operator database, forward and backward, with all tiers and without the CPU's."""
    more = {"FL_OPENCL_ALL_OPERATORS": "1"} if FULL else {}
    assert_all_pass([ON_DEVICE / "check_operators.py"], runtime.chip, least=100, **more)


def test_models_train(runtime: Runtime) -> None:
    """Tiny BERT, GPT-2, Llama, ResNet and ViT against the CPU, with the CPU tier off."""
    pytest.importorskip("transformers")
    words = () if FULL else ("-k", "training_step and default or forward and gpt2")
    assert_all_pass(["tests/models/test_models.py"], runtime.chip, *words, least=5)


def test_report_cases(runtime: Runtime) -> None:
    """The cases made from public problem reports."""
    assert_all_pass(["tests/cases"], runtime.chip, least=100, **AS_USERS)


def test_conform(runtime: Runtime) -> None:
    words = [] if FULL else ["--tag", "memory", "--tag", "stream", "--tag", "event", "--tag", "error"]
    done = subprocess.run([sys.executable, "-m", "torch_fl.cli", "conform", "--json", "--device", runtime.chip, *words],
                          env=environment(runtime.chip), capture_output=True, text=True, timeout=2900)  # fmt: skip
    assert done.stdout, done.stderr[-3000:]
    report = json.loads(done.stdout)
    failed = {case["name"]: case["detail"] for case in report["cases"] if case["outcome"] in ("fail", "xpass")}
    assert report["problem"] is None and not failed, f"{report['problem']} {json.dumps(failed, indent=1)[:4000]}"


@full_only
def test_training(runtime: Runtime) -> None:
    assert_all_pass(["tests/models/test_training.py"], runtime.chip, least=15)


@full_only
def test_operator_semantics(runtime: Runtime) -> None:
    assert_all_pass(["tests/ops/test_indexing.py", "tests/ops/test_optimizer.py", "tests/ops/test_random.py"],
                    runtime.chip, least=100)  # fmt: skip


@full_only
def test_examples(runtime: Runtime) -> None:
    pytest.importorskip("transformers")
    for script, *words in (("run_resnet50.py", "--batch-size", "1", "--iterations", "2", "--no-cpu-fallback"),
                           ("train_mnist.py",)):  # fmt: skip
        done = subprocess.run([sys.executable, ROOT / "examples" / script, "--device", runtime.chip, *words],
                              env=environment(runtime.chip, OMP_NUM_THREADS="2"), capture_output=True, text=True,
                              timeout=1500)  # fmt: skip
        assert done.returncode == 0, f"{script}: {done.stdout}\n{done.stderr[-3000:]}"


# ---------------------------------------------------------------- several devices, several chips


def test_two_devices_of_one_runtime(runtime: Runtime) -> None:
    """PoCL makes as many devices of this CPU as it is told."""
    if runtime.chip != "pocl":
        pytest.skip("only PoCL makes several devices of one CPU")
    more = {"POCL_DEVICES": "pthread pthread", "FL_TEST_DEVICE": "fl:1"}
    assert_all_pass([ON_DEVICE / "check_two_devices.py"], runtime.chip, least=5, **more)


def test_beside_the_reference_chip(runtime: Runtime) -> None:
    """Both in one process: tensors move between them, and an operator with operands on both is refused."""
    assert_all_pass([ON_DEVICE / "check_two_chips.py"], f"ninguang,{runtime.chip}", least=5, FL_TEST_DEVICE="fl:2")


@full_only
@pytest.mark.parametrize("device", ["fl:0", "fl:2"])
def test_report_cases_beside_the_reference_chip(runtime: Runtime, device: str) -> None:
    assert_all_pass(["tests/cases"], f"ninguang,{runtime.chip}", least=100, FL_TEST_DEVICE=device, **AS_USERS)


def test_the_generic_chip_has_the_devices_of_all_runtimes(runtime: Runtime) -> None:
    listed = json.loads(run_python("import json, torch_fl; print(json.dumps(torch_fl.list_devices()))"))
    assert runtime.device in [device["name"] for device in listed]
    assert {device["chip"] for device in listed} == {"opencl"}


def test_a_runtime_and_the_rest(runtime: Runtime) -> None:
    """`match`: each device belongs to one chip."""
    code = "import json, torch_fl; print(json.dumps(torch_fl.list_devices()))"
    every = json.loads(run_python(code))
    split = json.loads(run_python(code, f"{runtime.chip},opencl"))
    assert sorted(d["uuid"] for d in split) == sorted(d["uuid"] for d in every)
    assert split[0]["chip"] == runtime.chip and split[0]["name"] == runtime.device


def test_opencl_is_opened_only_when_asked_for(runtime: Runtime) -> None:
    done = run_python("import os\nfor name in 'TORCH_FL_CHIPS', 'TORCH_FL_ADAPTER_PATH': os.environ.pop(name, None)\n"
                      "import torch_fl\nprint({d['chip'] for d in torch_fl.list_devices()})")  # fmt: skip
    assert done.strip() == "{'ninguang'}"
