"""The conformance suite: the reference chip conforms, and adapters with a fault are found out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torch_fl._errors import ConfigError
from torch_fl.conformance import command, expectation
from torch_fl.conformance.expectation import Expectations

needs_compiler = pytest.mark.skipif(not (shutil.which("make") and shutil.which("cc")), reason="needs make and cc")


def conform(*words: str, home: Path, timeout: float = 500) -> tuple[int, dict]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH_FL_", "FLAGOS_"))}
    answer = subprocess.run(
        [sys.executable, "-m", "torch_fl.cli", "conform", "--json", *words],
        capture_output=True, text=True, timeout=timeout, env={**environment, "TORCH_FL_HOME": str(home)},
    )  # fmt: skip
    assert answer.stdout, answer.stderr
    return answer.returncode, json.loads(answer.stdout)


def failed(report: dict) -> dict[str, str]:
    return {c["name"]: c["detail"] for c in report["cases"] if c["outcome"] in ("fail", "xpass")}


@pytest.fixture
def acme(tmp_path):
    """Write the skeleton adapter with changes to its source; returns its folder."""
    from torch_fl.cli.new_adapter import create

    def make(*changes: tuple[str, str]) -> Path:
        folder = create("acme", tmp_path / "acme")
        source = folder / "adapter.c"
        text = source.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        source.write_text(text)
        subprocess.run(["make", "-s"], cwd=folder, check=True)
        return folder

    return make


@pytest.mark.parametrize("index", [0, 1])
def test_the_reference_chip_conforms(tmp_path, index):
    code, report = conform("--device", "ninguang", "--index", str(index), home=tmp_path)
    assert failed(report) == {} and report["problem"] is None
    assert code == 0 and report["conforms"]
    assert len(report["cases"]) > 500
    passed = [c["name"] for c in report["cases"] if c["outcome"] == "pass"]
    ran = {name.split(".")[1] for name in passed if name.startswith("kernel.")}
    assert len(ran) > 180


@needs_compiler
def test_the_skeleton_conforms(tmp_path, acme):
    code, report = conform("--adapter", str(acme()), home=tmp_path)
    assert failed(report) == {} and code == 0
    outcomes = {c["name"]: c["outcome"] for c in report["cases"]}
    assert outcomes["kernel.add.float32"] == "pass"
    assert outcomes["memory.peer_copy"] == "n/a"  # one device


FAULTS = {
    "wrong sum": (("a[i] + alpha * b[i]", "a[i] + alpha * b[i] + 1e-3f"), "kernel", "kernel.add.float32"),
    "alpha forgotten": (("a[i] + alpha * b[i]", "a[i] + b[i] + 0 * alpha"), "kernel", "kernel.add.float32"),
    "short copies": (("memcpy(dst, src.address, bytes)", "memcpy(dst, src.address, bytes & ~7ull)"), "memory",
                     "memory.round_trip"),
    "lost memory": (("used_bytes -= bytes;", ";"), "memory", "memory.free_and_total"),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(tmp_path, acme, fault):
    change, tag, case = FAULTS[fault]
    folder = acme(change)
    code, report = conform("--adapter", str(folder), "--tag", tag, home=tmp_path)
    assert code == 1 and not report["conforms"]
    assert case in failed(report), report


@needs_compiler
def test_a_crash_is_one_failed_case(tmp_path, acme):
    folder = acme(("memmove(dst.address, src.address, bytes);", "*(volatile int*)0 = (int)bytes;"))
    code, report = conform("--adapter", str(folder), "--tag", "memory", home=tmp_path)
    found = failed(report)
    assert code == 1 and "SIGSEGV" in found["memory.device_to_device"]
    assert len(found) < len(report["cases"]) / 2, found


@needs_compiler
def test_a_hang_is_one_failed_case(tmp_path, acme):
    folder = acme(("memmove(dst.address, src.address, bytes);", "for (;;) (void)*(volatile char*)src.address;"))
    code, report = conform("--adapter", str(folder), "--tag", "memory", "--timeout", "15", home=tmp_path)
    assert code == 1 and "did not answer within 15 s" in failed(report)["memory.device_to_device"]


@needs_compiler
def test_expectations(tmp_path, acme):
    folder = acme(("a[i] + alpha * b[i]", "a[i] - alpha * b[i]"))
    (folder / "conformance.yaml").write_text(
        'unsupported:\n  "memory.pinned_copies": no pinned memory\nxfail:\n  "kernel.add.*": it subtracts\n'
    )
    code, report = conform("--adapter", str(folder), "--tag", "memory", "--tag", "kernel", home=tmp_path)
    outcomes = {c["name"]: (c["outcome"], c["detail"]) for c in report["cases"]}
    assert code == 0 and failed(report) == {}
    assert outcomes["memory.pinned_copies"] == ("unsupported", "no pinned memory")
    assert outcomes["kernel.add.float32"][0] == "xfail" and "it subtracts" in outcomes["kernel.add.float32"][1]

    (folder / "conformance.yaml").write_text('xfail:\n  "memory.fill": it is said to fail\n')
    code, report = conform("--adapter", str(folder), "--tag", "memory", home=tmp_path)
    assert code == 1 and "remove it from xfail" in failed(report)["memory.fill"]


@pytest.mark.parametrize(("text", "words"), [
    ("skip: {}", "allowed are unsupported and xfail"),
    ("- a", "a list"),
    ("xfail: [a]", "names of cases with reasons"),
    ('xfail: {"memory.fill": }', "a reason is needed"),
    ("xfail: {a: b", "conformance.yaml"),
])  # fmt: skip
def test_expectations_that_are_not_valid(tmp_path, text, words):
    path = tmp_path / "conformance.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        expectation.load(path)


def test_without_expectations_nothing_is_excused(tmp_path):
    assert expectation.load(tmp_path / "conformance.yaml") == Expectations()


def test_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_FL_HOME", str(tmp_path))
    assert command.main([]) == 2
    assert "--device NAME or --adapter PATH" in capsys.readouterr().err
    assert command.main(["--tag", "nothing"]) == 2
    from torch_fl.cli import main

    assert main(["conform", "--device", "nosuch"]) == 1
    assert "no chip" in capsys.readouterr().err


def test_every_uniop_has_samples():
    import torch

    from torch_fl._uniop_table import UNIOPS
    from torch_fl.conformance.kernel import samples

    types = (torch.float32, torch.int64)
    without = [op.name for op in UNIOPS if not any(_samples(samples, op.name, dtype) for dtype in types)]
    assert without == []


def _samples(samples, name, dtype):
    try:
        return samples(name, dtype, (dtype,))
    except RuntimeError:  # the type has no such operands
        return []


def test_philox_is_the_published_one():
    """The first words of key 0, counter 0 of Philox4x32-10, as its authors give them."""
    from torch_fl.conformance import philox

    assert philox.words(4, 0).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_a_chip_that_cannot_be_opened_is_reported(capsys):
    command.print_report("acme", {"path": "libfl_acme.so"}, [], "no device", verbose=False)
    assert "not finished: no device" in capsys.readouterr().out
