"""New operators of users ("mylib::rms_norm") by PyTorch's own means: torch.library. Kernels for devices: kernel.py.

An operator stays defined until the process ends, as PyTorch's own do: its kernels come and go. Its parts
(decomposition, fake, gradient) are looked up at each call, so that a notebook's cell may be run again with others.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_fl._errors import RouteError, UnsupportedError

__all__ = ["NewOperator", "defined", "find_or_define"]

_PYTORCH = ("aten", "prim", "prims", "quantized", "inductor", "c10d", "_c10d_functional")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*::[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)?")
_defined: dict[str, NewOperator] = {}


class NewOperator:
    """An operator that torch_fl.kernel() has defined.

    Attributes:
        parts: decomposition, fake, backward, setup_context, vmap, where given.
    """

    def __init__(self, name: str, schema: str, mutates: bool) -> None:
        self.name, self.schema, self.mutable = name, schema, mutates
        self.parts: dict[str, Callable[..., Any]] = {}
        namespace, _, base = name.partition("::")
        self._library = torch.library.Library(namespace, "FRAGMENT")
        self._library.define(base + schema, tags=(torch.Tag.pt2_compliant_tag,))
        self._library.impl(base, self._elsewhere, "CompositeExplicitAutograd")
        torch.library.register_fake(name, self._fake, lib=self._library)
        if not mutates:
            torch.library.register_autograd(name, self._backward, setup_context=self._setup_context, lib=self._library)

    @property
    def overload(self) -> Any:
        """The operator in torch.ops."""
        namespace, _, base = self.name.partition("::")
        return getattr(getattr(torch.ops, namespace), base).default

    def give(self, parts: dict[str, Callable[..., Any] | None]) -> None:
        """Take the parts that are not None.

        Raises:
            RouteError: a gradient for an operator that writes its arguments, or half of one.
        """
        given = {name: part for name, part in parts.items() if part is not None}
        if self.mutable and ("backward" in given or "setup_context" in given):
            raise RouteError(f"{self.name} writes its arguments: PyTorch takes no gradient for such an operator. Make "
                             "it functional, or leave backward out")
        if "setup_context" in given and "backward" not in {**self.parts, **given}:
            raise RouteError(f"setup_context of {self.name} without backward")
        if "vmap" in given and "vmap" not in self.parts:
            torch.library.register_vmap(self.name, lambda *a, **k: self.parts["vmap"](*a, **k), lib=self._library)
        self.parts.update(given)

    def _elsewhere(self, *args: Any, **kwargs: Any) -> Any:
        """For every device without a kernel."""
        if (decomposition := self.parts.get("decomposition")) is not None:
            return decomposition(*args, **kwargs)
        from torch_fl.ops.kernel import kernels

        here = sorted({str(d) for k in kernels() if self.name in k.overloads for d in k.devices})
        tensors = (x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor))
        where = next((str(x.device) for x in tensors), "this device")
        raise UnsupportedError(f"{self.name} has no kernel on {where}, only on {', '.join(here) or 'no device'}: add "
                               "one with torch_fl.kernel(), or give decomposition=, which serves every device")

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        fake = self.parts.get("fake") or self.parts.get("decomposition")
        if fake is None:
            raise UnsupportedError(f"torch.compile needs to know the results of {self.name}: give torch_fl.kernel() "
                                   "fake= or decomposition=")
        return fake(*args, **kwargs)

    # ------------------------------------------------------------ gradient

    def _setup_context(self, ctx: Any, inputs: tuple, output: Any, keyword_only_inputs: dict | None = None) -> None:
        if "backward" in self.parts:
            if (own := self.parts.get("setup_context")) is not None:
                keywords = {"keyword_only_inputs": keyword_only_inputs} if keyword_only_inputs else {}
                own(ctx, inputs, output, **keywords)
        elif "decomposition" in self.parts:
            leaves, ctx.spec = tree_flatten((inputs, keyword_only_inputs or {}))
            ctx.save_for_backward(*(x for x in leaves if isinstance(x, torch.Tensor)))
            ctx.others = [None if isinstance(x, torch.Tensor) else (x,) for x in leaves]

    def _backward(self, ctx: Any, *grads: Any) -> Any:
        if (own := self.parts.get("backward")) is not None:
            return own(ctx, *grads)
        if "decomposition" not in self.parts:
            raise UnsupportedError(f"{self.name} has no gradient: give torch_fl.kernel() backward=, or decomposition=, "
                                   "whose gradient it then has")
        return self._gradient_of_decomposition(ctx, grads)

    def _gradient_of_decomposition(self, ctx: Any, grads: tuple) -> Any:
        twice = torch.is_grad_enabled()  # the gradient will be differentiated, too
        saved = iter(ctx.saved_tensors)
        with torch.enable_grad():
            leaves = [_leaf(next(saved), twice) if other is None else other[0] for other in ctx.others]
            inputs, keywords = tree_unflatten(leaves, ctx.spec)
            outputs = tree_flatten(self.parts["decomposition"](*inputs, **keywords))[0]
        pairs = [(out, grad) for out, grad in zip(outputs, tree_flatten(grads)[0], strict=True)
                 if grad is not None and isinstance(out, torch.Tensor) and out.requires_grad]
        wanted = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
        found: Any = (None,) * len(wanted)
        if pairs and wanted:
            found = torch.autograd.grad([out for out, _ in pairs], wanted, [grad for _, grad in pairs],
                                        allow_unused=True, create_graph=twice)
        found = iter(found)
        leaves = [next(found) if isinstance(x, torch.Tensor) and x.requires_grad else None for x in leaves]
        result = tree_unflatten(leaves, ctx.spec)[0]
        return result[0] if len(result) == 1 else tuple(result)


def _leaf(saved: torch.Tensor, twice: bool) -> torch.Tensor:
    if not (saved.is_floating_point() or saved.is_complex()):
        return saved
    if twice:
        return saved.view_as(saved) if saved.requires_grad else saved
    return saved.detach().requires_grad_()


# ---------------------------------------------------------------- finding


def defined(name: str) -> NewOperator | None:
    """Return the new operator of this name, or None."""
    return _defined.get(name)


def find_or_define(op: Any, function: Callable[..., Any], schema: str | None, mutates: tuple[str, ...],
                   parts: dict[str, Callable[..., Any] | None]) -> Any:
    """Return the overload that `op` means; define it if it is a new name.

    Raises:
        ValueError: it means nothing, more than one overload, or has no schema.
        RouteError: parts of a new operator are given for one that PyTorch or another library has defined.
    """
    name = _name_of(op)
    base, _, overload = name.partition(".")
    namespace, _, function_name = base.partition("::")
    if (known := _defined.get(base)) is None and (packet := _packet(namespace, function_name)) is not None:
        given = [part for part, value in {**parts, "schema": schema, "mutates": mutates or None}.items()
                 if value is not None]
        if given:
            raise RouteError(f"{base} is there already, with its own schema and gradient: {', '.join(given)} "
                             f"{'is' if len(given) == 1 else 'are'} for new operators only")
        return _overload(packet, base, overload)
    if known is None:
        if namespace in _PYTORCH:
            close = difflib.get_close_matches(function_name, dir(getattr(torch.ops, namespace)), n=3)
            hint = f"; did you mean {' or '.join(f'{namespace}::{c}' for c in close)}?" if close else ""
            raise ValueError(f"PyTorch has no operator {name}{hint}")
        if overload:
            raise ValueError(f"{name}: a new operator has no overloads; name it {base}")
    wanted = _schema(base, function, schema, mutates) if known is None or schema is not None else known.schema
    if known is None:
        known = NewOperator(base, wanted, "!" in wanted)
        _defined[base] = known
    elif wanted.replace(" ", "") != known.schema.replace(" ", ""):
        raise ValueError(f"{base} is defined with the schema {known.schema}, which cannot change in this process to "
                         f"{wanted}; take another name")
    known.give(parts)
    return known.overload


def _name_of(op: Any) -> str:
    op = getattr(op, "_opoverload", op)  # what torch.library.custom_op makes
    if isinstance(op, torch._ops.OpOverload):
        return f"{op._schema.name}.{op._overloadname}"
    if isinstance(op, torch._ops.OpOverloadPacket):
        return op._qualified_op_name
    if not isinstance(op, str):
        raise TypeError(f"an operator is a name or one of torch.ops, got {type(op).__name__}")
    name = op if "::" in op else f"aten::{op}"
    if not _NAME.fullmatch(name):
        raise ValueError(f"{op!r} is not an operator's name, such as aten::add.Tensor or mylib::rms_norm")
    return name


def _packet(namespace: str, name: str) -> Any:
    return getattr(getattr(torch.ops, namespace), name, None)


def _overload(packet: Any, base: str, wanted: str) -> Any:
    names = [n for n in packet.overloads() if _dispatched(getattr(packet, n))]
    if wanted:
        if wanted not in names:
            raise ValueError(f"{base} has no overload {wanted}; it has {', '.join(names)}")
        return getattr(packet, wanted)
    if "default" in names:
        return packet.default
    functional = [n for n in names if not getattr(packet, n)._schema.is_mutable]
    if len(functional) == 1:
        return getattr(packet, functional[0])
    raise ValueError(f"{base} has several overloads, and a kernel serves one: name it, as in {base}.{names[0]}; there "
                     f"are {', '.join(names)}")


def _dispatched(overload: Any) -> bool:
    """TorchScript has overloads of its own, for Python's numbers, which PyTorch's dispatcher does not know."""
    try:
        torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "PrivateUse1")
    except RuntimeError:
        return False
    return True


def _schema(name: str, function: Callable[..., Any], given: str | None, mutates: tuple[str, ...]) -> str:
    try:
        if given is None:
            return torch.library.infer_schema(function, mutates_args=mutates)
        text = given[given.index("("):]
        torch._C.parse_schema(name + text)
        return text
    except (ValueError, RuntimeError) as error:
        what = f"the schema {given!r} of {name} is not valid" if given is not None else (
            f"no schema can be made for {name} from {getattr(function, '__qualname__', function)}")
        raise ValueError(f"{what}: {error}. Annotate the function, def f(x: Tensor, eps: float) -> Tensor, or give "
                         'schema="(Tensor x, float eps) -> Tensor"') from None
