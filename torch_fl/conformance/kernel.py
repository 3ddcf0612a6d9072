"""Cases of kernels: one for each UniOp and type that the chip has, compared with the CPU through the ATen overload.

The CPU tier is off, so that what is compared is what the chip computed; a kernel may decline a sample (the host would
take the next tier), but not all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import torch_fl
from torch_fl import _uniop_table as table
from torch_fl.conformance.case import Case, Context, NotApplicable, expect
from torch_fl.conformance.sample import Make, Sample
from torch_fl.conformance.samples_dense import DENSE
from torch_fl.conformance.samples_elementwise import elementwise
from torch_fl.conformance.samples_index import INDEX

__all__ = ["kernel_cases", "samples"]

# UniOps whose results past the first (statistics) may be float32 where the computing type is a half one.
WIDE_STATISTICS = ("batch_norm", "layer_norm", "group_norm", "rms_norm", "attention")

# Relative and absolute tolerance by computing type; integers and bool must be equal.
TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 2e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
    torch.complex64: 4e-6,
    torch.complex128: 1e-10,
}
# Functions whose algorithms differ more than rounding does.
ROUGH = (
    "lgamma",
    "digamma",
    "zeta",
    "igamma",
    "igammac",
    "erfinv",
    "ndtri",
    "log_ndtr",
    "erfcx",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "tan",
    "pow",
    "pow_scalar",
    "logaddexp",
    "logaddexp2",
    "exp",
    "exp2",
    "expm1",
    "sinh",
    "cosh",
    "gelu_backward",
    "silu_backward",
    "mish_backward",
    "addcmul",
    "addcdiv",
    "logit",
    "logit_backward",
)


def kernel_cases(context: Context) -> list[Case]:
    """Return a case for each UniOp and computing type of the device's kernels."""
    outs: dict[tuple[str, str], list[str]] = {}
    for uniop, dtype, out in context.kernels:
        outs.setdefault((uniop, dtype), []).append(out)
    return [
        Case(
            f"kernel.{uniop}.{dtype}",
            f"{uniop} computes in {dtype} as PyTorch on the CPU",
            _checker(uniop, getattr(torch, dtype), tuple(getattr(torch, out) for out in found)),
        )
        for (uniop, dtype), found in outs.items()
    ]


def samples(uniop: str, dtype: torch.dtype, outs: tuple[torch.dtype, ...]) -> list[Sample]:
    """Return the calls that the suite makes of a UniOp in one type."""
    make = Make(dtype)
    if table.BY_NAME[uniop].category in ("unary", "binary", "ternary"):
        return elementwise(uniop, make, outs)
    found = DENSE.get(uniop) or INDEX.get(uniop)
    return found(make) if found else []


def _checker(uniop: str, dtype: torch.dtype, outs: tuple[torch.dtype, ...]) -> Callable[[Context], None]:
    def check(context: Context) -> None:
        ran = declined = 0
        calls = [sample for sample in samples(uniop, dtype, outs) if _known_to_cpu(sample)]
        if not calls:
            raise NotApplicable("PyTorch has no such call in this type, or its CPU cannot compute it")
        if not any(_is_lowered(overload) for overload in table.BY_NAME[uniop].overloads):
            raise NotApplicable("this version of Torch-FL does not ask chips for it")
        with torch_fl.routing.track() as routes, torch_fl.routing.no_cpu_fallback():
            for sample in calls:
                try:
                    found = sample.function(*_on(context.device, sample.operands))
                    torch.accelerator.synchronize(context.device)
                except NotImplementedError:
                    declined += 1
                    continue
                ran += 1
                _compare(uniop, dtype, sample, found)
        expect(ran, f"the kernel is there but took none of {declined} samples")
        expect(_reached(uniop, routes.native), f"no sample reached the kernel; native were {', '.join(routes.native)}")

    return check


def _is_lowered(overload: str) -> bool:
    """Tell whether this host has a lowering; some are registered under the name that PyTorch gives to plugins."""
    names = (f"aten::{overload}", f"aten::{overload}_overrideable")
    schemas = [name for name in names if hasattr(torch.ops.aten, name.removeprefix("aten::").partition(".")[0])]
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1") for name in schemas)


def _known_to_cpu(sample: Sample) -> bool:
    """Some types have no CPU kernel in PyTorch, so there is nothing to compare with."""
    if sample.expected is not None:
        return True
    try:
        sample.function(*_on(torch.device("cpu"), sample.operands))
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    return True


def _on(device: torch.device, operands: tuple[Any, ...]) -> list[Any]:
    """Copy operands with the strides that they have, so that a kernel sees what the sample means."""
    copies = []
    for x in operands:
        if isinstance(x, torch.Tensor):
            flat = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
            x = flat.to(device, copy=True).as_strided(x.shape, x.stride(), x.storage_offset())
        copies.append(x)
    return copies


def _compare(uniop: str, dtype: torch.dtype, sample: Sample, found: Any) -> None:
    expected = sample.expected() if sample.expected else sample.function(*_on(torch.device("cpu"), sample.operands))
    found = found if isinstance(found, (tuple, list)) else (found,)
    expected = expected if isinstance(expected, (tuple, list)) else (expected,)
    tolerance = TOLERANCE.get(dtype, 1e-6) * sample.rough * (16 if uniop in ROUGH else 1)
    if uniop == "hardsigmoid_backward":
        tolerance = max(tolerance, 1e-7)  # PyTorch's CPU divides by 6 in float32 whatever the type
    expect(len(found) == len(expected), f"{sample.label}: {len(found)} results in place of {len(expected)}")
    for number, (a, e) in enumerate(zip(found, expected, strict=True)):
        place = f"{sample.label}: result {number}" if len(expected) > 1 else sample.label
        a = a.cpu()
        expect(a.shape == e.shape, f"{place}: shape {tuple(a.shape)} in place of {tuple(e.shape)}")
        if a.dtype != e.dtype and number > 0 and uniop in WIDE_STATISTICS:
            a = a.to(e.dtype)
        expect(a.dtype == e.dtype, f"{place}: type {a.dtype} in place of {e.dtype}")
        if not e.is_floating_point() and not e.is_complex():
            expect(torch.equal(a, e), f"{place}: {int((a != e).sum())} of {e.numel()} elements differ")
            continue
        wide = torch.complex128 if e.is_complex() else torch.float64
        close = torch.isclose(a.to(wide), e.to(wide), tolerance, tolerance, equal_nan=True)
        if not close.all():
            where = (~close).nonzero()[0].tolist()
            value, right = a[tuple(where)].item(), e[tuple(where)].item()
            expect(
                False,
                f"{place}: {int((~close).sum())} of {e.numel()} elements differ by more than {tolerance:.1e}; "
                f"at {where} {value!r} in place of {right!r}",
            )


def _reached(uniop: str, native: dict[str, int]) -> bool:
    """Tell whether a call that lowers to the UniOp was counted as native, whatever its spelling."""
    names = {overload.partition(".")[0].strip("_") for overload in table.BY_NAME[uniop].overloads}
    names |= {f"{name}_overrideable" for name in names} | ({"copy"} if uniop == "copy" else set())
    return any(name.removeprefix("aten::").partition(".")[0].strip("_") in names for name in native)
