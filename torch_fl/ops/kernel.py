"""torch_fl.kernel(): a kernel in Python for one operator on some devices.

    @torch_fl.kernel("aten::gelu", device="fl:1")
    def my_gelu(x, *, approximate="none"):
        return x * torch.special.ndtr(x) if approximate == "none" else NotImplemented

It comes before the chip's own kernels and is counted as the library tier. Other devices keep what they have: a switch
in PyTorch's dispatcher (csrc/bridge/user_kernel.cpp) asks the device first. Guide: docs/python-kernels.md.
"""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

from torch_fl import _C
from torch_fl._errors import RouteError
from torch_fl.ops import decompositions, new_operator
from torch_fl.ops.result_check import Checked

__all__ = ["Kernel", "active", "kernel", "kernels"]

Device = str | torch.device
_OWN, _IN_PLACE, _OUT = range(3)
_lock = threading.RLock()
_groups = itertools.count(1)
# (overload, device index) -> what was registered there: own kernels after derived ones, the newest last and in use.
_stacks: dict[tuple[str, int], list[_Entry]] = {}


class _Entry:
    """A kernel's place at one overload."""

    def __init__(self, owner: Kernel, overload: Any, form: int, number: int) -> None:
        self.owner, self.overload, self.form, self.number = owner, overload, form, number
        self.name: str = overload.name()

    @property
    def derived(self) -> bool:
        return self.form != _OWN


class Kernel:
    """A kernel that is there until `remove()`, or until the end of a `with`. Calling it calls the operator.

    Attributes:
        op: the operator's overload, as in torch.ops.
        function: what computes it.
        devices: where it is.
        overloads: the operator's overloads that it serves: its own and those that follow it.
    """

    def __init__(self, op: Any, function: Callable[..., Any], devices: list[torch.device], check_results: bool) -> None:
        self.op, self.function, self.devices = op, function, tuple(devices)
        self.check_results = check_results
        self._group = next(_groups)
        self._entries: list[_Entry] = []

    @property
    def overloads(self) -> tuple[str, ...]:
        """The names of the overloads, as in "aten::gelu_"."""
        return tuple(entry.name for entry in self._entries)

    @property
    def where(self) -> str:
        """The function's name, file and line."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        name = getattr(self.function, "__qualname__", repr(self.function))
        return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.op(*args, **kwargs)

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator as if this kernel were not there: the chip's own kernel, or the next tier."""
        with _C.UserKernelOriginal(self._group << 2):
            return self.op(*args, **kwargs)

    def remove(self) -> None:
        """Take the kernel away; what it replaced is back. A second time does nothing."""
        with _lock:
            for entry in self._entries:
                for device in self.devices:
                    stack = _stacks.get((entry.name, device.index), [])
                    if entry in stack:
                        stack.remove(entry)
                        _use_top(entry, device.index)
                _C.forget_user_kernel(entry.number)
            self._entries = []

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def check(self, samples: Iterable[Any] | None = None, **options: Any) -> Any:
        """Compare with the decomposition, the chip's own kernel and the CPU; see torch_fl.ops.kernel_check.check()."""
        from torch_fl.ops import kernel_check

        return kernel_check.check(self, samples, **options)

    def __repr__(self) -> str:
        where = ", ".join(map(str, self.devices)) if self._entries else "nothing (removed)"
        return f"<torch_fl.kernel {self.op.name()} on {where}: {self.where}>"


def kernel(
    op: Any,
    function: Callable[..., Any] | None = None,
    *,
    device: Device | Iterable[Device] | None = None,
    schema: str | None = None,
    decomposition: Callable[..., Any] | None = None,
    fake: Callable[..., Any] | None = None,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
    vmap: Callable[..., Any] | None = None,
    mutates: Iterable[str] = (),
    variants: bool = True,
    replace: bool = False,
    check_results: bool = True,
) -> Any:
    """Add a kernel in Python for an operator, or replace the chip's, on some devices; as a function or a decorator.

    The function gets the operator's arguments by its schema, positional and keyword-only, with tensors on the device,
    which is current; it queues its work on the device's current stream. It returns the results, new tensors, or
    NotImplemented to leave this call to the chip's own kernel and the tiers after it. Within it, the operator itself is
    what it was before. Autograd is above it: for PyTorch's operators the gradient is PyTorch's formula.

    Args:
        op: "aten::gelu", "aten::add.Tensor", an overload (torch.ops.aten.gelu.default), or a new name
            ("mylib::rms_norm"), which makes a new operator.
        function: the kernel; without it a decorator is returned.
        device: "fl:1", "ninguang:1"; without an index ("fl", "ninguang") all devices of that name; a torch.device;
            several of these. Default: all fl devices.
        schema: of a new operator, "(Tensor x, float eps) -> Tensor"; default: from the function's annotations, as
            torch.library.infer_schema does.
        decomposition: a new operator as other operators. Every device without a kernel uses it, and, where they are
            not given, so do `fake` and the gradient.
        fake: of a new operator: shapes, types and strides of its results, for torch.compile.
        backward: of a new operator, with `setup_context`: as in torch.library.register_autograd.
        setup_context: what `backward` needs from the forward.
        vmap: of a new operator: as in torch.library.register_vmap.
        mutates: names of the arguments that a new operator writes.
        variants: also serve the in-place and out= overloads of a functional operator, by copying the kernel's result
            into their target.
        replace: take the place of a kernel that is there; without it that is an error.
        check_results: compare type, shape and device of each result with what the operator promises.

    Returns:
        A Kernel, or the decorator that makes one of a function.

    Raises:
        ValueError: there is no such operator or device, or no schema can be made.
        RouteError: a kernel is there already, or the operator cannot be replaced.
    """

    def add(function: Callable[..., Any]) -> Kernel:
        if not callable(function):
            raise TypeError(f"a kernel is a function, got {type(function).__name__}")
        parts = {"decomposition": decomposition, "fake": fake, "backward": backward, "setup_context": setup_context,
                 "vmap": vmap}
        devices = _devices(device)
        with _lock:
            overload = new_operator.find_or_define(op, function, schema, tuple(mutates), parts)
            _refuse_views(overload)
            made = Kernel(overload, function, devices, check_results)
            try:
                _install(made, variants, replace)
            except BaseException:
                made.remove()
                raise
        return made

    return add if function is None else add(function)


