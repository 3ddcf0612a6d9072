"""The decomposition tier in Python: an overload as other operators, which find routes of their own.

Comes after ATen's composite kernels, which need no help here. Sources, in this order: our own decompositions, PyTorch's
(torch._decomp), and, for out= and in-place overloads, the functional overload. Nothing is imported before it is needed.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from torch_fl import _C

_registered: dict[str, Callable[..., Any]] = {}


def register(*names: str, last_resort: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a decomposition of overloads ("aten::glu"). It may raise NotImplementedError to decline a call.

    A last resort is right but slower than the CPU tier with its copies (many small steps, each depending on the one
    before): it declines while the CPU tier may be used.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            _registered[name] = _where_no_cpu(function) if last_resort else function
        return function

    return decorate


def _where_no_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented if cpu_allowed() else function(*args, **kwargs)

    run.last_resort = True
    return run


def is_last_resort(function: Callable[..., Any]) -> bool:
    """Tell whether a decomposition declines while the CPU tier may be used."""
    return getattr(function, "last_resort", False)


def cpu_allowed() -> bool:
    """Tell whether this thread's operators may run on the CPU."""
    return _C.cpu_allowed()


def resolve(name: str) -> Callable[..., Any] | None:
    """Return the callable that decomposes the overload `name` ("aten::add.Tensor"), or None."""
    if not name.startswith("aten::"):
        return None
    from torch_fl.ops import own_decompositions  # noqa: F401 - registers ours

    if name in _registered:
        return _registered[name]
    overload = _overload(name)
    if overload is None:
        return None
    # out= and in-place overloads first through the functional one: PyTorch's table names functions for some of them
    # that take no out=.
    if (function := _through_functional(overload)) is not None:
        return function
    return _from_torch(name, overload)


def _is_primitive(overload: Any) -> bool:
    """Tell whether PyTorch's decomposition ends in a prim, which would only call this very operator again."""
    import torch._prims  # noqa: F401 - defines torch.ops.prims

    return hasattr(torch.ops.prims, overload._schema.name.removeprefix("aten::").removesuffix("_"))


def from_torch(name: str) -> Callable[..., Any] | None:
    """PyTorch's decomposition of an overload that we also have one for, imported when it is called; or None."""
    overload = _overload(name)
    if overload is None:
        return None

    def run(*args: Any, **kwargs: Any) -> Any:
        function = _from_torch(name, overload)
        return NotImplemented if function is None else function(*args, **kwargs)

    return run


def _from_torch(name: str, overload: Any) -> Callable[..., Any] | None:
    if _is_primitive(overload):
        return None
    from torch._decomp import decomposition_table

    return decomposition_table.get(overload)


def has_wrapper(name: str) -> bool:
    """Tell whether the bridge lowers the overload itself; a check of its operands alone does not count."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1") and not _C.only_checked(name)


def _functional_implementation(functional: Any) -> Callable[..., Any]:
    """The functional overload's decomposition, if any: a structured overload would only ask for its out= again."""
    name = functional.name()
    own = _registered.get(name)
    if not has_wrapper(name):
        return own or _from_torch(name, functional) or functional
    if own is None:
        return functional

    def run(*args: Any, **kwargs: Any) -> Any:
        result = own(*args, **kwargs)
        return functional(*args, **kwargs) if result is NotImplemented else result

    return run


def _overload(name: str) -> Any:
    base, _, overload = name.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, overload or "default", None) if packet is not None else None


def _through_functional(overload: Any) -> Callable[..., Any] | None:
    """out= and in-place overloads as the functional one and a copy into the target."""
    schema = overload._schema
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if not written or schema.is_mutable is False:
        return None
    functional = _functional_of(overload, {a.name for a in written if a.is_out})
    if functional is None:
        return None
    if all(a.is_out for a in written):
        return _out_variant(_functional_implementation(functional), [a.name for a in written])
    if len(written) == 1 and written[0].name == "self" and schema.name.endswith("_"):
        return _inplace_variant(_functional_implementation(functional))
    return None


def _functional_of(overload: Any, out_names: set[str]) -> Any:
    """Return the overload with the same arguments that writes none of them, or None."""
    name = overload._schema.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, name.rstrip("_") if name.endswith("_") and not name.endswith("__") else name, None)
    if packet is None:
        return None
    wanted = [(a.name, str(a.type)) for a in overload._schema.arguments if a.name not in out_names]
    for candidate in packet.overloads():
        found = getattr(packet, candidate)
        schema = found._schema
        if schema.is_mutable or any(a.alias_info is not None for a in (*schema.arguments, *schema.returns)):
            continue
        if [(a.name, str(a.type)) for a in schema.arguments] == wanted:
            return found
    return None


def _out_variant(functional: Any, names: list[str]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        outs = [kwargs.pop(name) for name in names]
        results = functional(*args, **kwargs)
        if results is NotImplemented:
            return NotImplemented
        single = isinstance(results, torch.Tensor)
        for out, result in zip(outs, (results,) if single else results, strict=True):
            if not torch.can_cast(result.dtype, out.dtype):
                raise RuntimeError(_cannot_cast(result, out))
            resize_output(out, result.shape)
            out.copy_(result)
        return outs[0] if single else tuple(outs)

    run.last_resort = is_last_resort(functional)
    return run


def resize_output(out: torch.Tensor, shape: torch.Size) -> None:
    """Give an out= tensor the result's shape, with PyTorch's warning if that throws elements away."""
    if out.shape == shape:
        return
    if out.numel():
        warnings.warn(
            "An output with one or more elements was resized since it had shape "
            f"{list(out.shape)}, which does not match "
            f"the required output shape {list(shape)}. This behavior is deprecated, and in a future PyTorch release "
            "outputs will not be resized unless they have zero elements.",
            stacklevel=2,
        )
    out.resize_(shape)


def _inplace_variant(functional: Any) -> Callable[..., Any]:
    def run(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        result = functional(self, *args, **kwargs)
        if result is NotImplemented:
            return NotImplemented
        if result.shape != self.shape:
            shapes = f"{list(self.shape)} doesn't match the broadcast shape {list(result.shape)}"
            raise RuntimeError(f"output with shape {shapes}")
        if not torch.can_cast(result.dtype, self.dtype):
            raise RuntimeError(_cannot_cast(result, self))
        return self.copy_(result)

    run.last_resort = is_last_resort(functional)
    return run


_TYPE_NAMES = {
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16",
    torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
    torch.bool: "Bool", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
}  # fmt: skip


def _cannot_cast(result: torch.Tensor, target: torch.Tensor) -> str:
    names = [_TYPE_NAMES.get(t.dtype, str(t.dtype)) for t in (result, target)]
    return f"result type {names[0]} can't be cast to the desired output type {names[1]}"
