"""Memory statistics of the caching allocator. The numbers come from torch.accelerator's common interface."""

from __future__ import annotations

from typing import Any

import torch

from torch_fl import _C
from torch_fl.device._context import _index


def empty_cache() -> None:
    """Give cached, unused memory of all devices, and cached pinned memory, back."""
    torch._C._accelerator_emptyCache()


def host_memory_empty_cache() -> None:
    """Give cached, unused pinned host memory back."""
    _C.host_empty_cache()


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Return the allocator's statistics as a flat dict ("allocated_bytes.all.current", …), in bytes and counts."""
    index = _index(device)
    if not _C.devices_opened():
        return {}
    flat: dict[str, Any] = {}

    def flatten(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                flatten(f"{prefix}.{key}" if prefix else key, item)
        else:
            flat[prefix] = value

    flatten("", torch._C._accelerator_getDeviceStats(index))
    return dict(sorted(flat.items()))


def memory_allocated(device: Any = None) -> int:
    """Return the bytes held by tensors."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: Any = None) -> int:
    """Return the most bytes held by tensors since the start or reset_peak_memory_stats()."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: Any = None) -> int:
    """Return the bytes the allocator holds of the device, cached ones included."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: Any = None) -> int:
    """Return the most bytes the allocator held."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Restart the peaks from the current values."""
    torch._C._accelerator_resetPeakStats(_index(device))


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Set the accumulated counts to zero."""
    torch._C._accelerator_resetAccumulatedStats(_index(device))


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return (free, total) bytes of a device, within what Torch-FL may use."""
    return _C.memory_info(_index(device))


def memory_snapshot(device: Any = None) -> list[dict[str, Any]]:
    """Return the allocator's segments with their blocks: addresses, sizes and states."""
    return _C.memory_snapshot(_index(device))


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return the main statistics as a small table."""
    index = _index(device)
    stats = memory_stats(index)
    rows = ["allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes"]
    if not abbreviated:
        rows += ["requested_bytes", "allocation", "segment"]
    lines = [f"Memory of fl:{index}", f"{'':24}{'current':>16}{'peak':>16}{'total':>16}"]
    for row in rows:
        values = [stats.get(f"{row}.all.{kind}", 0) for kind in ("current", "peak", "allocated")]
        lines.append(f"{row:24}" + "".join(f"{value:>16,}" for value in values))
    return "\n".join(lines)
