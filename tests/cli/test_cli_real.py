"""The commands with the real compiled part: a skeleton adapter from its first line to a computing device, in processes
of their own, since devices are opened once per process."""

import json
import os
import shutil
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.skipif(subprocess.run([sys.executable, "-c", "import torch; from torch_fl import _C"],
                                      capture_output=True).returncode != 0, reason="torch_fl._C is not built"),
    pytest.mark.skipif(not (shutil.which("make") and shutil.which("cc")), reason="needs make and cc"),
]


@pytest.fixture
def command(tmp_path, home):
    def run(*words):
        return subprocess.run([sys.executable, "-m", "torch_fl.cli", *words], cwd=tmp_path, capture_output=True,
                              text=True, timeout=300, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})

    return run


@pytest.fixture
def python(tmp_path, home):
    def run(code):
        return subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})

    return run


@pytest.fixture
def acme(fl, tmp_path):
    assert fl("new-adapter", "acme").code == 0  # opens no device, so it may run in this process
    subprocess.run(["make", "-s"], cwd=tmp_path / "acme", check=True)
    return tmp_path / "acme"


def test_the_walk_of_a_new_adapter(fl, command, python, acme):
    assert fl("register-device", "--profile", "acme/profile.json").code == 0
    (device,) = json.loads(command("device-list", "--json").stdout)["devices"]
    assert device["chip"] == "acme" and device["total_memory"] == 1 << 30 and device["memory_free"] == 1 << 30
    result = json.loads(command("diagnose", "acme", "--json").stdout)["adapters"][0]
    assert result["state"] == "works", result
    assert result["devices"][0]["computed"] == [2.0, 4.0, 6.0]
    found = python(
        "import torch, torch_fl\n"
        "x = torch.randn(1000, 33, device='fl:0'); y = x.cpu()\n"
        "assert torch.equal((x + x).cpu(), y + y) and torch.equal(torch.add(x, x, alpha=3).cpu(), y + 3 * y)\n"
        "assert torch.allclose((x.t() @ x).cpu(), y.t() @ y, atol=1e-3)\n"
        "from torch_fl import _C\n"
        "assert (0, 'aten::add.Tensor', 'native') in [c[:3] for c in _C.counts()], _C.counts()\n")
    assert found.returncode == 0, found.stderr


def test_what_init_profile_writes_loses_nothing(fl, command, acme):
    library = str(acme / "libfl_acme.so")
    assert command("init-profile", "--device", library).returncode == 0
    assert fl("register-device", "--profile", "chip_profile.json").code == 0
    coverage = json.loads(command("ops", "--device", "acme", "--json").stdout)
    assert [op["uniop"] for op in coverage["ops"] if op["native"]] == ["add"]


def test_another_profile_makes_another_chip_of_the_same_adapter(fl, command, python, acme, tmp_path):
    (tmp_path / "emulated.json").write_text(json.dumps({
        "device_name": "emulated", "adapter": str(acme / "libfl_acme.so"), "native_ops": [],
        "memory_pool": {"total_mb": 16, "alignment": 256}}))
    assert fl("register-device", "--profile", "emulated.json").code == 0
    (device,) = json.loads(command("device-list", "--json").stdout)["devices"]
    assert device["chip"] == "emulated" and device["total_memory"] == 16 << 20 and device["alignment"] == 256
    found = python("import torch, torch_fl\n"
                   "x = torch.ones(4, device='fl:0'); assert (x + x).tolist() == [2.0] * 4\n"
                   "from torch_fl import _C\n"
                   "assert ('aten::add.Tensor', 'cpu') in [c[1:3] for c in _C.counts()], _C.counts()\n"
                   "try: torch.empty(32 << 20, device='fl:0')\n"
                   "except torch.OutOfMemoryError: pass\n"
                   "else: raise SystemExit('16 MiB held 128')\n")
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(("damage", "words"), [
    (lambda path: path.write_bytes(b"not a library"), "cannot be used"),
    (lambda path: path.write_bytes(path.read_bytes()[:3000]), "cannot be used"),
])
def test_diagnose_tells_what_is_wrong_with_a_library(fl, command, acme, damage, words):
    assert fl("register-device", "--profile", "acme/profile.json").code == 0
    damage(acme / "libfl_acme.so")
    found = command("diagnose", "acme", "--json")
    (result,) = json.loads(found.stdout)["adapters"]
    assert found.returncode == 1 and result["state"] == "broken" and words in result["reason"]
    found = command("device-list")
    assert found.returncode == 1 and words in found.stderr


