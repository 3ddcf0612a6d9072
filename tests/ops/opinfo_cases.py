"""One OpInfo of PyTorch's database on the device against the CPU: what is checked, and how strictly.

Checked for each of a few samples: forward, non-contiguous inputs, in-place, out= and gradients; values, dtype, shape,
device of the tensor and of its storage. The worker (opinfo_worker.py) calls check_op() in a process of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import noncontiguous_like
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device(os.environ.get("FL_TEST_DEVICE", "fl:1"))
NUM_SAMPLES = int(os.environ.get("FL_OPINFO_SAMPLES", "3"))
DTYPE: torch.dtype = getattr(torch, os.environ.get("FL_OPINFO_DTYPE", "float32"))

# Entries that test something a dense device does not have; everything else counts.
LEFT_OUT = {
    "sparse.sampled_addmm": "sparse CSR tensors only",
    "sparse.mm.reduce": "sparse CSR tensors only",
    "to_sparse": "returns a sparse tensor",
}

# Entries whose tensor arguments beside the input stay on the CPU, as PyTorch demands.
ARGUMENTS_ON_CPU = {"tensor_split"}

# Results without defined values.
UNINITIALIZED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_",
                 "resize_as_"}  # fmt: skip

RTOL, ATOL = {torch.float16: (1e-2, 1e-3), torch.bfloat16: (3e-2, 1e-2)}.get(DTYPE, (1e-4, 1e-5))
# Operators whose float32 result is legitimately known less well: (rtol, atol).
TOLERANCES: dict[str, tuple[float, float]] = {
    "matrix_exp": (1e-2, 1e-2),  # of norms near 50; the CPU is off by this much from float64, too
}

# Factors that are unique up to signs: compared as the entry itself says (output_process_fn_grad).
UP_TO_SIGN = {"linalg.eigh", "linalg.svd", "svd", "linalg.qr", "qr", "linalg.eig"}


def op_name(op: OpInfo) -> str:
    """Return the entry's full name: "nn.functional.gelu", "std.unbiased"."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def _counts(op: OpInfo) -> bool:
    """Other types than float32 are for looking around: only entries that support them."""
    return op_name(op) not in LEFT_OUT and (DTYPE == torch.float32 or DTYPE in op.dtypes)


OPS: dict[str, OpInfo] = {op_name(op): op for op in op_db if _counts(op)}


@dataclass
class OpReport:
    """What check_op() found: failures are (stage, text); a stage is "forward[0]", "grad[2]", …"""

    checks: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    not_covered: list[str] = field(default_factory=list)  # stages that no enabled tier serves
    strides: list[str] = field(default_factory=list)  # stages whose result has other strides; reported only


class Mismatch(AssertionError):
    """The device's result is not the CPU's."""


def dtype_of(op: OpInfo) -> torch.dtype:
    """float32, or the first type the operator supports (entries for CUDA only name none for the CPU)."""
    if DTYPE in op.dtypes:
        return DTYPE
    order = (torch.float64, torch.complex64, torch.int64, torch.int32, torch.bool, torch.bfloat16, torch.float16)
    return next((d for d in order if d in op.dtypes), next(iter(op.dtypes), torch.float32))


