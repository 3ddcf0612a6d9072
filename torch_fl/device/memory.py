"""Memory of the devices and pinned memory of the host: statistics, caches, snapshots. Signatures follow torch.cuda's.

`torch.fl.memory` is this module. docs/memory.md lists what torch.cuda.memory has and this has not, and why. The history
(`_record_memory_history`, `_snapshot`, …) is in _memory_history.py.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from torch_fl import _C
from torch_fl.device._context import _index, is_initialized
from torch_fl.device._memory_history import (
    _allocation_traceback as _allocation_traceback,
)
from torch_fl.device._memory_history import (
    _attach_out_of_memory_observer as _attach_out_of_memory_observer,
)
from torch_fl.device._memory_history import (
    _dump_snapshot as _dump_snapshot,
)
from torch_fl.device._memory_history import (
    _get_memory_metadata as _get_memory_metadata,
)
from torch_fl.device._memory_history import (
    _record_memory_history as _record_memory_history,
)
from torch_fl.device._memory_history import (
    _save_memory_usage as _save_memory_usage,
)
from torch_fl.device._memory_history import (
    _save_segment_usage as _save_segment_usage,
)
from torch_fl.device._memory_history import (
    _set_memory_metadata as _set_memory_metadata,
)
from torch_fl.device._memory_history import (
    _snapshot as _snapshot,
)
from torch_fl.device._memory_history import memory_snapshot
from torch_fl.device._memory_summary import memory_summary

__all__ = [
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "empty_cache",
    "get_allocator_backend",
    "host_memory_empty_cache",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
]


# ---------------------------------------------------------------- caches


def empty_cache() -> None:
    """Give cached, unused memory of all devices back; see host_memory_empty_cache() for the host's."""
    torch._C._accelerator_emptyCache()


def host_memory_empty_cache() -> None:
    """Give cached, unused pinned host memory back; the same as torch.accelerator.empty_host_cache()."""
    _C.host_empty_cache()


# ---------------------------------------------------------------- statistics


def _flat(nested: dict[str, Any]) -> OrderedDict[str, Any]:
    flat: dict[str, Any] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                add(f"{prefix}.{key}" if prefix else key, item)
        else:
            flat[prefix] = value

    add("", nested)
    return OrderedDict(sorted(flat.items()))


def memory_stats(device: Any = None) -> OrderedDict[str, Any]:
    """Return the allocator's statistics, in bytes and counts.

    The keys are torch.cuda.memory_stats()': "allocated_bytes.all.current", with {all, large_pool, small_pool} and
    {current, peak, allocated, freed}. Empty before chips are opened.
    """
    return _flat(memory_stats_as_nested_dict(device))


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """Return memory_stats() as a nested dict."""
    index = _index(device)
    return torch._C._accelerator_getDeviceStats(index) if is_initialized() else {}


def _total(device: Any, key: str, kind: str) -> int:
    stats = memory_stats_as_nested_dict(device)
    return stats[key]["all"][kind] if stats else 0


def memory_allocated(device: Any = None) -> int:
    """Return the bytes held by tensors."""
    return _total(device, "allocated_bytes", "current")


def max_memory_allocated(device: Any = None) -> int:
    """Return the most bytes held by tensors since the start or reset_peak_memory_stats()."""
    return _total(device, "allocated_bytes", "peak")


def memory_reserved(device: Any = None) -> int:
    """Return the bytes the allocator holds of the device, cached ones included."""
    return _total(device, "reserved_bytes", "current")


def max_memory_reserved(device: Any = None) -> int:
    """Return the most bytes the allocator held."""
    return _total(device, "reserved_bytes", "peak")


def reset_peak_memory_stats(device: Any = None) -> None:
    """Restart the peaks from the current values."""
    torch._C._accelerator_resetPeakStats(_index(device))


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Set the accumulated counts to zero."""
    torch._C._accelerator_resetAccumulatedStats(_index(device))


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return (free, total) bytes of a device, within what this process may use.

    total is the device's memory after the profile's limit and the memory fraction; free is what can still be reserved:
    neither what the caching allocator holds, nor what the chip's own libraries and other processes do. The same as
    torch.accelerator.get_memory_info().
    """
    return _C.memory_info(_index(device))


