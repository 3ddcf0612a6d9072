"""out= overloads of structured operators, which the device is asked for even if the user called the functional one.

PyTorch's functional form of a structured operator allocates the results and calls its out= form. So a kernel library
that has the functional form must be asked for it here, and a "decomposition" of the out= form into the functional one
would come back to the out= form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_fl.ops import decompositions, libraries

__all__ = ["library", "only_asks_itself"]


def library(name: str) -> Callable[..., Any] | None:
    """Return a library's functional overload as the out= overload `name`, or None."""
    if not libraries.providers():
        return None
    functional, outs = _functional(name)
    found = libraries.resolve(functional.name()) if functional is not None else None
    return decompositions._out_variant(found, outs) if found is not None else None


def only_asks_itself(name: str) -> bool:
    """Tell whether the functional form of the out= overload `name` has no way but through `name`."""
    functional, _ = _functional(name)
    if functional is None or decompositions.resolve(functional.name()) is not None:
        return False
    return (_has(functional, "CompositeExplicitAutogradNonFunctional")
            and not decompositions.has_wrapper(functional.name()))  # fmt: skip


def _functional(name: str) -> tuple[Any, list[str]]:
    if (overload := decompositions._overload(name)) is None:
        return None, []
    outs = [argument.name for argument in overload._schema.arguments if argument.is_out]
    return (decompositions._functional_of(overload, set(outs)) if outs else None), outs


def _has(overload: Any, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key)
