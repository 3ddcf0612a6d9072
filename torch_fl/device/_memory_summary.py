"""memory_summary(): the allocator's statistics as the table that torch.cuda.memory_summary() prints."""

from __future__ import annotations

from typing import Any

from torch_fl import _C
from torch_fl.device._context import _index

_BYTES = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "inactive_split_bytes")
_ROWS = {
    "allocated_bytes": "Allocated memory",
    "active_bytes": "Active memory",
    "requested_bytes": "Requested memory",
    "reserved_bytes": "Reserved memory",
    "inactive_split_bytes": "Non-releasable memory",
    "allocation": "Allocations",
    "active": "Active allocs",
    "segment": "Reserved segments",
    "inactive_split": "Non-releasable allocs",
}
_COLUMNS = {"current": "Cur Usage", "peak": "Peak Usage", "allocated": "Tot Alloc", "freed": "Tot Freed"}
_WIDTH = 75


def _bytes_text(value: int, scale: int) -> str:
    """The number in the unit that suits `scale`, so that a column's rows share one."""
    units = ["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while scale >= 768 * 1024 and len(units) > 1:
        value, scale = value // 1024, scale // 1024
        units.pop(0)
    return f"{value:6d} {units[0]}"


def _count_text(value: int, scale: int) -> str:
    units = [" ", "K", "M"]
    while scale >= 750 * 1000 and len(units) > 1:
        value, scale = value // 1000, scale // 1000
        units.pop(0)
    return f"{value:7d} {units[0]} "


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return the allocator's statistics as a table for people.

    Args:
        device: None is the current device.
        abbreviated: only the totals, without those of the small and the large pool.
    """
    from torch_fl.device.memory import mem_get_info, memory_stats

    index = _index(device)
    info = _C.device_info(index)
    stats = memory_stats(index)
    _, usable = mem_get_info(index)
    rule, thin = "=" * _WIDTH, "-" * _WIDTH
    counters = f"  OOMs: {stats['num_ooms']:<12d} | cache releases to retry: {stats['num_alloc_retries']:<8d}"
    title = f" Memory of fl:{index} ({info['chip']}, {info['name']}), {usable / 2**20:,.0f} MiB usable"
    header = f" {'Metric':<21} | " + " | ".join(f"{title:<10}" for title in _COLUMNS.values()) + " "
    lines = [rule, title, thin, counters, rule, header]
    for key, name in _ROWS.items():
        lines.append(thin)
        text = _bytes_text if key in _BYTES else _count_text
        scales = [stats[f"{key}.all.{column}"] for column in _COLUMNS]
        pools = {"all": name}
        if not abbreviated:
            pools |= {"large_pool": "      from large pool", "small_pool": "      from small pool"}
        for pool, label in pools.items():
            values = (text(stats[f"{key}.{pool}.{c}"], scale) for c, scale in zip(_COLUMNS, scales, strict=True))
            lines.append(f" {label:<21} | " + " | ".join(values) + " ")
    for key, name in {"oversize_allocations": "Oversize allocations", "oversize_segments": "Oversize segments"}.items():
        lines.append(thin)
        values = (_count_text(stats[f"{key}.{column}"], stats[f"{key}.{column}"]) for column in _COLUMNS)
        lines.append(f" {name:<21} | " + " | ".join(values) + " ")
    lines.append(rule)
    return "".join(f"|{line[:_WIDTH]:<{_WIDTH}}|\n" for line in lines)
