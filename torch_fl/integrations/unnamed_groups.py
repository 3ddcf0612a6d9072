"""Makes `init_process_group()` without a backend name work for our device.

torch takes our backend for the device, but then declares gloo the default although the group has none, and the group
has no backend for CPU tensors (distributed_c10d._new_process_group_helper in torch 2.13). Every new group passes
_register_process_group with all its backends in place: there the group is completed.
"""

from __future__ import annotations

import functools
from typing import Any


def install() -> str | None:
    """Wrap the function; return why not if this torch has none."""
    import torch.distributed

    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        return "this torch has no gloo"
    from torch.distributed import distributed_c10d

    from torch_fl import _C

    register = getattr(distributed_c10d, "_register_process_group", None)
    if register is None:
        return "this torch has no _register_process_group: name the backend, init_process_group('flagos')"

    @functools.wraps(register)
    def complete_and_register(name: Any, group: Any) -> None:
        _C.complete_group(group)
        register(name, group)

    distributed_c10d._register_process_group = complete_and_register
    return None