def test_an_adapter_that_crashes_is_told_apart(fl, command, acme):
    source = acme / "adapter.c"
    source.write_text(source.read_text().replace("*out_count = NUM_DEVICES;", "*(volatile int*)0 = 1;"))
    subprocess.run(["make", "-s"], cwd=acme, check=True)
    assert fl("register-device", "--profile", "acme/profile.json").code == 0
    (result,) = json.loads(command("diagnose", "acme", "--json").stdout)["adapters"]
    assert result["state"] == "broken" and "SIGSEGV" in result["reason"] and "opening its devices" in result["reason"]


def test_an_adapter_without_hardware_is_unavailable(fl, command, acme):
    source = acme / "adapter.c"
    source.write_text(source.read_text().replace(
        "*out_count = NUM_DEVICES;\n  return FL_STATUS_OK;",
        'return fail(FL_STATUS_UNAVAILABLE, 42, "libacme_runtime.so is not installed");'))
    subprocess.run(["make", "-s"], cwd=acme, check=True)
    assert fl("register-device", "--profile", "acme/profile.json").code == 0
    (result,) = json.loads(command("diagnose", "acme", "--json").stdout)["adapters"]
    assert result["state"] == "unavailable" and "libacme_runtime.so is not installed" in result["reason"]


def test_coverage_under_a_profile_that_is_not_registered(command, home, tmp_path):
    (tmp_path / "my_chip.json").write_text(json.dumps({
        "device_name": "my-chip", "adapter": "ninguang", "dtypes": ["float32"], "sync_primitive": "stream",
        "memory_pool": {"total_mb": 64}, "native_ops": [{"op": "aten::mm"}, {"op": "add"}]}))
    (tmp_path / "model.py").write_text(
        "import torch\ndef run(device):\n    x = torch.ones(4, 4, device=device)\n    (torch.exp(x @ x) + x).sum()\n")
    found = command("ops", "--profile", "my_chip.json", "--model", "model.py:run", "--json")
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    tiers = {op["op"]: op["tier"] for op in answer["ops"]}
    assert tiers["aten::mm"] == tiers["aten::add"] == "native" and tiers["aten::_fused_adam"] == "cpu"
    assert tiers["aten::gelu"] != "native" and sum(answer["tiers"].values()) == answer["of"] == len(tiers)
    assert answer["memory"] == 64 << 20 and answer["sync_primitive"] == "stream" and not answer["unified_memory"]
    calls = answer["model"]["calls"]
    assert calls["native"]["aten::mm"] == 1 and calls["native"]["aten::add.Tensor"] == 1 and "aten::exp" in calls["cpu"]
    assert answer["model"]["routing"].startswith("[Torch-FL] Operator routing: native=")
    assert answer["model"]["bytes_moved"] > 0
    assert not (home / "profiles").exists()  # nothing is left behind


def test_an_option_that_the_adapter_does_not_know(command, home, tmp_path):
    (tmp_path / "my_chip.json").write_text(json.dumps({
        "device_name": "my-chip", "adapter": "ninguang", "options": {"frobnicate": True}}))
    found = command("register-device", "--profile", "my_chip.json", "--check")
    assert found.returncode == 1 and "frobnicate=true" in found.stderr and "refuses" in found.stderr
