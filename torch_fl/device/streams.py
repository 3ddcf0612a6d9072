"""Streams and events. torch.Stream and torch.Event carry them; these classes only give them our default device."""

from __future__ import annotations

from typing import Any

import torch

from torch_fl import _C
from torch_fl.device._context import _index


def _device(index: int) -> torch.device:
    return torch.device(torch._C._get_privateuse1_backend_name(), index)


_DEVICE_TYPE = 20  # c10::DeviceType::PrivateUse1


def _wrap(index: int, stream_id: int) -> Stream:
    return Stream(stream_id=stream_id, device_index=index, device_type=_DEVICE_TYPE)


class Stream(torch.Stream):
    """A queue of work on one device; work on one stream runs in order.

    Args:
        device: where; None is the current device.
        priority: 0 is normal, negative is more urgent; what lies outside priority_range() is clamped. Whether the
            chip runs urgent streams first is the vendor's matter: docs/streams.md.
    """

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs:
            return super().__new__(cls, stream_id=kwargs["stream_id"], device_index=kwargs["device_index"],
                                   device_type=kwargs["device_type"])
        return super().__new__(cls, _device(_index(device)), priority=priority)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the least and the most urgent priority."""
        return _C.priority_range

    @property
    def priority(self) -> int:
        """The priority the stream was made with, after clamping."""
        return _C.stream_priority(self.device_index, self.stream_id)


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == torch._C._get_privateuse1_backend_name()


class Event(torch.Event, metaclass=_EventType):
    """A point in a stream's work that others can wait for.

    Makes a plain torch.Event, because PyTorch's streams refuse subclasses of it.

    Args:
        enable_timing: whether elapsed_time() may be asked.
        blocking, interprocess: accepted for CUDA's signature; interprocess events are not supported.
    """

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False,
                device: Any = None) -> torch.Event:
        if interprocess:
            raise NotImplementedError("events shared between processes are not supported on fl devices")
        return torch.Event(_device(_index(device)), enable_timing=enable_timing, blocking=blocking)


def current_stream(device: Any = None) -> Stream:
    """Return this thread's current stream of a device."""
    index = _index(device)
    return _wrap(index, _C.current_stream(index))


def default_stream(device: Any = None) -> Stream:
    """Return a device's default stream."""
    index = _index(device)
    return _wrap(index, _C.default_stream(index))


def set_stream(stream: torch.Stream | None) -> None:
    """Make a stream, and its device, current for this thread; None does nothing."""
    if stream is not None:
        _C.set_stream(stream.device_index, stream.stream_id)
        _C.set_device(stream.device_index)


class StreamContext:
    """Makes a stream, and its device, current for a scope."""

    def __init__(self, stream: torch.Stream | None):
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is None:
            return
        index = self.stream.device_index
        self._previous_device = _C.exchange_device(index)
        self._previous_stream = _C.current_stream(index)
        _C.set_stream(index, self.stream.stream_id)

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            _C.set_stream(self.stream.device_index, self._previous_stream)
            _C.exchange_device(self._previous_device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Return a context manager that makes a stream current; None does nothing."""
    return StreamContext(stream)