def to_device(value: Any) -> Any:
    """Copy CPU tensors with their strides; the device argument of a factory becomes the device."""

    def move(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.device.type == "cpu":
            return _move_tensor(x)
        if isinstance(x, torch.device) and x.type == "cpu" or isinstance(x, str) and x == "cpu":
            return DEVICE
        return x

    return tree_map(move, value)


def _move_tensor(x: torch.Tensor) -> torch.Tensor:
    if x.layout != torch.strided or x.is_quantized:
        return x.to(DEVICE)
    plain = x.detach()
    if plain.is_conj() or plain.is_neg():
        moved = plain.to(DEVICE)
    else:
        flat = torch.empty(0, dtype=x.dtype).set_(plain.untyped_storage())
        moved = flat.to(DEVICE).as_strided(x.shape, x.stride(), x.storage_offset())
    return moved.requires_grad_(x.requires_grad)


def _clone(value: Any) -> Any:
    """Fresh leaves over copies of the whole storages, so that an in-place operator cannot touch the sample."""

    def clone(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        plain = x.detach()
        if x.layout != torch.strided or x.is_conj() or x.is_neg():
            return plain.clone().requires_grad_(x.requires_grad)
        copy = torch.empty(0, dtype=x.dtype)
        copy.set_(plain.untyped_storage().clone(), x.storage_offset(), x.shape, x.stride())
        return copy.requires_grad_(x.requires_grad)

    return tree_map(clone, value)


def _noncontiguous(value: Any) -> Any:
    return tree_map(lambda x: noncontiguous_like(x) if isinstance(x, torch.Tensor) and x.layout == torch.strided else x,
                    value)  # fmt: skip


class Refused:
    """In place of a result: the CPU has none."""


class _Draws(TorchDispatchMode):
    """Sees whether random numbers are drawn: many entries set the seed themselves."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


class OpCheck:
    """Checks one operator; keeps what the CPU answered so that a second mode need not ask again."""

    def __init__(self, op: OpInfo) -> None:
        self.op = op
        self.name = op_name(op)
        self.dtype = dtype_of(op)
        self.rtol, self.atol = TOLERANCES.get(self.name, (RTOL, ATOL))
        with_grad = op.supports_autograd and self.dtype in op.supported_backward_dtypes("cpu")
        self.samples = self._samples(with_grad)
        self.with_grad = with_grad
        self.expected: dict[str, Any] = {}

    def _samples(self, requires_grad: bool) -> list[SampleInput]:
        torch.manual_seed(0)
        found = self.op.sample_inputs("cpu", self.dtype, requires_grad=requires_grad)
        samples = list(itertools.islice(found, 60))
        if len(samples) <= NUM_SAMPLES:
            return samples
        # From the first to the last, evenly: generators put variants of one form next to each other.
        return [samples[round(i * (len(samples) - 1) / (NUM_SAMPLES - 1))] for i in range(NUM_SAMPLES)]

    def run(self) -> OpReport:
        report = OpReport()
        for i, sample in enumerate(self.samples):
            self._stage(report, f"forward[{i}]", sample, lambda s=sample: self._forward(s))
            self._stage(report, f"strided[{i}]", sample, lambda s=sample: self._strided(s))
            if self.op.get_inplace() is not None and not sample.broadcasts_input:
                self._stage(report, f"inplace[{i}]", sample, lambda s=sample: self._inplace(s))
            if self.op.supports_out:
                self._stage(report, f"out[{i}]", sample, lambda s=sample: self._out(s, strided=False))
                self._stage(report, f"out_strided[{i}]", sample, lambda s=sample: self._out(s, strided=True))
            if self.with_grad:
                self._stage(report, f"grad[{i}]", sample, lambda s=sample: self._grad(s))
        return report

    def _stage(
        self, report: OpReport, stage: str, sample: SampleInput, prepare: Callable[[], tuple | None]
    ) -> None:
        """prepare() returns (function, operands, right answer if known without it) or None for nothing to check."""
        prepared = prepare()
        if prepared is None:
            return
        function, operands, known = prepared
        if stage not in self.expected:
            self.expected[stage] = self._on_cpu(function, operands)
        expected, random = self.expected[stage]
        if expected is Refused:
            return
        if known is not None and not random:
            expected = known
        report.checks += 1
        try:
            actual = self._on_device(function, operands)
            if self.name in UP_TO_SIGN and not stage.startswith("grad"):
                actual, expected = (sample.output_process_fn_grad(tuple(r)) for r in (actual, expected))
            if random:
                self._same_numbers(actual, self._on_device(function, operands))
            self._same(actual, expected, values=not random and self.name not in UNINITIALIZED)
            if not _same_strides(actual, expected):
                report.strides.append(stage)
        except NotImplementedError as error:
            report.not_covered.append(stage)
            report.failures.append((stage, _short(error)))
        except Exception as error:  # noqa: BLE001 - every kind of failure is a finding
            report.failures.append((stage, _short(error)))

    def _on_device(self, function: Callable, operands: tuple) -> Any:
        here = _clone(operands)
        there = (to_device(here[0]), *here[1:]) if self.name in ARGUMENTS_ON_CPU else to_device(here)
        # Factories without a device argument take the default device.
        named = any(isinstance(x, (torch.Tensor, torch.device)) for x in tree_flatten(there)[0])
        torch.manual_seed(1)
        with contextlib.nullcontext() if named else DEVICE:
            return function(*there)

    def _on_cpu(self, function: Callable, operands: tuple) -> tuple[Any, bool]:
        """The CPU's answer, and whether it is another one each time."""
        try:
            torch.manual_seed(1)
            with _Draws() as draws:
                first = function(*_clone(operands))
            second = function(*_clone(operands))
        except Exception:  # noqa: BLE001 - samples are right: the CPU's kernel lacks this form, and is no reference
            return Refused, False
        try:
            self._compare(second, first, values=True, device=None)
        except Mismatch:
            return first, self.name not in UNINITIALIZED
        return first, draws.seen

    # Stages: each returns the function, its operands and, if the function is not to be believed on the CPU, the answer.

    def _forward(self, sample: SampleInput) -> tuple:
        return lambda x, a, k: self.op(x, *a, **k), _operands(sample), None

    def _strided(self, sample: SampleInput) -> tuple:
        x, args, kwargs = _operands(sample)
        with torch.no_grad():
            operands = (_noncontiguous(x), _noncontiguous(args), _noncontiguous(kwargs))
        return lambda x, a, k: self.op(x, *a, **k), operands, None

    def _inplace(self, sample: SampleInput) -> tuple:
        inplace = self.op.get_inplace()

        def function(x: Any, a: Any, k: Any) -> Any:
            with torch.no_grad():
                result = inplace(x, *a, **k)
            if isinstance(x, torch.Tensor) and result is not x:
                raise Mismatch("the in-place operator does not return its argument")
            return x

        return function, _operands(sample), None

    def _out(self, sample: SampleInput, strided: bool) -> tuple | None:
        x, args, kwargs = _operands(sample)
        with torch.no_grad():
            try:
                plain = self.op(*_clone((x,)), *_clone(args), **_clone(kwargs))
            except Exception:  # noqa: BLE001 - the forward stage has it
                return None
        tensors = tree_flatten(plain)[0]
        if not all(isinstance(t, torch.Tensor) for t in tensors):
            return None

        def function(x: Any, a: Any, k: Any, outs: list[torch.Tensor]) -> Any:
            target = outs[0] if isinstance(plain, torch.Tensor) else tuple(outs)
            pointers = [o.data_ptr() for o in outs]
            with torch.no_grad():
                self.op(x, *a, out=target, **k)
            if strided and pointers != [o.data_ptr() for o in outs]:
                raise Mismatch("out= was given new memory although it has the right shape")
            return outs

        outs = [_strided_like(t) if strided else torch.empty(0, dtype=t.dtype) for t in tensors]
        # PyTorch's CPU kernels get some strided outputs wrong (gelu through oneDNN): the functional result decides.
        return function, (x, args, kwargs, outs), tensors

    def _grad(self, sample: SampleInput) -> tuple:
        def function(x: Any, a: Any, k: Any) -> Any:
            leaves = [t for t in tree_flatten((x, a, k))[0] if isinstance(t, torch.Tensor) and t.requires_grad]
            result = sample.output_process_fn_grad(self.op(x, *a, **k))
            outputs = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
            if not outputs or not leaves:
                return []
            generator = torch.Generator().manual_seed(2)
            weights = [(torch.rand(o.shape, generator=generator) + 0.5).to(o.dtype).to(o.device) for o in outputs]
            return list(torch.autograd.grad(outputs, leaves, weights, allow_unused=True))

        return function, _operands(sample), None

    # Comparison

    def _same(self, actual: Any, expected: Any, values: bool) -> None:
        self._compare(actual, expected, values, DEVICE)

    def _compare(self, actual: Any, expected: Any, values: bool, device: torch.device | None) -> None:
        if isinstance(expected, torch.Tensor):
            self._compare_tensor(actual, expected, values, device)
        elif isinstance(expected, (tuple, list)):
            if not isinstance(actual, (tuple, list)) or len(actual) != len(expected):
                raise Mismatch(f"{type(actual).__name__} instead of {len(expected)} results")
            for a, e in zip(actual, expected, strict=True):
                self._compare(a, e, values, device)
        elif isinstance(expected, float) and values:
            torch.testing.assert_close(actual, expected, rtol=self.rtol, atol=self.atol, equal_nan=True)
        elif isinstance(expected, torch.device) or not values:
            return
        elif actual != expected:
            raise Mismatch(f"{actual!r} instead of {expected!r}")

    def _compare_tensor(self, actual: Any, expected: torch.Tensor, values: bool, device: torch.device | None) -> None:
        if not isinstance(actual, torch.Tensor):
            raise Mismatch(f"{actual!r} instead of a tensor")
        if device is not None:
            if actual.device != device:
                raise Mismatch(f"the result is on {actual.device}")
            if actual.layout == torch.strided and actual.untyped_storage().device != device:
                raise Mismatch(f"the result's storage is on {actual.untyped_storage().device}")
        if actual.dtype != expected.dtype:
            raise Mismatch(f"{actual.dtype} instead of {expected.dtype}")
        if actual.shape != expected.shape:
            raise Mismatch(f"shape {tuple(actual.shape)} instead of {tuple(expected.shape)}")
        if not values:
            return
        a, e = actual.detach().cpu(), expected.detach()
        if e.layout != torch.strided:
            a, e = a.to_dense(), e.to_dense()
        a, e = a.resolve_conj().resolve_neg(), e.resolve_conj().resolve_neg()
        exact = not (e.is_floating_point() or e.is_complex())
        try:
            torch.testing.assert_close(a, e, rtol=0 if exact else self.rtol, atol=0 if exact else self.atol,
                                       equal_nan=True, check_stride=False)  # fmt: skip
        except AssertionError as error:
            raise Mismatch("values: " + " ".join(str(error).split())) from None

    def _same_numbers(self, first: Any, second: Any) -> None:
        """One seed gives one result, also on the device."""
        for a, b in zip(tree_flatten(first)[0], tree_flatten(second)[0], strict=True):
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(a.detach().cpu(), b.detach().cpu(), rtol=0, atol=0, equal_nan=True)


def _operands(sample: SampleInput) -> tuple[Any, tuple, dict]:
    return sample.input, tuple(sample.args), dict(sample.kwargs)


def _strided_like(t: torch.Tensor) -> torch.Tensor:
    """The same shape, with every dimension's stride doubled."""
    return torch.empty([2 * n for n in t.shape], dtype=t.dtype)[tuple(slice(None, None, 2) for _ in t.shape)]


def _same_strides(actual: Any, expected: Any) -> bool:
    pairs = zip(tree_flatten(actual)[0], tree_flatten(expected)[0], strict=False)
    return all(a.stride() == e.stride() for a, e in pairs
               if isinstance(a, torch.Tensor) and a.layout == torch.strided == e.layout and a.numel())  # fmt: skip


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


@contextlib.contextmanager
def quiet() -> Any:
    """Samples warn about deprecations on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
