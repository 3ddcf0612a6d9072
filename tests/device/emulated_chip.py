"""An emulated chip for tests: the reference chip behind a recorder (adapters/recorder.c), under a test's profile."""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path
from typing import Any

import torch_fl
from torch_fl.profile import adapters
from torch_fl.profile.loader import load
from torch_fl.profile.op_plan import plan

# DLPack's codes (adapter.h) -> names of types.
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
MASKS_AND_INDICES = {"bool", "int32", "int64"}  # results of these types come from any kernel


class _Record(ctypes.Structure):
    _fields_ = [("uniop", ctypes.c_char * 40), ("in_code", ctypes.c_int32), ("in_bits", ctypes.c_int32),
                ("out_code", ctypes.c_int32), ("out_bits", ctypes.c_int32), ("calls", ctypes.c_int64),
                ("max_ndim", ctypes.c_int32), ("least_alignment", ctypes.c_uint32), ("max_numel", ctypes.c_uint64),
                ("strided", ctypes.c_int32), ("broadcast", ctypes.c_int32), ("immediate", ctypes.c_int32)]  # fmt: skip


def _type_name(code: int, bits: int) -> str:
    return "bool" if code == 6 else f"{_CODES[code]}{bits}"


class EmulatedChip:
    """Builds the library and the profile in `folder`, opens the chip.

    Attributes:
        devices: its devices.
    """

    def __init__(self, folder: Path, name: str = "emulated", **fields: Any) -> None:
        library = folder / f"libfl_{name}.so"
        source = Path(__file__).parent / "adapters" / "recorder.c"
        inner = adapters.find("ninguang").library
        command = ["gcc", "-std=c11", "-O1", "-shared", "-fPIC", f"-DCHIP={name}", f'-DINNER="{inner}"',
                   f"-I{adapters.include_dir()}", str(source), "-o", str(library), "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
        self.path = folder / f"{name}.json"
        self.path.write_text(json.dumps({"device_name": name, "adapter": str(library), **fields}))
        self.profile = load(self.path)
        self.devices = torch_fl.register_device(str(self.path))
        self._library = ctypes.CDLL(str(library))

    @property
    def records(self) -> list[_Record]:
        """What was launched, by UniOp and types."""
        rows = ctypes.POINTER(_Record)()
        count = self._library.recorder_records(ctypes.byref(rows))
        return [row for row in rows[:count] if row.calls]

    @property
    def event_calls(self) -> int:
        return self._library.recorder_event_calls()

    @property
    def stream_calls(self) -> int:
        return self._library.recorder_stream_calls()

    def undeclared(self) -> list[str]:
        """What was launched and is not declared: operators, types, layouts, sizes, alignments."""
        ops, found = plan(self.profile), []
        for row in self.records:
            uniop = row.uniop.decode()
            what = f"{uniop}({_type_name(row.in_code, row.in_bits)} -> {_type_name(row.out_code, row.out_bits)})"
            if uniop in ops.pinned or (ops.only_listed and uniop not in ops.native):
                found.append(f"{what}: not declared")
            allowed = set(ops.native.get(uniop) or self.profile.effective_dtypes())
            if _type_name(row.in_code, row.in_bits) not in allowed:
                found.append(f"{what}: computing type")
            if _type_name(row.out_code, row.out_bits) not in allowed | MASKS_AND_INDICES:
                found.append(f"{what}: type of the result")
            limits = ops.constraints.get(uniop, self.profile.constraints)
            broken = [("contiguous", limits.contiguous and row.strided),
                      ("no_broadcast", limits.no_broadcast and row.broadcast),
                      ("no_immediate", limits.no_immediate and row.immediate),
                      ("ndim", 0 < limits.max_ndim < row.max_ndim),
                      ("numel", 0 < limits.max_numel < row.max_numel),
                      ("alignment", limits.alignment > row.least_alignment)]
            found += [f"{what}: {name}" for name, wrong in broken if wrong]
        return found
