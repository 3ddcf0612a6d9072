"""torch.fl: the device module PyTorch and its ecosystem look things up in. Signatures follow torch.cuda's.

A device argument is an index, a torch.device, a string, or None for the current device. Opening chips happens on the
first call that needs one.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from torch_fl.device._context import (
    _is_in_bad_fork as _is_in_bad_fork,
)
from torch_fl.device._context import (
    _lazy_init as _lazy_init,
)
from torch_fl.device._context import (
    current_device,
    device,
    device_count,
    device_of,
    get_arch_list,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    ipc_collect,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
    synchronize,
)
from torch_fl.device.amp import get_amp_supported_dtype
from torch_fl.device.memory import (
    caching_allocator_alloc,
    caching_allocator_delete,
    empty_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    host_memory_empty_cache,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_outside_pool,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_fl.device.random import (
    _get_generator as _get_generator,
)
from torch_fl.device.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_fl.device.streams import Event, Stream, current_stream, default_stream, set_stream, stream

__all__ = [
    "Event", "Stream", "caching_allocator_alloc", "caching_allocator_delete", "current_device", "current_stream",
    "default_stream", "device", "device_count", "device_of", "empty_cache", "get_allocator_backend",
    "get_amp_supported_dtype", "get_arch_list", "get_device_capability", "get_device_name", "get_device_properties",
    "get_per_process_memory_fraction", "get_rng_state", "get_rng_state_all", "host_memory_empty_cache",
    "host_memory_stats", "host_memory_stats_as_nested_dict", "init", "initial_seed", "ipc_collect", "is_available",
    "is_bf16_supported", "is_initialized", "manual_seed", "manual_seed_all", "max_memory_allocated",
    "max_memory_cached", "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_cached",
    "memory_outside_pool", "memory_reserved", "memory_snapshot", "memory_stats", "memory_stats_as_nested_dict",
    "memory_summary", "reset_accumulated_host_memory_stats", "reset_accumulated_memory_stats",
    "reset_max_memory_allocated", "reset_max_memory_cached", "reset_peak_host_memory_stats",
    "reset_peak_memory_stats", "seed", "seed_all", "set_device", "set_per_process_memory_fraction", "set_rng_state",
    "set_rng_state_all", "set_stream", "stream", "synchronize",
]  # fmt: skip


class _DeviceModule(types.ModuleType):
    """This package has the name of the public function torch_fl.device("ninguang:1"), so it is that function too."""

    @property
    def _initialized(self) -> bool:  # torch.utils.checkpoint keeps random states only where it is true
        return is_initialized()

    def __call__(self, name: str) -> Any:
        from torch_fl.device import _registration

        return _registration.device(name)


sys.modules[__name__].__class__ = _DeviceModule
