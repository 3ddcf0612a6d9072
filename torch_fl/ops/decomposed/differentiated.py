"""Gradients of a composite forward, by autograd, for backward operators without a formula of their own here.

Decompositions run below autograd, whose dispatch keys are excluded there; this includes them again for one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor], wanted: Sequence[bool],
              grad_output: Tensor) -> list[Tensor | None]:  # fmt: skip
    """Return d function(*inputs) / d input, times grad_output, for the wanted inputs; None for the others."""
    include = torch._C._dispatch_tls_local_include_set()
    exclude = torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.AutogradPrivateUse1, torch._C.DispatchKey.ADInplaceOrView):
        exclude = exclude.remove(key)
    with torch._C._ForceDispatchKeyGuard(include, exclude), torch.enable_grad():
        leaves = [x.detach().requires_grad_(w) for x, w in zip(inputs, wanted, strict=True)]
        out = function(*leaves)
        asked = [x for x in leaves if x.requires_grad]
        found = iter(torch.autograd.grad(out, asked, grad_output, allow_unused=True) if out.requires_grad else ())
    return [_or_zeros(next(found, None), x) if x.requires_grad else None for x in leaves]


def _or_zeros(grad: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if grad is None else grad
