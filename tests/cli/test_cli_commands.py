"""Every command but diagnose and new-adapter: answers, JSON, exit codes, refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("init-profile", "register-device", "unregister-device", "device-list", "env", "diagnose", "ops", "explain",
            "conform", "new-adapter")


# ---------------------------------------------------------------- the command line itself


def test_help_lists_every_command(fl):
    answer = fl("--help")
    assert answer.code == 0 and all(command in answer.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(fl, command):
    assert fl(command, "--help").code == 0


def test_version(fl):
    answer = fl("--version")
    assert answer.code == 0 and answer.out.startswith("flagos-torch-fl ")


@pytest.mark.parametrize("words", [
    ("device-list", "--nope"), ("device-list", "extra"), ("nope",), ("explain",), ("register-device",),
    ("init-profile",), ("ops", "--category", "nope"), ("diagnose", "--timeout", "soon"), ("env", "--jsn"),
    ("new-adapter", "a", "--fuse"), (),
])
def test_a_wrong_command_line_is_refused_with_code_2(fl, words):
    answer = fl(*words)
    assert answer.code == 2
    assert "Usage" in answer.err or "Usage" in answer.out


def test_a_reader_that_stops_early_is_no_error():
    code = f"{sys.executable} -m torch_fl.cli ops --json | head -c 10; exit ${{PIPESTATUS[0]}}"
    found = subprocess.run(["bash", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0 and found.stderr == "", found.stderr


def test_typer_and_rich_are_imported_only_when_a_command_runs():
    code = "import sys, torch_fl, torch_fl.cli; assert not {'typer', 'rich', 'yaml'} & set(sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


# ---------------------------------------------------------------- profiles


def test_register_and_unregister(fl, home, profile_file):
    path = profile_file("acme", arch="a1")
    answer = fl("register-device", "--profile", path, "--json")
    assert answer.code == 0 and answer.json["registered"] == str(home / "profiles" / "acme.json")
    assert answer.json["adapter"] == str(path.parent / "libfl_acme.so")
    assert fl("unregister-device", "acme").code == 0
    answer = fl("unregister-device", "acme")
    assert answer.code == 1 and 'no profile "acme" is registered' in answer.err


def test_check_registers_nothing(fl, home, profile_file):
    answer = fl("register-device", "--profile", profile_file("acme"), "--check")
    assert answer.code == 0 and "is a valid profile of acme" in answer.out
    assert not (home / "profiles").exists()


@pytest.mark.parametrize("check", [(), ("--check",)])
def test_an_invalid_profile(fl, tmp_path, check):
    path = tmp_path / "p.json"
    path.write_text('{\n "device_name": "a",\n "memory_pool": {"alignment": 63}\n}')
    answer = fl("register-device", "--profile", path, *check)
    assert answer.code == 1
    assert f"{path}:3: memory_pool.alignment = 63: not a power of two; allowed: 1, 2, 4" in answer.err
    answer = fl("register-device", "--profile", path, *check, "--json")
    assert answer.code == 1 and answer.json["kind"] == "InvalidProfile"
    assert answer.json["problems"] == [{"line": 3, "field": "memory_pool.alignment", "value": 63,
                                        "message": "not a power of two", "allowed": "1, 2, 4, … 1048576"}]


def test_two_profiles_of_one_name(fl, tmp_path, profile_file):
    assert fl("register-device", "--profile", profile_file("acme", arch="one")).code == 0
    other = profile_file("acme", arch="two")
    answer = fl("register-device", "--profile", other)
    assert answer.code == 1 and "--force" in answer.err
    assert fl("register-device", "--profile", other, "--force").code == 0


def test_a_profile_without_an_adapter_needs_force(fl, profile_file):
    path = profile_file("ghost", library=False)
    answer = fl("register-device", "--profile", path)
    assert answer.code == 1 and "no adapter library" in answer.err and '"adapter": "NAME"' in answer.err
    answer = fl("register-device", "--profile", path, "--force")
    assert answer.code == 0 and "warning" in answer.err


def test_a_home_that_cannot_be_written(fl, home, profile_file):
    home.write_text("")
    answer = fl("register-device", "--profile", profile_file("acme"), "--json")
    assert answer.code == 1 and "TORCH_FL_HOME" in answer.json["error"]


def test_init_profile_writes_what_can_be_registered(fl, core, profile_file, tmp_path):
    library = profile_file("acme").parent / "libfl_acme.so"
    answer = fl("init-profile", "--device", library)
    assert answer.code == 0, answer.err
    written = json.loads((tmp_path / "chip_profile.json").read_text())
    assert written["device_name"] == "acme" and written["adapter"] == str(library) and written["arch"] == "fake-1"
    assert written["memory_pool"] == {"prealloc_mb": 0, "min_block_bytes": 512, "alignment": 128}
    assert written["dtypes"] == ["bool", "float16", "float32"]
    assert written["fp16_supported"] is True and written["bf16_supported"] is False
    ops = {entry["op"]: entry for entry in written["native_ops"]}
    assert set(ops) == {"add", "eq", "gelu", "copy"} and ops["add"]["dtypes"] == ["float16", "float32"]
    assert fl("register-device", "--profile", "chip_profile.json").code == 0
    # Registered, it offers all that the adapter has.
    coverage = fl("ops", "--device", "acme", "--json").json
    assert coverage["native"] == 4
    answer = fl("init-profile", "--device", "acme")
    assert answer.code == 1 and "chip_profile.json exists; --force replaces it" in answer.err
    assert fl("init-profile", "--device", "acme", "--force").code == 0
    assert json.loads(fl("init-profile", "--device", "acme", "--output", "-").out)["device_name"] == "acme"


def test_init_profile_keeps_what_makes_a_chip_of_a_shared_library(fl, core, profile_file):
    path = profile_file("acme", match={"arch": "fake-*"}, options={"memory": "usm", "fast": True})
    assert fl("register-device", "--profile", path).code == 0
    written = json.loads(fl("init-profile", "--device", "acme", "--output", "-").out)
    assert written["match"] == {"arch": "fake-*"} and written["options"] == {"memory": "usm", "fast": "true"}
    assert core.devices[0]["match"] == {"arch": "fake-*"}  # of the devices that are this chip
    assert written["device_name"] == "acme" and written["adapter"].endswith("libfl_acme.so")


def test_init_profile_of_what_does_not_work(fl, core, profile_file):
    answer = fl("init-profile", "--device", "nothing")
    assert answer.code == 1 and 'no chip "nothing" is known here' in answer.err
    answer = fl("init-profile", "--device", profile_file("broken").parent / "libfl_broken.so")
    assert answer.code == 1 and "not a library" in answer.err
    profile_file("acme")
    answer = fl("init-profile", "--device", "chip-acme/libfl_acme.so", "-o", "/nowhere/p.json")
    assert answer.code == 1 and "/nowhere" in answer.err


# ---------------------------------------------------------------- devices


def test_device_list(fl, core, profile_file, home):
    fl("register-device", "--profile", profile_file("acme"))
    fl("register-device", "--profile", profile_file("bolt"))
    (home / "profiles" / "bad.json").write_text("{")
    answer = fl("device-list")
    assert answer.code == 0 and "fl:0" in answer.out and "Fake bolt" in answer.out and "512 / 1024 MiB" in answer.out
    assert "not opened" in answer.err and "bad.json:1" in answer.err
    found = fl("device-list", "--json", "--all").json
    assert [device["chip"] for device in found["devices"]] == ["acme", "bolt"]
    assert "cpu" in [other["chip"] for other in found["others"]]
    assert "bad.json:1" in found["failures"][0]["reason"]


def test_device_list_without_devices(fl, core, monkeypatch):
    monkeypatch.setenv("TORCH_FL_VISIBLE_DEVICES", "")
    answer = fl("device-list")
    assert answer.code == 1 and "no devices" in answer.out
    assert fl("device-list", "--json").json["devices"] == []


def test_device_list_with_an_invalid_configuration(fl, core, home):
    home.mkdir()
    (home / "config.yaml").write_text("devices: 3\n")
    answer = fl("device-list")
    assert answer.code == 1 and "config.yaml:1: devices = 3" in answer.err
    assert "not opened: configuration" in answer.err and "Traceback" not in answer.err and "At:" not in answer.err


def test_env(fl, home, profile_file, monkeypatch):
    fl("register-device", "--profile", profile_file("acme"))
    monkeypatch.setenv("TORCH_FL_VERBOSE", "loud")
    monkeypatch.setenv("TORCH_FL_VISIBLE_DEVICE", "0")
    answer = fl("env")
    assert answer.code == 0 and str(home) in answer.out and "libfl_acme.so" in answer.out
    assert "not valid; allowed" in answer.out and "did you mean TORCH_FL_VISIBLE_DEVICES?" in answer.out
    assert "TORCH_FL_SYNC_DEBUG" not in answer.out and "TORCH_FL_SYNC_DEBUG" in fl("env", "--all").out
    report = fl("env", "--json").json
    assert {"torch", "python", "chips", "variables", "compiled"} <= set(report)
    assert Path(fl("env", "--include-dir").out.strip(), "torch_fl", "adapter.h").is_file()


def test_env_with_everything_broken(fl, home, monkeypatch):
    home.write_text("")
    monkeypatch.setenv("TORCH_FL_CONFIG", "/nowhere.yaml")
    answer = fl("env")
    assert answer.code == 0 and "not valid" in answer.out and "/nowhere.yaml" in answer.out


# ---------------------------------------------------------------- operators


def test_ops(fl):
    answer = fl("ops", "--category", "loss")
    assert answer.code == 0 and "nll_loss_backward" in answer.out and "convolution" not in answer.out
    listed = fl("ops", "--json").json
    assert {"name", "id", "category", "inputs", "overloads"} <= set(listed[0]) and len(listed) > 200


def test_ops_of_a_restricted_chip(fl, core, profile_file):
    fl("register-device", "--profile", profile_file(
        "acme", native_ops=[{"op": "add", "fp16": False}, {"op": "mul"}, {"op": "gelu", "compute": "cpu"}]))
    coverage = {entry["uniop"]: entry["native"] for entry in fl("ops", "--device", "acme", "--json").json["ops"]}
    assert coverage["add"] == ["float32"] and coverage["gelu"] == [] and coverage["eq"] == []
    assert "2 of" in fl("ops", "--device", "acme").out  # add and copy


def test_explain(fl, core, profile_file):
    operators = [{"op": "add"}, {"op": "gelu", "compute": "cpu"}]
    fl("register-device", "--profile", profile_file("acme", native_ops=operators))
    answer = fl("explain", "aten::gelu")
    assert answer.code == 0 and "stands on gelu, gelu_backward" in answer.out and "pins it" in answer.out
    (device,) = fl("explain", "aten::gelu", "--json").json["devices"]
    routes = {route["uniop"]: route for route in device["routes"]}
    assert routes["gelu"]["tier"] == "cpu" and "does not list it" in routes["gelu_backward"]["why"]
    assert fl("explain", "aten::add", "--json").json["devices"][0]["routes"][0]["tier"] == "native"
    assert "needs no kernel" in fl("explain", "aten::view").out
    answer = fl("explain", "aten::gellu")
    assert answer.code == 1 and "did you mean" in answer.err


def test_explain_on_one_chip(fl, core, profile_file):
    fl("register-device", "--profile", profile_file("acme", native_ops=[{"op": "add"}]))
    fl("register-device", "--profile", profile_file("beta"))
    for name, chip in (("beta", "beta"), ("acme", "acme"), ("fl:1", "beta"), ("fl:0", "acme"), ("beta:0", "beta")):
        (entry,) = fl("explain", "aten::gelu", "--device", name, "--json").json["devices"]
        assert entry["chip"] == chip and (entry["routes"][0]["tier"] == "native") == (chip == "beta")
    for name in ("fl:7", "beta:1", "nosuch"):
        answer = fl("explain", "aten::gelu", "--device", name)
        assert answer.code == 1 and name in answer.err


def test_mistakes_with_profiles_are_told(fl, profile_file, tmp_path):
    profile = profile_file("acme")
    for words, told in ((("--profile", "none.json"), "none.json"), (("--profile", "acme"), "is a *.json file"),
                        (("--profile", profile, "--model", "model.py:run"), "model.py"),
                        (("--profile", profile, "--model", "json:nothing"), "no function nothing"),
                        (("--profile", profile, "--model", "train"), "name a function")):
        answer = fl("ops", *words)
        assert answer.code == 1 and told in answer.err
    assert fl("ops", "--profile", profile, "--device", "acme").code == 2
    assert fl("ops", "--model", "model.py:run").code == 2


def test_options_are_asked_of_the_adapter(fl, core, profile_file):
    assert fl("register-device", "--profile", profile_file("acme", options={"tile": 4})).code == 0
    profile = profile_file("beta", options={"tile": 4, "frobnicate": True})
    for extra in ((), ("--check",)):
        answer = fl("register-device", "--profile", profile, *extra)
        assert answer.code == 1 and "frobnicate=true: it has no option of this name" in answer.err
        assert "tile" not in answer.err
    answer = fl("register-device", "--profile", profile, "--force")
    assert answer.code == 0 and "warning" in answer.err and "frobnicate" in answer.err
    answer = fl("register-device", "--profile", profile_file("broken", options={"tile": 4}))
    assert answer.code == 0 and "are not checked" in answer.err


def test_conform_says_that_the_suite_is_missing(fl, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec",
                        lambda name, *rest: None if name == "torch_fl.conformance" else real(name, *rest))
    answer = fl("conform", "--device", "acme", "--tag", "ops")
    assert answer.code == 3 and "not part of this installation" in answer.err


def test_a_missing_compiled_part_is_code_3(fl, monkeypatch):
    from torch_fl.cli import compiled
    from torch_fl.cli.output import MissingPart

    def missing():
        raise MissingPart("the compiled part torch_fl._C cannot be used: gone")

    monkeypatch.setattr(compiled, "compiled", missing)
    answer = fl("device-list", "--json")
    assert answer.code == 3 and answer.json["kind"] == "MissingPart"


def test_answers_on_a_terminal_are_tables():
    script = f"{sys.executable} -m torch_fl.cli ops --category loss"
    found = subprocess.run(["script", "-qec", script, "/dev/null"], cwd=ROOT, capture_output=True, text=True,
                           env={**os.environ, "COLUMNS": "200", "TERM": "xterm"})
    assert found.returncode == 0 and "nll_loss" in found.stdout and "─" in found.stdout
