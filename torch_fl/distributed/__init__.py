"""torch.distributed on fl devices: the backend "flagos", registered when the device is.

    torch.distributed.init_process_group()            # or backend="flagos"

Until a communication library of the chips is loaded, collectives are staged: device tensors are copied to the host,
gloo runs the collective there, the results are copied back. The first group says so once. The C++ side is
csrc/bridge/process_group.cpp.
"""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["BACKEND"]

BACKEND = "flagos"
_log = logging.getLogger("torch_fl.distributed")
_told = False


def _install(device_name: str) -> None:
    """Register the backend for the device; called once by _autoload. Opens no chip and makes no connection."""
    import torch.distributed

    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        return
    # One backend object serves the CPU too, so that a group named "flagos" takes tensors of both kinds. PyTorch's
    # default for the CPU stays gloo: an entry that exists is not replaced. Groups without a name need one patch more:
    # torch_fl/integrations/unnamed_groups.py.
    torch.distributed.Backend.register_backend(BACKEND, _make_backend, extended_api=True, devices=[device_name, "cpu"])


def _make_backend(options: Any, backend_options: Any) -> Any:
    """Make the backend of one group: `options` is torch's _DistributedBackendOptions."""
    from torch.distributed import PrefixStore

    from torch_fl import _C, _env

    _tell_once(options.group_rank)
    # After an elastic restart the store still has the addresses of the processes that died.
    store = PrefixStore(f"{BACKEND}/{_env.external('TORCHELASTIC_RESTART_COUNT', '0')}", options.store)
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    return _C.make_process_group(store, options.group_rank, options.group_size, options.timeout, _make_gloo,
                                 options.group_id, ranks)


def _make_gloo(store: Any, rank: int, size: int, timeout: Any) -> Any:
    from torch.distributed import ProcessGroupGloo

    return ProcessGroupGloo(store, rank, size, timeout=timeout)


def _tell_once(rank: int) -> None:
    global _told
    if not _told:
        _told = True
        _log.log(logging.WARNING if rank == 0 else logging.INFO,
                 "collectives on fl devices are staged through host memory and run by gloo: correct, but slow. "
                 "No communication library for the chips is in use")

