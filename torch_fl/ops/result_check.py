"""What a user's kernel returned, against what its operator promises: number, type, shape and device of the results.

What is promised comes from the operator on meta tensors, asked once for each form of arguments and remembered.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from torch_fl import _C
from torch_fl._errors import RouteError

__all__ = ["Checked"]

COPIES = ("aten::_copy_from", "aten::_copy_from_and_resize", "aten::copy", "aten::copy_")  # between devices, too
MOST_FORMS = 1024  # of arguments that are remembered for a kernel
Promise = tuple[tuple[torch.Size, torch.dtype] | None, ...] | None


class Checked:
    """A kernel's function; what it returns is checked before PyTorch gets it."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._function = kernel.function
        arguments = kernel.op._schema.arguments
        self._names = [a.name for a in arguments]
        self._written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
        self._copies = kernel.op._schema.name in COPIES
        self._promises: dict[Any, Promise] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._copies:
            _on_one_device((*args, *kwargs.values()), _here())
        try:
            result = self._function(*args, **kwargs)
        except Exception as error:
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"in kernel {self._kernel.where} for {self._kernel.op.name()}")
            raise
        if result is NotImplemented:
            return result
        if self._written:
            return self._written_arguments(result, args, kwargs)
        if self._kernel.check_results:
            self._check(result, args, kwargs)
        return result

    def _written_arguments(self, result: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """An operator that writes its arguments returns them; the kernel may return nothing."""
        schema = self._kernel.op._schema
        if not schema.returns:
            if result is not None:
                raise self._wrong(f"returned {_described(result)}, and the operator returns nothing")
            return None
        given = dict(zip(self._names, args, strict=False)) | kwargs
        written = [given[name] for name in self._written]
        if any(r.alias_info is None for r in schema.returns):  # it has results of its own, too
            return result
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        if result is not None and any(a is not b for a, b in zip(results, written, strict=False)):
            raise self._wrong(f"returned {_described(result)}; it writes {', '.join(self._written)} and returns just "
                              "that, or None")
        return written[0] if len(schema.returns) == 1 else tuple(written)

    def _check(self, result: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        returns = self._kernel.op._schema.returns
        results = (result,) if len(returns) == 1 else result
        if not isinstance(results, (tuple, list)) or len(results) != len(returns):
            raise self._wrong(f"returned {_described(result)}; the operator has {len(returns)} results")
        operands: list[torch.Tensor] = []
        form = (_form(args, operands), *((name, _form(x, operands)) for name, x in kwargs.items()))
        # The operands' device is current; a factory may have been asked for another one.
        asked = kwargs.get("device")
        here = _here()
        device = here if asked is None or asked.type == here.type else asked
        promise = self._promise(form, args, kwargs)
        for position, (value, declared) in enumerate(zip(results, returns, strict=True)):
            which = f"result {position}" if len(returns) > 1 else "the result"
            self._check_one(which, value, str(declared.type), promise[position] if promise else None, device, operands)

    def _check_one(self, which: str, value: Any, declared: str, promised: Any, device: torch.device,
                   operands: list[torch.Tensor]) -> None:
        if declared != "Tensor":
            return
        if not isinstance(value, torch.Tensor):
            raise self._wrong(f"{which} is {_described(value)}, and the operator returns a tensor")
        if value.device != device:
            raise self._wrong(f"{which} is on {value.device}, and the call is for {device}")
        if promised is not None and promised != (value.shape, value.dtype):
            shape, dtype = promised
            raise self._wrong(f"{which} is {_described(value)}, and the operator promises {dtype} {list(shape)}")
        if any(torch._C._is_alias_of(value, x) for x in operands):
            raise self._wrong(f"{which} shares memory with an operand, and the operator promises a new tensor: clone() "
                              "it")

    def _promise(self, form: Any, args: tuple, kwargs: dict[str, Any]) -> Promise:
        try:
            if form in self._promises:
                return self._promises[form]
        except TypeError:  # something that has no hash
            return self._ask(args, kwargs)
        if len(self._promises) >= MOST_FORMS:
            self._promises.clear()
        self._promises[form] = promise = self._ask(args, kwargs)
        return promise

    def _ask(self, args: tuple, kwargs: dict[str, Any]) -> Promise:
        try:
            promised = self._kernel.op(*tree_map(_meta, args), **tree_map(_meta, kwargs))
        except Exception:  # noqa: BLE001 - no meta kernel, or results that depend on values: nothing is promised
            return None
        results = (promised,) if len(self._kernel.op._schema.returns) == 1 else promised
        return tuple((x.shape, x.dtype) if isinstance(x, torch.Tensor) else None for x in results)

    def _wrong(self, what: str) -> RouteError:
        return RouteError(f"kernel {self._kernel.where} for {self._kernel.op.name()}: {what}")


def _here() -> torch.device:
    """The device of the call: it is current."""
    return torch.device(torch._C._get_privateuse1_backend_name(), _C.current_device())


def _on_one_device(values: Any, here: torch.device) -> None:
    """A kernel must not get operands of another chip: it may work on their addresses."""
    for value in values:
        if isinstance(value, (tuple, list)):
            _on_one_device(value, here)
        elif isinstance(value, torch.Tensor) and value.device.type == here.type and value.device != here:
            raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices, "
                               f"{here} and {value.device}!")


def _form(value: Any, operands: list[torch.Tensor]) -> Any:
    """What a promise may depend on; collects the tensors."""
    if isinstance(value, torch.Tensor):
        operands.append(value)
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (tuple, list)):
        return tuple(_form(x, operands) for x in value)
    return type(value), value


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, torch.device):
        return torch.device("meta")
    return None if isinstance(value, torch.Generator) else value


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)} on {value.device}"
    return f"a {type(value).__name__}"
