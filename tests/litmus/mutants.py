"""Mutants: a litmus program with one of its waits removed must be wrong.

The programs run on an adapter that can forget waits (forgetful.c). Each mutant is a process of its own, forked from one
that has PyTorch loaded and no chip opened, because without a wait it may crash or hang.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import litmus
import yaml
from litmus import Program

KINDS = ("stream_wait_event", "stream_synchronize", "event_synchronize", "device_synchronize", "stream_query",
         "event_query")  # fmt: skip
QUERIES = ("stream_query", "event_query")  # how often they are asked depends on time: all of a line are one mutant
SEEDS = 40  # delays that a mutant may survive
LIMIT = 60.0  # seconds for one process
HERE = Path(__file__).parent
_ASIDE = ("settle", "tidy")  # of litmus.py: no program depends on their waits
_TOGETHER = ("synchronize(", "empty_cache()")  # one wait of the program is one for each stream below, most of them idle
_FILES = tuple(sorted(HERE.glob("programs_*.py")))
_STEP = 10_000  # a place is the file's number times this, plus the line


@dataclass(frozen=True, order=True)
class Wait:
    """One wait of a program: the nth (from 1) of its kind at a place; 0: all of them."""

    kind: str
    place: int
    nth: int

    def source(self) -> str:
        """The program's line, as file:number: text."""
        path, line = _FILES[self.place // _STEP - 1], self.place % _STEP
        return f"{path.name}:{line}: {path.read_text().splitlines()[line - 1].strip()}"


# ---------------------------------------------------------------- the adapter


def use_forgetful_adapter(folder: Path) -> None:
    """Builds the adapter into a folder and makes this process, and its children, open it."""
    from torch_fl.profile import adapters

    inner = adapters.find("ninguang")
    assert inner.library is not None and inner.profile_path is not None, inner.error
    litmus.build_library(HERE / "forgetful.c", folder / "libfl_ninguang.so")
    shutil.copy(inner.profile_path, folder / adapters.PROFILE_FILE)
    os.environ.setdefault("LITMUS_ADAPTER", str(inner.library))
    os.environ["TORCH_FL_ADAPTER_PATH"] = str(folder)


class Forgetful:
    """The opened adapter's own functions."""

    def __init__(self) -> None:
        library = ctypes.PyDLL(str(Path(os.environ["TORCH_FL_ADAPTER_PATH"]) / "libfl_ninguang.so"))
        self._begin, self._end, self._at = library.litmus_begin, library.litmus_end, library.litmus_at

    def _trace(self, frame, event: str, _):  # noqa: ANN001, ANN202
        code = frame.f_code
        if code.co_name in _ASIDE and code.co_filename == litmus.__file__:
            self._at(0)
        file = next((number for number, path in enumerate(_FILES, 1) if code.co_filename == str(path)), None)
        if file is None:
            return None  # what helpers wait for belongs to the line that called them

        def line(frame, event: str, _):  # noqa: ANN001, ANN202
            if event == "line":
                self._at(file * _STEP + frame.f_lineno)
            return line

        return line

    @contextmanager
    def counting(self, result: dict, forget: Wait | None = None) -> Iterator[None]:
        """Counts the waits of the scope and forgets one; `result` gets `waits` and `forgotten` at its end."""
        self._at(0)
        self._begin(*((-1, 0, 0) if forget is None else (KINDS.index(forget.kind), forget.place, forget.nth)))
        sys.settrace(self._trace)
        threading.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)
            seen, forgotten = (ctypes.c_int32 * (2 * 4096))(), ctypes.c_int32()
            count = self._end(seen, 4096, ctypes.byref(forgotten))
            assert count <= 4096, f"{count} waits are more than the adapter keeps"
            result["waits"] = [(KINDS[seen[2 * i]], seen[2 * i + 1]) for i in range(count)]
            result["forgotten"] = forgotten.value


# ---------------------------------------------------------------- processes


class Ended(Exception):
    """A child that did not end as it should: the text is the signal's name, or "hung"."""


def in_child(work: Callable[[], Any], limit: float | None = LIMIT, quiet: bool = False) -> Any:
    """Runs work in a forked process and returns its result; quiet: what the process says of its end is not shown.

    Raises:
        Ended: it crashed, or took more than `limit` seconds.
        RuntimeError: work raised; with its traceback.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        if quiet:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            answer = {"result": work()}
        except BaseException:
            answer = {"raised": traceback.format_exc()}
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    parts, deadline = [], None if limit is None else time.monotonic() + limit
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([pipe], [], [], left)[0]:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise Ended("hung")
            if not (part := pipe.read(1 << 16)):
                break
            parts.append(part)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0:
        raise Ended(signal.Signals(-code).name if code < 0 else f"exit code {code}")
    answer = json.loads(b"".join(parts))
    if "raised" in answer:
        raise RuntimeError(f"in a child process:\n{answer['raised']}")
    return answer["result"]


def prepare(program: Program) -> litmus.Delays:
    """Opens the chip in a child, with the memory that the program wants."""
    os.environ["NINGUANG_UNIFIED"] = "1" if program.unified else "0"
    return litmus.Delays()


def waits_of(program: Program, seeds: range = range(4)) -> list[Wait]:
    """The program's waits, from runs in which nothing is forgotten."""

    def work() -> list[tuple[str, int, int]]:
        delays, adapter = prepare(program), Forgetful()
        most: Counter = Counter()
        for seed in seeds:
            seen: dict = {}
            litmus.run(program, delays, seed, adapter.counting(seen))
            for wait, count in Counter(seen["waits"]).items():
                most[wait] = max(most[wait], count)
        return [(kind, place, count) for (kind, place), count in most.items()]

    waits = []
    for kind, place, count in in_child(work):
        if place == 0:
            continue
        source = Wait(kind, place, 0).source()
        one = program.together or kind in QUERIES or any(text in source for text in _TOGETHER)
        waits += [Wait(kind, place, 0)] if one else [Wait(kind, place, nth + 1) for nth in range(count)]
    return sorted(waits, key=lambda wait: (wait.place, wait.kind, wait.nth))


def caught(program: Program, forget: Wait | None, seeds: int = SEEDS) -> str | None:
    """Runs the mutant under the delays of up to `seeds` seeds. Returns how it was caught; None: it survived.

    Without `forget`, what is mutated is the library that the process has loaded.
    """

    def work() -> str | None:
        delays, adapter = prepare(program), Forgetful()
        for seed in range(seeds):
            seen: dict = {}
            try:
                litmus.run(program, delays, seed, adapter.counting(seen, forget))
            except Exception as error:
                if forget is not None and not seen["forgotten"]:
                    raise RuntimeError(f"{program.name} is wrong with all its waits, seed {seed}") from error
                how = "wrong value" if isinstance(error, litmus.Wrong) else type(error).__name__
                return f"{how}, seed {seed}: {error}"
        return None

    try:
        return in_child(work, quiet=True)
    except Ended as ended:
        return f"ended: {ended}"


# ---------------------------------------------------------------- equivalents


def equivalents() -> list[dict[str, Any]]:
    """Mutants that may survive: program, kind, a part of the line, which of them (nth; absent: any), the reason."""
    return yaml.safe_load((HERE / "equivalents.yaml").read_text()) or []


def reason_to_survive(program: Program, wait: Wait) -> str | None:
    """Why this mutant is no mistake, if it is listed."""
    for entry in equivalents():
        if entry["program"] != program.name or entry["kind"] != wait.kind or entry["line"] not in wait.source():
            continue
        if wait.nth in entry.get("nth", [wait.nth]):
            return entry["reason"]
    return None
