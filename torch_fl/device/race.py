"""The race finder: reports two accesses to one piece of memory that no event orders, and names both operations.

    with torch_fl.race_check() as races:
        train_step()
    for race in races.reports:
        print(race)

The core finds races (csrc/core/race.h); this file words them. docs/streams.md tells how to read a report.
"""

from __future__ import annotations

import os
import threading
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_fl import _C, _env
from torch_fl._errors import RaceError

__all__ = ["RaceReport", "RaceSide", "RaceWarning", "race_check"]

ACTIONS = ("collect", "warn", "raise")
_MOST_REPORTS = 1000  # kept by one race_check(); later ones are only counted
_OUR_FOLDERS = tuple(os.path.join(os.path.dirname(os.path.abspath(path)), "")
                     for path in (torch.__file__, _env.__file__))


class RaceWarning(UserWarning):
    """A race that TORCH_FL_RACE_CHECK=1, or race_check("warn"), has found."""


@dataclass(frozen=True)
class RaceSide:
    """One of the two operations of a race.

    Attributes:
        op: as PyTorch names it, then what ran for it: "aten::add.Tensor, UniOp add".
        device, stream: indices; None where the host itself read or wrote.
        writes: whether it writes the memory.
        stack: (file, line, function) of the Python callers, innermost first; empty where PyTorch itself
            called, as in autograd's threads.
    """

    op: str
    device: int | None
    stream: int | None
    writes: bool
    stack: tuple[tuple[str, int, str], ...] = field(repr=False)

    @property
    def place(self) -> tuple[str, int, str] | None:
        """The innermost caller outside PyTorch and Torch-FL."""
        return next((frame for frame in self.stack if not frame[0].startswith(_OUR_FOLDERS)), None)

    @property
    def where(self) -> str:
        """The device and stream in words."""
        if self.stream is None:
            return "the host"
        return f"{_device_name()}:{self.device} {_stream_name(self.stream)}"

    def __str__(self) -> str:
        place = "" if self.place is None else "\n      at {}:{} in {}".format(*self.place)
        return f"{self.op} on {self.where} {'writes' if self.writes else 'reads'}{place}"


@dataclass(frozen=True)
class RaceReport:
    """Two accesses without an order.

    Attributes:
        cause: "unordered"; "freed": the block was freed, and is used again, while another stream may still use it;
            "reused": fresh memory is used on a stream that did not wait for the one it was allocated for;
            "returned": the memory went back to the device while a stream may still use it.
        memory: index of the device whose memory it is; None for pinned memory of the host.
        second: None for "returned".
        block_address, block_bytes: of the allocation; block_stream: id of the stream it was allocated for, or None.
        first_byte, last_byte: the range of the block in which the two meet.
    """

    cause: str
    memory: int | None
    first: RaceSide
    second: RaceSide | None
    block_address: int
    block_bytes: int
    block_stream: int | None
    first_byte: int
    last_byte: int

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for reports of one race: its cause, operations and places."""
        sides = (self.first, self.second)
        return (self.cause, *((side.op, side.stream, side.place) if side else None for side in sides))

    def __str__(self) -> str:
        memory = "pinned memory" if self.memory is None else f"memory of {_device_name()}:{self.memory}"
        block = f"block {self.block_address:#x} of {self.block_bytes} bytes"
        if self.block_stream is not None:
            block += f", allocated for {_stream_name(self.block_stream)}"
        second = "" if self.second is None else f"\n  then:  {self.second}"
        return (f"race on {memory}: {_HEADLINES[self.cause]}\n"
                f"  first: {self.first}{second}\n"
                f"  both use bytes {self.first_byte} to {self.last_byte} of {block}\n"
                f"  {self._advice()}")

    def _advice(self) -> str:
        first = self.first.where
        second = self.second.where if self.second else ""
        if self.cause == "unordered":
            return (f"Let {second} wait for {first} before the second operation: wait_stream(), or wait_event() for an "
                    "event recorded after the first.")
        if self.cause == "reused":
            return (f"Let {second} wait for {first} before it uses a tensor that was allocated there: what the "
                    "memory held before may still be in use.")
        return (f"Call tensor.record_stream(stream) when {first} uses a tensor of another stream, or keep the tensor "
                "until that work has been waited for.")


_HEADLINES = {
    "unordered": "no event orders the second access after the first",
    "freed": "it was freed without record_stream() and is used again while another stream may still use it",
    "reused": "fresh memory is used before its own stream is known to be done with it",
    "returned": "it was freed without record_stream() and went back to the device while a stream may still use it",
}


class race_check:  # noqa: N801 - a context manager, named as what it is used as
    """Looks for races for a scope, in the whole process. Slow: each operation is noted with its Python stack.

    Only work that is queued inside the scope is seen. Scopes may be nested; the innermost one gets the reports.

    Args:
        action: "collect" keeps reports, "warn" also warns of each race once (RaceWarning), "raise" raises at the
            second of the two operations, which has been queued by then.

    Attributes:
        reports: the races found, each once. num_found: how often one was met.

    Raises:
        ValueError: another action.
        RaceError: on exit, with "raise", for memory that went back to the device too early and that nothing used since.
    """

    _open: list[race_check] = []
    _lock = threading.Lock()

    def __init__(self, action: str = "collect") -> None:
        if action not in ACTIONS:
            raise ValueError(f"action is {action!r}, expected one of {', '.join(ACTIONS)}")
        self.action = action
        self.reports: list[RaceReport] = []
        self.num_found = 0
        self._known: set[Any] = set()

    def __enter__(self) -> race_check:
        with self._lock:
            _C.set_race_reporter(_receive)
            if not self._open:
                _C.set_race_check(True)
            self._open.append(self)
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        rest: list[dict[str, Any]] = []
        with self._lock:
            if self._open == [self]:
                rest = _C.pending_races()
                _C.set_race_check(False)
            self._open.remove(self)
        for raw in rest:
            report = self._keep(raw)
            if self.action == "raise" and kind is None:
                raise RaceError(str(report))

    def _keep(self, raw: dict[str, Any]) -> RaceReport:
        report = _to_report(raw)
        self.num_found += 1
        if report.key not in self._known and len(self.reports) < _MOST_REPORTS:
            self._known.add(report.key)
            self.reports.append(report)
            if self.action == "warn":
                warnings.warn(str(report), RaceWarning, stacklevel=3)
        return report


def _receive(raw: dict[str, Any]) -> None:
    with race_check._lock:
        check = race_check._open[-1] if race_check._open else None
    if check is None:
        return
    report = check._keep(raw)
    if check.action == "raise":
        raise RaceError(str(report))


def _to_report(raw: dict[str, Any]) -> RaceReport:
    sides = [None if side is None else RaceSide(**{**side, "stack": tuple(side["stack"])})
             for side in (raw["first"], raw["second"])]
    assert sides[0] is not None  # a race has a first access
    return RaceReport(raw["cause"], raw["memory"] if raw["memory"] >= 0 else None, sides[0], sides[1],
                      raw["block_address"], raw["block_bytes"], raw["block_stream"],
                      raw["begin"] - raw["block_address"], raw["end"] - raw["block_address"] - 1)


def _stream_name(stream: int) -> str:
    return "default stream" if stream == 0 else f"stream {stream}"


def _device_name() -> str:
    return torch._C._get_privateuse1_backend_name()


def _install() -> None:
    """Start what TORCH_FL_RACE_CHECK asks for, until the process ends; called once, when the extension is loaded."""
    action = _env.get("TORCH_FL_RACE_CHECK")
    if action != "off":
        race_check(action).__enter__()
