"""Call the ninguang kernel library from Python through ng.h, for tests. Knows ctypes and torch's CPU tensors only.

`Chip().run("add", [a, b], out=torch.empty(3))` uploads the operands with their strides as they are, launches the
operator and returns the output as a CPU tensor with the strides that `out` has. The library is found through
NINGUANG_LIBRARY or in the usual build folders.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

import torch

TYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
CODE = {dtype: code for code, dtype in enumerate(TYPES)}
NOT_SUPPORTED, DIVISION_BY_ZERO, OUT_OF_RANGE = 6, 11, 8


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("ndim", ctypes.c_int32),
        ("type", ctypes.c_uint8),
        ("absent", ctypes.c_uint8),
        ("immediate", ctypes.c_uint8),
        ("reserved", ctypes.c_uint8),
        ("value", ctypes.c_uint8 * 16),
    ]


class ScalarValue(ctypes.Union):
    _fields_ = [("i", ctypes.c_int64), ("f", ctypes.c_double), ("c", ctypes.c_double * 2)]


class Scalar(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_uint8), ("reserved", ctypes.c_uint8 * 7), ("v", ScalarValue)]


@dataclass
class Immediate:
    """An input whose value travels with the call."""

    value: object
    dtype: torch.dtype


class NgError(RuntimeError):
    def __init__(self, code: int, what: str, text: str):
        super().__init__(f"{what}: ngResult {code}: {text}")
        self.code = code


def find_library() -> Path:
    """Return the path of libninguang.so."""
    if named := os.environ.get("NINGUANG_LIBRARY"):
        return Path(named)
    root = Path(__file__).resolve().parents[4]
    found = [p for pattern in ("build*/**/libninguang.so", "torch_fl/**/libninguang.so") for p in root.glob(pattern)]
    if not found:
        raise FileNotFoundError("libninguang.so is not built; set NINGUANG_LIBRARY")
    return max(found, key=lambda p: p.stat().st_mtime)


def scalar(value) -> Scalar:
    """Make an attribute from None, a bool, an int, a float or a complex."""
    result = Scalar()
    if value is None:
        return result
    if isinstance(value, bool):
        result.kind, result.v.i = 3, int(value)
    elif isinstance(value, int):
        result.kind, result.v.i = 1, value - (1 << 64) if value >= 1 << 63 else value
    elif isinstance(value, complex):
        result.kind = 4
        result.v.c[0], result.v.c[1] = value.real, value.imag
    else:
        result.kind, result.v.f = 2, value
    return result


class Chip:
    """Device 0 of the library, with one stream."""

    def __init__(self, device: int = 0):
        self.lib = ctypes.CDLL(str(find_library()))
        self.lib.ngGetLastErrorString.restype = ctypes.c_char_p
        self.device = device
        count = ctypes.c_int32()
        self._check(self.lib.ngDeviceCount(ctypes.byref(count)), "ngDeviceCount")
        self.stream = ctypes.c_void_p()
        self._check(self.lib.ngStreamCreate(device, 0, ctypes.byref(self.stream)), "ngStreamCreate")
        self.operators: dict[tuple, ctypes.c_void_p] = {}

    def _check(self, code: int, what: str) -> None:
        if code:
            raise NgError(code, what, (self.lib.ngGetLastErrorString() or b"").decode())

    def find(self, name: str, dtype: torch.dtype, out_dtype: torch.dtype) -> ctypes.c_void_p:
        """Return the operator for these types. Raises NgError with code NOT_SUPPORTED if there is none."""
        key = (name, dtype, out_dtype)
        if key not in self.operators:
            op = ctypes.c_void_p()
            code = self.lib.ngOperatorFind(
                self.device, name.encode(), CODE[dtype], CODE[out_dtype], ctypes.byref(op)
            )
            self._check(code, f"{name} {dtype} -> {out_dtype}")
            self.operators[key] = op
        return self.operators[key]

    def has(self, name: str, dtype: torch.dtype, out_dtype: torch.dtype) -> bool:
        """True if the library has this operator for these types."""
        try:
            self.find(name, dtype, out_dtype)
        except NgError as error:
            if error.code != NOT_SUPPORTED:
                raise
            return False
        return True

    def upload(self, tensor: torch.Tensor) -> ctypes.c_void_p:
        """Copy a tensor's whole storage to the device; returns the address of the storage."""
        storage = tensor.untyped_storage()
        address = ctypes.c_void_p()
        size = max(storage.nbytes(), 1)
        self._check(self.lib.ngMalloc(self.device, ctypes.c_uint64(size), ctypes.byref(address)), "ngMalloc")
        source = ctypes.c_void_p(storage.data_ptr())
        self._check(
            self.lib.ngMemcpyHtoDAsync(self.stream, address, source, ctypes.c_uint64(storage.nbytes())), "upload"
        )
        self.synchronize()
        return address

    def download(self, address: ctypes.c_void_p, tensor: torch.Tensor) -> None:
        """Copy device memory back over a tensor's whole storage."""
        storage = tensor.untyped_storage()
        target = ctypes.c_void_p(storage.data_ptr())
        self._check(
            self.lib.ngMemcpyDtoHAsync(self.stream, target, address, ctypes.c_uint64(storage.nbytes())), "download"
        )
        self.synchronize()

    def free(self, address: ctypes.c_void_p) -> None:
        self.lib.ngFree(self.device, address)

    def synchronize(self) -> None:
        """Wait for the stream. Raises what failed on it."""
        self._check(self.lib.ngStreamSynchronize(self.stream), "ngStreamSynchronize")

    def describe(self, operand, addresses: dict) -> Tensor:
        """Make the ngTensor of an operand; uploads its storage once per call."""
        result = Tensor()
        if operand is None:
            result.absent = 1
            return result
        if isinstance(operand, Immediate):
            value = torch.tensor([operand.value], dtype=operand.dtype)
            ctypes.memmove(result.value, value.data_ptr(), value.element_size())
            result.immediate, result.type = 1, CODE[operand.dtype]
            return result
        storage = operand.untyped_storage().data_ptr()
        if storage not in addresses:
            addresses[storage] = (self.upload(operand), operand)
        base = addresses[storage][0].value
        result.data = base + operand.storage_offset() * operand.element_size()
        result.sizes = (ctypes.c_int64 * max(operand.ndim, 1))(*operand.shape)
        result.strides = (ctypes.c_int64 * max(operand.ndim, 1))(*operand.stride())
        result.ndim, result.type = operand.ndim, CODE[operand.dtype]
        return result

    def run(self, name: str, inputs, out, attrs=(), dtype: torch.dtype | None = None):
        """Run one operator.

        Args:
          name: a UniOp.
          inputs: CPU tensors, `Immediate`s or None.
          out: one CPU tensor or a list; they give type, sizes and strides, and receive the result.
          attrs: Python scalars or None.
          dtype: the computing type; that of the first input by default, else of the first output.

        Returns:
          `out`.
        """
        outputs = list(out) if isinstance(out, (list, tuple)) else [out]
        first = next(x for x in [*inputs, *outputs] if x is not None)
        op = self.find(name, dtype or first.dtype, outputs[0].dtype)
        addresses: dict = {}
        # Kept in a list: an array of structures does not keep alive what its elements point at.
        operands = [self.describe(x, addresses) for x in [*inputs, *outputs]]
        ins = (Tensor * max(len(inputs), 1))(*operands[: len(inputs)])
        outs = (Tensor * len(outputs))(*operands[len(inputs) :])
        values = (Scalar * max(len(attrs), 1))(*[scalar(x) for x in attrs])
        try:
            code = self.lib.ngOperatorLaunch(
                op, self.stream, ins, len(inputs), outs, len(outputs), values, len(attrs)
            )
            self._check(code, name)
            self.synchronize()
            for tensor in outputs:
                if tensor is not None:
                    self.download(addresses[tensor.untyped_storage().data_ptr()][0], tensor)
        finally:
            for address, _ in addresses.values():
                self.free(address)
        return out
