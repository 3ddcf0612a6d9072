"""A user's kernel against other ways to compute the same: Kernel.check().

Each sample is computed by the kernel and by the decomposition, the chip without the kernel, and the CPU; values, types,
shapes, optionally strides; the in-place and out= overloads; gradients. A sample that did not reach the kernel does not
count as checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from torch_fl._errors import FlError

__all__ = ["KernelMismatch", "Report", "Row", "check"]

Sample = tuple[tuple, dict[str, Any]]
_TOLERANCES = {torch.float16: (1e-2, 1e-3), torch.bfloat16: (3e-2, 1e-2), torch.float64: (1e-7, 1e-8)}


class KernelMismatch(FlError, AssertionError):
    """A kernel's results are not those of the operator; the text is the report."""


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        form: "forward", "in-place", "out=" or "gradient".
        against: "decomposition", "chip" or "cpu".
        difference: largest absolute difference of values; None where there are none to compare.
        problem: what is wrong, or "".
    """

    device: str
    sample: str
    form: str
    against: str
    difference: float | None
    problem: str


@dataclass
class Report:
    """All comparisons of one check."""

    op: str
    where: str
    rows: list[Row] = field(default_factory=list)
    not_reached: list[str] = field(default_factory=list)  # samples that it was not asked for, or that it declined

    @property
    def failures(self) -> list[Row]:
        """The rows with a problem."""
        return [row for row in self.rows if row.problem]

    @property
    def ok(self) -> bool:
        """At least one comparison was made, and none failed."""
        return bool(self.rows) and not self.failures

    def __str__(self) -> str:
        groups: dict[tuple[str, str, str], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.device, row.form, row.against), []).append(row)
        lines = [f"kernel {self.where} for {self.op}"]
        for (device, form, against), rows in groups.items():
            bad = [row for row in rows if row.problem]
            known = [row.difference for row in rows if row.difference is not None]
            most = f"largest difference {max(known):.3g}" if known else "no values"
            verdict = f"{len(bad)} FAILED" if bad else "ok"
            lines.append(f"  {device:6} {form:9} against {against:14} {len(rows):3} samples  {most:30} {verdict}")
            lines += [f"      {row.sample}: {row.problem}" for row in bad[:3]]
        if self.not_reached:
            lines.append(f"  {len(self.not_reached)} samples did not reach the kernel, or it declined them: "
                         f"{'; '.join(self.not_reached[:3])}")
        if not self.rows:
            lines.append("  NOTHING WAS CHECKED")
        return "\n".join(lines)


def check(kernel: Any, samples: Iterable[Any] | None = None, *, dtypes: Iterable[torch.dtype] = (torch.float32,),
          gradients: bool = True, strides: bool = False, rtol: float | None = None, atol: float | None = None,
          raises: bool = True, verbose: bool = True) -> Report:
    """Compare a kernel with the decomposition, with the chip without it, and with the CPU.

    Args:
        kernel: what torch_fl.kernel() returned; it must be there still.
        samples: arguments on the CPU, each `(x, y)`, `((x, y), {"alpha": 2})` or a tensor. Default: those of PyTorch's
            own operator database (torch.testing), where it has the operator.
        dtypes: of the database's samples.
        gradients: also compare the gradients of floating-point inputs.
        strides: results must have the CPU's strides, too.
        rtol: relative tolerance; default by type, 1e-4 for float32.
        atol: absolute tolerance; default by type, 1e-5 for float32.
        raises: raise if a comparison fails or none could be made.
        verbose: print the report.

    Raises:
        KernelMismatch: see `raises`.
        ValueError: there are no samples, or the kernel was removed.
    """
    if not kernel.overloads:
        raise ValueError(f"{kernel!r}: there is nothing to check")
    report = Report(kernel.op.name(), kernel.where)
    cases = list(_given(kernel, samples) if samples is not None else _from_database(kernel, dtypes))
    if not cases:
        raise ValueError(f"no samples for {kernel.op.name()}")
    for device in kernel.devices:
        for name, function, sample in cases:
            _Comparison(kernel, device, name, function, sample, (rtol, atol), strides, report).run(gradients)
    if raises and not report.ok:
        raise KernelMismatch(str(report))
    if verbose:
        print(report)
    return report


class _Comparison:
    """One sample on one device."""

    def __init__(self, kernel: Any, device: torch.device, name: str, function: Callable[..., Any], sample: Sample,
                 tolerance: tuple[float | None, float | None], strides: bool, report: Report) -> None:
        self.kernel, self.device, self.name, self.function, self.sample = kernel, device, name, function, sample
        self.tolerance, self.strides, self.report = tolerance, strides, report

    def run(self, gradients: bool) -> None:
        if not self._form("forward", self.function, self.kernel.op.name(), self.sample):
            return
        for overload in self.kernel.overloads[1:]:
            target = _overload(overload)
            outs = [a.name for a in target._schema.arguments if a.is_out]
            self._variant("out=" if outs else "in-place", target, outs)
        if gradients and not self.kernel.op._schema.is_mutable:
            self._gradients()

    def _form(self, form: str, function: Callable[..., Any], overload: str, sample: Sample) -> bool:
        """Compare one way to call the operator; False if the kernel was not what computed it."""
        before = _calls(self.device, overload)
        try:
            got = _on(self.device, function, sample)
        except Exception as error:  # noqa: BLE001 - every kind of failure is a finding
            self._row(form, "cpu", None, f"{type(error).__name__}: {error}")
            return True
        if _calls(self.device, overload) == before:
            if form == "forward":
                self.report.not_reached.append(self.name)
            return False
        for against, expected in self._others(function, sample):
            self._row(form, against, *self._difference(got, expected, against))
        return True

    def _others(self, function: Callable[..., Any], sample: Sample) -> Iterable[tuple[str, Any]]:
        decomposition, new = _decomposition(self.kernel), _is_new(self.kernel)
        if decomposition is not None and function is self.function:
            yield from self._answer("decomposition", self.device, decomposition, sample)
        if not new:  # else the chip has nothing but the decomposition
            yield from self._answer("chip", self.device, function, sample)
        if not new or decomposition is not None:
            yield from self._answer("cpu", torch.device("cpu"), function, sample)

    def _answer(self, against: str, device: torch.device, function: Callable[..., Any],
                sample: Sample) -> Iterable[tuple[str, Any]]:
        from torch_fl import _C

        try:
            with _C.UserKernelOriginal(self.kernel._group << 2):
                answer = _on(device, function, sample)
        except Exception:  # noqa: BLE001 - this way cannot compute the sample: nothing to compare with
            return
        if answer is not NotImplemented:
            yield against, answer

    def _variant(self, form: str, overload: Any, outs: list[str]) -> None:
        args, kwargs = self.sample
        if self.function is not self.kernel.op and not _fits(self.kernel.op, args, kwargs):
            return  # the sample is written for a function that calls the operator in its own way
        try:
            expected = self.kernel.op(*tree_map(_copy, args), **kwargs)
        except Exception:  # noqa: BLE001
            return
        if outs:
            results = [expected] if isinstance(expected, torch.Tensor) else list(expected)
            sample = (args, {**kwargs, **{name: torch.empty_like(r) for name, r in zip(outs, results, strict=True)}})
        elif not isinstance(expected, torch.Tensor) or not args or expected.shape != args[0].shape \
                or not torch.can_cast(expected.dtype, args[0].dtype):
            return
        else:
            sample = self.sample
        self._form(form, overload, overload.name(), sample)

    def _gradients(self) -> None:
        args, kwargs = self.sample
        before = _calls(self.device, self.kernel.op.name())
        try:
            got = _gradients_on(self.device, self.function, (args, kwargs))
        except Exception as error:  # noqa: BLE001
            self._row("gradient", "cpu", None, f"{type(error).__name__}: {error}")
            return
        if got is None or _calls(self.device, self.kernel.op.name()) == before:
            return
        decomposition = _decomposition(self.kernel)
        ways = [("decomposition", decomposition)] if decomposition is not None else []
        ways += [("cpu", self.function)] if not _is_new(self.kernel) or decomposition is not None else []
        for against, function in ways:
            device = self.device if against == "decomposition" else torch.device("cpu")
            try:
                expected = _gradients_on(device, function, (args, kwargs))
            except Exception:  # noqa: BLE001
                continue
            if expected is not None:
                self._row("gradient", against, *self._difference(got, expected, against))

    def _difference(self, got: Any, expected: Any, against: str) -> tuple[float | None, str]:
        results, wanted = tree_flatten(got)[0], tree_flatten(expected)[0]
        if len(results) != len(wanted):
            return None, f"{len(results)} results, not {len(wanted)}"
        largest: float | None = None
        for a, b in zip(results, wanted, strict=True):
            if not isinstance(b, torch.Tensor) or not isinstance(a, torch.Tensor):
                if a != b:
                    return None, f"{a!r}, not {b!r}"
                continue
            if (a.dtype, a.shape) != (b.dtype, b.shape):
                return None, f"{a.dtype} {list(a.shape)}, not {b.dtype} {list(b.shape)}"
            if self.strides and against == "cpu" and a.stride() != b.stride():
                return None, f"strides {a.stride()}, not {b.stride()}"
            off, problem = _distance(a.cpu(), b.cpu(), self.tolerance)
            largest = off if largest is None or off > largest else largest
            if problem:
                return largest, problem
        return largest, ""

    def _row(self, form: str, against: str, difference: float | None, problem: str) -> None:
        self.report.rows.append(Row(str(self.device), self.name, form, against, difference, problem))


# ---------------------------------------------------------------- samples


def _given(kernel: Any, samples: Iterable[Any]) -> Iterable[tuple[str, Any, Sample]]:
    for position, sample in enumerate(samples):
        if isinstance(sample, torch.Tensor):
            args, kwargs = (sample,), {}
        elif len(sample) == 2 and isinstance(sample[0], tuple) and isinstance(sample[1], dict):
            args, kwargs = sample
        else:
            args, kwargs = tuple(sample), {}
        yield f"sample {position}", kernel.op, (args, kwargs)


def _from_database(kernel: Any, dtypes: Iterable[torch.dtype]) -> Iterable[tuple[str, Any, Sample]]:
    base = kernel.op._schema.name.removeprefix("aten::")
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise ValueError(f"PyTorch's operator database cannot be imported ({error}): give samples=, or "
                         "`pip install expecttest numpy scipy`") from None
    entries = [op for op in op_db if base in (op.aten_name, op.name, op.name.rpartition(".")[2])]
    if not entries:
        raise ValueError(f"PyTorch's operator database has no {kernel.op.name()}: give samples=")
    for entry in entries:
        for dtype in dtypes:
            if dtype not in entry.dtypes:
                continue
            for position, sample in enumerate(entry.sample_inputs("cpu", dtype)):
                name = f"{entry.name} {str(dtype).removeprefix('torch.')} {position}"
                yield name, entry.op, ((sample.input, *sample.args), sample.kwargs)


# ---------------------------------------------------------------- computing


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _on(device: torch.device, function: Callable[..., Any], sample: Sample) -> Any:
    def move(value: Any) -> Any:
        # A copy, since in-place overloads write it. empty_strided and copy_() keep the layout.
        if isinstance(value, torch.Tensor):
            moved = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device) \
                if not _overlaps(value) else torch.empty_like(value, device=device)
            return moved.copy_(value.detach())
        return value

    args, kwargs = tree_map(move, sample)
    return function(*args, **kwargs)


def _overlaps(value: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True))


def _gradients_on(device: torch.device, function: Callable[..., Any], sample: Sample) -> Any:
    """The gradients of the floating-point tensors among the arguments, or None if no result has one."""

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        moved = value.detach().to(device)
        return moved.clone().requires_grad_(value.is_floating_point() or value.is_complex())

    args, kwargs = tree_map(move, sample)
    leaves = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor) and x.requires_grad]
    outputs = [x for x in tree_flatten(function(*args, **kwargs))[0] if isinstance(x, torch.Tensor) and x.requires_grad]
    if not leaves or not outputs:
        return None
    # Different weights, so that a transposed or summed gradient does not look right.
    weights = [torch.linspace(0.5, 1.5, x.numel(), dtype=torch.float64).reshape(x.shape).to(x.dtype).to(device)
               for x in outputs]
    return torch.autograd.grad(outputs, leaves, weights, allow_unused=True)


def _decomposition(kernel: Any) -> Callable[..., Any] | None:
    from torch_fl.ops import decompositions, new_operator

    if (new := new_operator.defined(kernel.op._schema.name)) is not None:
        return new.parts.get("decomposition")
    return decompositions.resolve(kernel.op.name())


def _is_new(kernel: Any) -> bool:
    from torch_fl.ops import new_operator

    return new_operator.defined(kernel.op._schema.name) is not None


def _fits(op: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    names = {a.name for a in op._schema.arguments}
    return len(args) <= len(names) and set(kwargs) <= names


def _overload(name: str) -> Any:
    base, _, overload = name.partition(".")
    namespace, _, function = base.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), function), overload or "default")


def _calls(device: torch.device, overload: str) -> int:
    from torch_fl import _C

    return sum(calls for index, name, tier, calls in _C.counts()
               if (index, name, tier) == (device.index, overload, "library"))


def _distance(a: torch.Tensor, b: torch.Tensor, tolerance: tuple[float | None, float | None]) -> tuple[float, str]:
    if not a.numel():
        return 0.0, ""
    if not (a.is_floating_point() or a.is_complex()):
        wrong = int((a != b).sum())
        return float(wrong > 0), f"{wrong} of {a.numel()} values differ" if wrong else ""
    rtol, atol = _TOLERANCES.get(a.dtype, (1e-4, 1e-5))
    rtol, atol = rtol if tolerance[0] is None else tolerance[0], atol if tolerance[1] is None else tolerance[1]
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.resolve_conj().to(wide), b.resolve_conj().to(wide)
    same = torch.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    off = (a - b).abs()
    off = off[torch.isfinite(off)]
    largest = float(off.max()) if off.numel() else 0.0
    wrong = int((~same).sum())
    return largest, f"{wrong} of {a.numel()} values differ (rtol {rtol:g}, atol {atol:g})" if wrong else ""
