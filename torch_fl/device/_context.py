"""Which devices there are, which one is current, and what they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torch_fl import _C


def _index(device: Any = None, *, optional: bool = True) -> int:
    """Return the flat index of a device argument.

    Raises:
        ValueError: not an fl device, or None where one is needed.
    """
    if device is None:
        if not optional:
            raise ValueError("a device is needed here, got None")
        return _C.current_device()
    if isinstance(device, int):
        return device
    name = torch._C._get_privateuse1_backend_name()
    if isinstance(device, str):
        from torch_fl.device import _alias

        device = _alias.resolve(device)
    device = torch.device(device)
    if device.type != name:
        raise ValueError(f"expected a device of type '{name}', got '{device}'")
    return _C.current_device() if device.index is None else device.index


def is_available() -> bool:
    """Tell whether at least one device can be used."""
    return _C.device_count() > 0


def device_count() -> int:
    """Return the number of devices of all chips; opens them on the first call."""
    return _C.device_count()


def init() -> None:
    """Open the configured chips now."""
    _C.device_count()


_lazy_init = init


def is_initialized() -> bool:
    """Tell whether chips have been opened."""
    return _C.devices_opened() and not _C.in_bad_fork()


def _is_in_bad_fork() -> bool:
    return _C.in_bad_fork()


def current_device() -> int:
    """Return the index of this thread's current device."""
    return _C.current_device()


def set_device(device: Any) -> None:
    """Make a device current for this thread. A negative index does nothing, as in torch.cuda."""
    index = _index(device)
    if index >= 0:
        _C.set_device(index)


def synchronize(device: Any = None) -> None:
    """Wait for all work queued on a device.

    Raises:
        RuntimeError: queued work failed; the text names the stream's last operators.
    """
    _C.synchronize(_index(device))


class device:
    """Context manager that makes a device current; a negative index or None does nothing."""

    def __init__(self, device: Any):
        self.idx = -1 if device is None else _index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = _C.exchange_device(self.idx)

    def __exit__(self, *_: object) -> bool:
        if self.prev_idx >= 0:
            _C.exchange_device(self.prev_idx)
        return False


class device_of(device):
    """Context manager that makes the device of a tensor or storage current, if it is an fl device."""

    def __init__(self, obj: Any):
        name = torch._C._get_privateuse1_backend_name()
        super().__init__(obj.device.index if obj.device.type == name else None)


@dataclass(frozen=True)
class DeviceProperties:
    """What a chip's adapter says of one device.

    Attributes:
        total_memory: bytes that Torch-FL may use (after memory_fraction).
        uuid: stays the same across restarts.
        alignment: bytes; what the chip and the profile's memory_pool ask for, the larger.
        prealloc_bytes: taken from the device by the first allocation, as far as there is so much.
        min_block_bytes: allocations are rounded up to a multiple of it: the larger of the profile's and the alignment.
        max_allocation: most bytes that the chip gives at once; 0 is no limit.
        expandable_segments: whether the caching allocator's segments grow and shrink page by page.
        capabilities: of the adapter's ABI: pointers, in_place, host_visible, compiler, peer.
    """

    index: int
    name: str
    chip: str
    arch: str
    uuid: str
    adapter: str
    adapter_version: str
    total_memory: int
    multi_processor_count: int
    alignment: int
    prealloc_bytes: int
    min_block_bytes: int
    max_allocation: int
    expandable_segments: bool
    capabilities: tuple[str, ...]


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Return a device's properties.

    Raises:
        RuntimeError: the device does not exist.
    """
    found = _C.device_info(_index(device))
    return DeviceProperties(**{f: tuple(found[f]) if f == "capabilities" else found[f]
                               for f in DeviceProperties.__dataclass_fields__})


def get_device_name(device: Any = None) -> str:
    """Return the name of a device, as its vendor calls it."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Return (0, 0): chips of several vendors have no common compute capability; see get_device_properties().arch."""
    _index(device)
    return (0, 0)


def get_arch_list() -> list[str]:
    """Return the architectures of all devices, each once."""
    return sorted({_C.device_info(i)["arch"] for i in range(_C.device_count())})


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Tell whether the current device multiplies bfloat16 matrices itself; True with emulation, as on any device."""
    return including_emulation or _C.has_kernel(_C.current_device(), "mm", "bfloat16", "bfloat16")


def ipc_collect() -> None:
    """Do nothing: memory is not shared between processes."""
