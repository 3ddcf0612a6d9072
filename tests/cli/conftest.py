"""The command line in this process, with a home of its own and, if a test wants it, a compiled part made of Python."""

import json
import os

import pytest

from torch_fl.cli import main


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith(("TORCH_FL_", "FLAGOS_")):
            monkeypatch.delenv(name)
    folder = tmp_path / "home"
    monkeypatch.setenv("TORCH_FL_HOME", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


class Answer:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def fl(capsys):
    """Run a command: fl("device-list", "--json") -> Answer."""

    def run(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return run


@pytest.fixture
def profile_file(tmp_path):
    """Write a profile with the given fields and a library beside it; returns its path."""

    def write(device_name="acme", library=True, **fields):
        place = tmp_path / f"chip-{device_name}"
        place.mkdir(exist_ok=True)
        if library:
            (place / f"libfl_{device_name}.so").write_bytes(b"\x7fELF")
        path = place / "profile.json"
        path.write_text(json.dumps({"device_name": device_name, **fields}))
        return path

    return write


class FakeCore:
    """torch_fl._C as the commands use it: one device for each library that exists."""

    kernels = [("add", "float32", "float32"), ("add", "float16", "float16"), ("eq", "float32", "bool"),
               ("gelu", "float32", "float32"), ("copy", "float32", "float16")]

    def __init__(self):
        self.discover = None
        self.devices = None
        self.failures = []

    def set_discover(self, function):
        self.discover = function

    def devices_opened(self):
        return self.devices is not None

    def device_count(self):
        if self.devices is None:
            self.devices = []
            try:
                for spec in self.discover():
                    self.add_adapter(spec)
            except RuntimeError as error:
                self.failures.append({"path": "", "reason": str(error)})
        return len(self.devices)

    def add_adapter(self, spec):
        self.devices = self.devices or []
        self.open_adapter(spec["path"])
        if spec in self.devices:
            return [self.devices.index(spec)]
        self.devices.append(spec)
        return [len(self.devices) - 1]

    def open_adapter(self, path):
        if "broken" in path:
            raise RuntimeError(f"Adapter {path} cannot be used: it is not a library")
        return {"name": os.path.basename(path)[6:-3], "vendor": "Fake", "version": "1", "abi": "1.0"}

    def device_info(self, index):
        spec = self.devices[index]
        chip = spec.get("device_name") or self.open_adapter(spec["path"])["name"]
        return {"index": index, "ordinal": 0, "name": f"Fake {chip}", "chip": chip, "arch": "fake-1",
                "uuid": f"u{index}", "adapter": chip, "adapter_version": "1", "total_memory": 1 << 30,
                "capabilities": ["in_place"], "alignment": 128}

    def adapter_failures(self):
        return self.failures

    def memory_info(self, index):
        return (1 << 29, 1 << 30)

    def adapter_kernels(self, path, ordinal):
        return self.kernels

    def refused_options(self, path, options):
        self.open_adapter(path)
        return [(key, "it has no option of this name") for key in options if key == "frobnicate"]


@pytest.fixture
def core(monkeypatch):
    """Put a FakeCore in the place of torch_fl._C."""
    from torch_fl.cli import compiled, device_commands, op_commands, profile_commands

    fake = FakeCore()
    monkeypatch.setattr(compiled, "compiled", lambda: fake)
    for module in (op_commands, profile_commands):
        monkeypatch.setattr(module, "compiled", lambda: fake)
    assert device_commands
    return fake