def memory_outside_pool(device: Any = None) -> int:
    """Return the bytes of a device that are in use, but not by this process's caching allocator.

    They belong to the chip's own libraries (workspaces, code) or to other processes.
    """
    return _C.memory_outside_pool(_index(device))


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limit what the caching allocator may reserve to a share of the device's memory.

    Replaces `memory_fraction` of the configuration file. What is reserved already stays; the next allocation that would
    pass the limit raises torch.OutOfMemoryError.

    Args:
        fraction: above 0 up to 1, of the device's memory after the profile's limit.
        device: the device; None is the current one.

    Raises:
        TypeError: fraction is not a number.
        RuntimeError: fraction is out of range.
    """
    _C.set_memory_fraction(_index(device), fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """Return the share of the device's memory that the caching allocator may reserve."""
    return _C.memory_fraction(_index(device))


def host_memory_stats() -> OrderedDict[str, Any]:
    """Return statistics of pinned host memory, of all devices together.

    The keys are torch.cuda.host_memory_stats()': active_requests and active_bytes (handed out, until queued work that
    uses them has passed), allocations and allocated_bytes (cached ones too), each with {current, peak, allocated,
    freed}; num_host_alloc and num_host_free (calls of the adapter); host_alloc_time and host_free_time in microseconds,
    with {total, max, min, count, avg}. Bytes are those of whole blocks.
    """
    return _flat(host_memory_stats_as_nested_dict())


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Return host_memory_stats() as a nested dict."""
    return _C.host_memory_stats() if is_initialized() else {}


def reset_accumulated_host_memory_stats() -> None:
    """Set the accumulated counts and times of pinned memory to zero."""
    _C.reset_accumulated_host_memory_stats()


def reset_peak_host_memory_stats() -> None:
    """Restart the peaks of pinned memory from the current values."""
    _C.reset_peak_host_memory_stats()


# ---------------------------------------------------------------- memory without tensors


def caching_allocator_alloc(size: int, device: Any = None, stream: torch.Stream | int | None = None) -> int:
    """Allocate memory for another framework; caching_allocator_delete() frees it.

    Args:
        size: bytes; 0 gives the address 0.
        stream: whose work uses it, or the number of such a stream; None is the current one.

    Returns:
        The address. On chips whose buffers have no addresses, it is only a name for the memory.

    Raises:
        torch.OutOfMemoryError: there is no room.
    """
    index = _index(device)
    if stream is None:
        number = _C.current_stream(index)
    elif isinstance(stream, torch.Stream):
        if stream.device_index != index:
            raise ValueError(f"the stream is one of fl:{stream.device_index}, the memory is wanted on fl:{index}")
        number = stream.stream_id
    elif isinstance(stream, int):
        number = stream
    else:
        raise TypeError(f"stream must be a torch.Stream or the number of one, got {stream!r}")
    if size < 0:
        raise ValueError(f"size must not be negative, got {size}")
    return _C.raw_alloc(index, size, number)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Free what caching_allocator_alloc() returned.

    Raises:
        ValueError: it is no such address, or was freed already.
    """
    if mem_ptr and not _C.raw_delete(mem_ptr):
        raise ValueError(f"{mem_ptr:#x} is not memory of caching_allocator_alloc(), or was freed already")


def get_allocator_backend() -> str:
    """Return "native": there is one allocator, that of Torch-FL."""
    return "native"


# ---------------------------------------------------------------- older names of torch.cuda


def _deprecated(old: str, new: Callable[..., Any]) -> Callable[..., Any]:
    def function(device: Any = None) -> Any:
        warnings.warn(f"torch.fl.{old} is an older name of torch.fl.{new.__name__}", FutureWarning, stacklevel=2)
        return new(device)

    function.__name__ = function.__qualname__ = old
    function.__doc__ = f"Older name of {new.__name__}()."
    return function


memory_cached = _deprecated("memory_cached", memory_reserved)
max_memory_cached = _deprecated("max_memory_cached", max_memory_reserved)
reset_max_memory_allocated = _deprecated("reset_max_memory_allocated", reset_peak_memory_stats)
reset_max_memory_cached = _deprecated("reset_max_memory_cached", reset_peak_memory_stats)
