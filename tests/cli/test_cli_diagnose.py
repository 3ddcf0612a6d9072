"""diagnose: what each kind of adapter is told to be, also one that crashes, hangs, or lies."""

import json
import sys

import pytest

from torch_fl.cli import diagnose, probe
from torch_fl.profile.adapters import Chip


@pytest.fixture
def child(monkeypatch, tmp_path):
    """Let diagnose run a script in the place of the probe."""

    def use(script):
        path = tmp_path / "fake_probe.py"
        path.write_text("import json, os, signal, sys, time\n"
                        "def tell(**m): print(json.dumps(m), flush=True)\n"
                        "spec = json.load(sys.stdin)\n" + script)
        real = diagnose.subprocess.Popen
        monkeypatch.setattr(diagnose.subprocess, "Popen",
                            lambda arguments, **rest: real([sys.executable, str(path)], **rest))

    return use


CHIP = Chip("acme", "registered", __import__("pathlib").Path("/x/libfl_acme.so"))
DEVICE = ('tell(device={"index": 0, "ordinal": 0, "name": "Acme", "arch": "a", "total_memory": 1 << 30, "right": True, '
          '"tier": "native", "computed": [2.0, 4.0, 6.0]})\n')
ADAPTER = 'tell(adapter={"name": "acme", "vendor": "A", "version": "1", "abi": "1.0"})\n'


@pytest.mark.parametrize(("script", "state", "words"), [
    (ADAPTER + DEVICE + "tell(done=True)", "works", None),
    (ADAPTER + DEVICE.replace("True", "False", 1).replace('"computed"', '"reason": "gave [0]", "computed"')
     + "tell(done=True)", "broken", "device 0 computes wrongly: gave [0]"),
    ('tell(failed="it does not export the symbol")', "broken", "symbol"),
    ('tell(failed="device_count failed: Unavailable (X): install libx")', "unavailable", "install libx"),
    ('tell(doing="loading the library"); os.kill(os.getpid(), signal.SIGSEGV)', "broken",
     "crashed (SIGSEGV) while loading the library"),
    ('tell(doing="computing on device 0"); sys.stderr.write("assert failed\\n"); os.abort()', "broken",
     "crashed (SIGABRT) while computing on device 0; its last words: assert failed"),
    ('tell(doing="opening its devices"); time.sleep(60)', "broken", "no answer within 1 s while opening its devices"),
    ('tell(doing="opening its devices"); os._exit(0)', "broken", "ended with code 0 while opening its devices"),
    ('print("chatter"); print(\'{"doing": "half a li\'); os._exit(3)', "broken", "ended with code 3 while starting"),
])
def test_states(child, script, state, words):
    child(script)
    result = diagnose.check_chip(CHIP, timeout=1)
    assert result["state"] == state
    assert (result["reason"] is None) if words is None else words in result["reason"]


def test_a_chip_that_was_not_found_is_not_tried(child):
    child("sys.exit(9)")
    result = diagnose.check_chip(Chip("acme", "registered", None, error="no library"), 1)
    assert result["state"] == "broken" and result["reason"] == "no library"


def healthy(fl, *words):
    return fl("diagnose", *words, "--json")


@pytest.fixture
def no_other_problems(monkeypatch):
    monkeypatch.setattr(diagnose, "_autoload_problem", list)


def test_exit_codes(fl, child, profile_file, no_other_problems, home):
    fl("register-device", "--profile", profile_file("acme"))
    child(ADAPTER + DEVICE + "tell(done=True)")
    answer = healthy(fl, "acme")
    assert answer.code == 0 and answer.json["healthy"] and answer.json["adapters"][0]["adapter"]["abi"] == "1.0"
    text = fl("diagnose", "acme")
    assert "[1, 2, 3] * 2 is right, by the native tier" in text.out and "everything works" in text.out
    child('tell(failed="Unavailable")')
    assert healthy(fl, "acme").code == 1  # no device works
    answer = fl("diagnose", "nope")
    assert answer.code == 1 and "no chip" in answer.out
    (home / "config.yaml").write_text("devices: 1\n")
    child(ADAPTER + DEVICE + "tell(done=True)")
    answer = healthy(fl, "acme")
    assert answer.code == 1 and "config.yaml:1" in answer.json["problems"][0]


def test_bad_variables_are_problems(fl, child, profile_file, no_other_problems, monkeypatch):
    fl("register-device", "--profile", profile_file("acme"))
    child(ADAPTER + DEVICE + "tell(done=True)")
    monkeypatch.setenv("TORCH_FL_SYNC_DEBUG", "perhaps")
    monkeypatch.setenv("TORCH_FL_LOGLEVEL", "info")
    problems = " ".join(healthy(fl, "acme").json["problems"])
    assert "TORCH_FL_SYNC_DEBUG='perhaps'" in problems and "did you mean TORCH_FL_LOG_LEVEL?" in problems


def test_the_probe_tells_what_fails(tmp_path):
    told = []
    library = tmp_path / "libfl_bad.so"
    library.write_bytes(b"not a library")
    probe.probe({"path": str(library), "device_name": "bad"}, told.append)
    assert told[0] == {"doing": "loading torch_fl"}
    assert "failed" in told[-1] and told[-1]["failed"]
    json.dumps(told)
