"""Runs OpInfo entries in worker processes, each under a time limit: a crash or hang is one operator's failure."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("opinfo_worker.py")
MODES = ("all", "no_cpu")
SECONDS_PER_OP = float(os.environ.get("FL_OPINFO_SECONDS", "60"))  # more where kernels are compiled at first use


class Worker:
    """One process that answers operators one at a time; started again after it died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    def _start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_FL_VERBOSE": "0"}
        self._process = subprocess.Popen([sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, env=environment)  # fmt: skip
        self._errors = []
        threading.Thread(target=self._drain, args=(self._process,), daemon=True).start()
        self._buffer = b""
        if self._read(120.0) is None:
            raise RuntimeError("the OpInfo worker does not start:\n" + self._last_errors(4000))

    def _drain(self, process: subprocess.Popen[bytes]) -> None:
        for line in process.stderr:
            self._errors.append(line.decode(errors="replace"))
            del self._errors[:-50]

    def _last_errors(self, size: int = 300) -> str:
        return "".join(self._errors)[-size:]

    def _read(self, seconds: float) -> dict[str, Any] | None:
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._process.stdout], [], [], seconds)
            chunk = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def ask(self, name: str, mode: str) -> dict[str, Any]:
        """Return the worker's answer, or a failure that tells how it died."""
        if self._process is None:
            self._start()
        try:
            self._process.stdin.write(f"{name}\t{mode}\n".encode())
            self._process.stdin.flush()
            answer = self._read(SECONDS_PER_OP)
        except BrokenPipeError:
            answer = None
        if answer is None:
            answer = {"op": name, "mode": mode, "failures": [("process", self._cause_of_death())], "not_covered": [],
                      "strides": [], "checks": 0, "cpu": []}  # fmt: skip
            self._process = None
        return answer

    def _cause_of_death(self) -> str:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return f"hang: no answer within {SECONDS_PER_OP:.0f} s"
        why = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return f"crash: {why}: {' '.join(self._last_errors().split())}"

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.stdin.close()
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def run(names: Iterable[str], modes: Iterable[str] = MODES, processes: int = 2,
        progress: Callable[[dict[str, Any]], None] | None = None) -> list[dict[str, Any]]:  # fmt: skip
    """Check each operator in each mode; answers come in the order of `names`."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    order = list(names)
    for name in order:
        waiting.put(name)
    answers: dict[tuple[str, str], dict[str, Any]] = {}
    errors: list[BaseException] = []

    def serve() -> None:
        worker = Worker()
        try:
            while True:
                name = waiting.get_nowait()
                for mode in modes:
                    answers[name, mode] = answer = worker.ask(name, mode)
                    if progress is not None:
                        progress(answer)
        except queue.Empty:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by run()
            errors.append(error)
        finally:
            worker.close()

    threads = [threading.Thread(target=serve) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [answers[name, mode] for name in order for mode in modes]
