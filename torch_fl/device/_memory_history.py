"""The history of device memory and its snapshots, as PyTorch's memory viewer reads them (pytorch.org/memory_viz).

The names, arguments and keys are those of torch.cuda.memory; the underscores are PyTorch's, too. docs/memory.md shows
how to use them.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

from torch_fl import _C
from torch_fl.device._context import _index, device_count, is_initialized

_LEVELS = {None: 0, "state": 1, "alloc": 2, "all": 3}
OutOfMemoryObserver = Callable[[int, int, int, int], None]


def _choice(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if isinstance(value, bool) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def _record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: Any = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    """Record who asks for memory, on all devices; see _snapshot().

    Each allocation then costs microseconds more, and each event some kilobytes of host memory: choose max_entries.

    Args:
        enabled: None, nothing, and forget what was recorded; "state", only stacks of what is allocated now; "all", also
            the events.
        context: whose stacks to keep: None, no one's; "state", of what is allocated now; "alloc", also of past
            allocations; "all", also of frees.
        stacks: "python", or "all" for C++ frames too.
        max_entries: events kept of each device; the oldest go first. Another number than before forgets the events.
        device: accepted for torch.cuda's signature; as there, all devices are recorded.
        clear_history: forget the events so far.
        compile_context: not supported.
        global_record_annotations: keep record_function() annotations of all threads, not only of this one.
        skip_actions: events not to keep, as "free_requested".

    Raises:
        ValueError: an argument is not one of the allowed ones.
        NotImplementedError: compile_context.
    """
    _choice("enabled", enabled, (None, "state", "all"))
    _choice("context", context, tuple(_LEVELS))
    _choice("stacks", stacks, ("python", "all"))
    for action in skip_actions or ():
        _choice("skip_actions", action, _C.memory_actions)
    if max_entries < 1:
        raise ValueError(f"max_entries must be 1 or more, got {max_entries}")
    if compile_context:
        raise NotImplementedError("compile_context is not supported on fl devices: leave it out")
    _C.record_memory_history(
        enabled=enabled is not None,
        events=enabled == "all",
        stacks=_LEVELS[context] if enabled is not None else 0,
        cpp_frames=stacks == "all",
        max_events=max_entries,
        clear=clear_history,
        all_threads=global_record_annotations,
        skip=list(skip_actions or ()),
    )


def _devices(device: Any) -> list[int]:
    return list(range(device_count())) if device is None else [_index(device)]


def memory_snapshot(device: Any = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """Return the allocator's segments with their blocks: addresses, sizes, states, and stacks if they are recorded.

    Args:
        device: one device; None, as in torch.cuda, all of them.
        include_traces: accepted for torch.cuda's signature; segments have no traces.
    """
    return _C.memory_history(_devices(device))["segments"] if is_initialized() or device is not None else []


def _snapshot(device: Any = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Return the state of memory and the recorded events, in the form that PyTorch's memory viewer reads.

    Args:
        device: one device; None, as in torch.cuda, all of them.
        augment_with_fx_traces: add to frames of code made by torch.fx where it came from.

    Returns:
        A dict: "segments" (each with "blocks"), "device_traces" (a list of events for each device, by its index),
        "external_annotations" and "allocator_settings". Frames are dicts with "filename", "line" and "name".
    """
    if is_initialized() or device is not None:
        snapshot = _C.memory_history(_devices(device))
    else:
        snapshot = {"segments": [], "device_traces": [], "external_annotations": [], "trace_alloc_overflowed": False}
    snapshot["allocator_settings"] = {"trace_alloc_overflowed": snapshot.pop("trace_alloc_overflowed")}
    if augment_with_fx_traces:
        from torch._utils import _augment_memory_snapshot_stack_traces

        snapshot = _augment_memory_snapshot_stack_traces(snapshot)
    return snapshot


def _dump_snapshot(filename: Any = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
    """Write _snapshot() to a file for pytorch.org/memory_viz or `python -m torch.cuda._memory_viz`."""
    snapshot = _snapshot(augment_with_fx_traces=augment_with_fx_traces)
    with open(filename, "wb") as file:
        pickle.dump(snapshot, file)


def _save_segment_usage(filename: Any = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
    """Draw what lies in each segment, by PyTorch's flame graph (which it downloads the script of)."""
    from torch.cuda._memory_viz import segments

    with open(filename, "w", encoding="utf-8") as file:
        file.write(segments(_snapshot() if snapshot is None else snapshot))


def _save_memory_usage(filename: Any = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
    """Draw which code holds how much memory, by PyTorch's flame graph (which it downloads the script of)."""
    from torch.cuda._memory_viz import memory

    with open(filename, "w", encoding="utf-8") as file:
        file.write(memory(_snapshot() if snapshot is None else snapshot))


def _allocation_traceback(data_ptr: int) -> list[dict[str, Any]] | None:
    """Return the stack that allocated the block at this address; None if it is not known.

    Args:
        data_ptr: a block's first address, as tensor.untyped_storage().data_ptr() is.
    """
    return _C.allocation_stack(data_ptr)


def _set_memory_metadata(metadata: str) -> None:
    """Attach a text to all events from now on; an empty one ends that."""
    _C.set_memory_metadata(metadata)


def _get_memory_metadata() -> str:
    """Return the text that is attached to events now."""
    return _C.memory_metadata()


# ---------------------------------------------------------------- out of memory

_observers: dict[int, OutOfMemoryObserver] = {}
_observers_lock = threading.Lock()
_next_key = 0


class _ObserverHandle:
    """Removes its observer by remove(), or at the end of a `with`."""

    def __init__(self, key: int) -> None:
        self._key = key

    def remove(self) -> None:
        with _observers_lock:
            _observers.pop(self._key, None)
            if not _observers:
                _C.set_out_of_memory_observer(None)

    def __enter__(self) -> _ObserverHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _attach_out_of_memory_observer(observer: OutOfMemoryObserver) -> _ObserverHandle:
    """Call a function each time a device runs out of memory, before the error is raised.

    It runs on the thread that asked, and sees memory as it was when the allocator had given up: the place to call
    _dump_snapshot(). What it raises is printed and does not hide the error itself.

    Args:
        observer: gets the device's index, the bytes asked for, the bytes allocated, and the bytes that the device says
            are free.

    Returns:
        A handle; handle.remove() ends it, and so does leaving `with handle:`.
    """
    global _next_key
    with _observers_lock:
        _next_key += 1
        _observers[_next_key] = observer
        _C.set_out_of_memory_observer(_out_of_memory)
        return _ObserverHandle(_next_key)


def _out_of_memory(device: int, asked: int, allocated: int, device_free: int) -> None:
    failure: Exception | None = None
    for observer in list(_observers.values()):
        try:
            observer(device, asked, allocated, device_free)
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
