"""Every test has a home of its own and none of the machine's TORCH_FL_* variables."""

import json
import os

import pytest

PRINTED = """\
{ "device_name": "ninguang", "arch": "tgpu-v2",
  "memory_pool": { "prealloc_mb": 8192, "min_block_bytes": 512, "alignment": 64 },
  "fp16_supported": true, "bf16_supported": false,
  "native_ops": [ { "op": "aten::conv2d", "compute": "native", "fp16": true },
                  { "op": "aten::matmul", "compute": "native", "fp16": true },
                  { "op": "aten::gelu", "compute": "decompose" } ],
  "comm_backend": "flagos-comm", "sync_primitive": "event" }
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith(("TORCH_FL_", "FLAGOS_")):
            monkeypatch.delenv(name)
    folder = tmp_path / "home"
    monkeypatch.setenv("TORCH_FL_HOME", str(folder))
    return folder


@pytest.fixture
def printed():
    """The profile of architecture.md, section 10, as printed there."""
    return PRINTED


@pytest.fixture
def profile_file(tmp_path):
    """Write a profile with the given fields; returns its path. A library stands beside it unless told otherwise."""

    def write(device_name="acme", library=True, folder=None, **fields):
        place = folder or tmp_path / f"chip-{device_name}"
        place.mkdir(parents=True, exist_ok=True)
        if library:
            (place / f"libfl_{device_name}.so").write_bytes(b"\x7fELF")
        path = place / "profile.json"
        path.write_text(json.dumps({"device_name": device_name, **fields}))
        return path

    return write