def active(overload: str, device: int) -> Kernel | None:
    """Return the kernel that serves an overload ("aten::gelu_") on a device, or None."""
    stack = _stacks.get((overload, device))
    return stack[-1].owner if stack else None


def kernels() -> list[Kernel]:
    """Return all kernels that are there, in the order in which they were added."""
    with _lock:
        found = {entry.owner for stack in _stacks.values() for entry in stack}
    return sorted(found, key=lambda kernel: kernel._group)


def _install(made: Kernel, variants: bool, replace: bool) -> None:
    for device in made.devices:
        stack = _stacks.get((made.op.name(), device.index), [])
        if stack and not stack[-1].derived and not replace:
            raise RouteError(f"{made.op.name()} on {device} has a kernel already, {stack[-1].owner.where}: remove() "
                             "it, or give replace=True")
    checked = Checked(made)
    made._entries.append(_entry(made, made.op, _OWN, checked))
    for overload, form in _variants(made.op) if variants else ():
        outs = [argument.name for argument in overload._schema.arguments if argument.is_out]
        follow = decompositions._out_variant(checked, outs) if outs else decompositions._inplace_variant(checked)
        made._entries.append(_entry(made, overload, form, follow))
    for entry in made._entries:
        for device in made.devices:
            stack = _stacks.setdefault((entry.name, device.index), [])
            stack.append(entry)
            stack.sort(key=lambda entry: not entry.derived)  # stable: explicit ones stay last
            _use_top(entry, device.index)


def _entry(made: Kernel, overload: Any, form: int, function: Callable[..., Any]) -> _Entry:
    number = (made._group << 2) + form
    _C.add_user_kernel(number, function)
    return _Entry(made, overload, form, number)


def _use_top(entry: _Entry, device: int) -> None:
    stack = _stacks[entry.name, device]
    base, _, overload = entry.name.partition(".")
    _C.set_user_kernel(base, overload, device, stack[-1].number if stack else 0)
    if not stack:
        del _stacks[entry.name, device]


def _variants(functional: Any) -> list[tuple[Any, int]]:
    """The in-place and out= overloads of a functional one."""
    if functional._schema.is_mutable:
        return []
    namespace, _, name = functional._schema.name.partition("::")
    found: dict[int, Any] = {}
    for packet, form in ((name, _OUT), (f"{name}_", _IN_PLACE)):
        packet = getattr(getattr(torch.ops, namespace), packet, None)
        for candidate in packet.overloads() if packet is not None else ():
            overload = getattr(packet, candidate)
            written = [a for a in overload._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
            outs = {a.name for a in written if a.is_out}
            fits = len(outs) == len(written) if form == _OUT else [a.name for a in written] == ["self"]
            if written and fits and decompositions._functional_of(overload, outs) is functional:
                found.setdefault(form, overload)
    return [(overload, form) for form, overload in found.items()]


def _refuse_views(overload: Any) -> None:
    returns = [r.alias_info for r in overload._schema.returns if r.alias_info is not None]
    if any(not alias.is_write for alias in returns):
        raise RouteError(f"{overload.name()} returns a view of its argument and moves no data: no kernel can replace "
                         "it")


def _devices(wanted: Device | Iterable[Device] | None) -> list[torch.device]:
    own = torch._C._get_privateuse1_backend_name()
    if wanted is None:
        wanted = own
    names = [wanted] if isinstance(wanted, (str, torch.device)) else list(wanted)
    if not names:
        raise ValueError("no device is given")
    found = [device for name in names for device in _devices_of(name, own)]
    return list(dict.fromkeys(found))


def _devices_of(wanted: Any, own: str) -> list[torch.device]:
    from torch_fl.device._registration import _indices_of, device

    if isinstance(wanted, torch.device):
        wanted = str(wanted)
    if not isinstance(wanted, str):
        raise TypeError(f"a device is a name or a torch.device, got {type(wanted).__name__}")
    name, _, index = wanted.partition(":")
    count = _C.device_count()
    if index:
        try:
            found = [torch.device(own, device(wanted).index)]
        except RuntimeError as error:
            raise ValueError(f"{wanted!r} is not a device of Torch-FL: {error}") from None
        if found[0].index < count:
            return found
    elif indices := list(range(count)) if name == own else _indices_of(name):
        return [torch.device(own, i) for i in indices]
    known = sorted({f"{own}:{i}" for i in range(count)} | {_C.device_info(i)["chip"] for i in range(count)})
    raise ValueError(f"{wanted!r} is not a device of Torch-FL here; there are {', '.join(known) or 'none'}")
