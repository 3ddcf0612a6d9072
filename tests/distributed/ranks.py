"""Two processes that form a group and run the same function, started once for many tests.

A test body is a module-level function taking the rank's device; whatever it raises in any process fails the test there.
After a failure the processes are started anew, as the ranks may be out of step.
"""

from __future__ import annotations

import datetime
import os
import tempfile
import traceback
from collections.abc import Callable

import torch.multiprocessing as mp

WORLD = 2
TIMEOUT = 60


def _serve(rank: int, path: str, backend: str | None, orders: mp.Queue, answers: mp.Queue) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{path}", rank=rank, world_size=WORLD,
                            timeout=datetime.timedelta(seconds=TIMEOUT))
    device = torch.device("fl", rank % torch.fl.device_count())
    torch.fl.set_device(device)
    while (order := orders.get()) is not None:
        body, arguments = order
        try:
            body(device, *arguments)
            answers.put((rank, None))
        except BaseException:  # noqa: BLE001 - told to the test
            answers.put((rank, traceback.format_exc()))
    dist.destroy_process_group()


class Ranks:
    """The group; `run(body, *arguments)` raises AssertionError with the text of the rank that failed."""

    def __init__(self, backend: str | None = None) -> None:
        self._backend = backend
        self._processes: list = []

    def run(self, body: Callable, *arguments: object) -> None:
        if not self._processes:
            self._start()
        for orders in self._orders:
            orders.put((body, arguments))
        failures = []
        for _ in range(WORLD):
            rank, text = self._answers.get(timeout=2 * TIMEOUT)
            if text is not None:
                failures.append(f"rank {rank}: {text}")
        if failures:
            self.stop(quiet=True)
            raise AssertionError("\n".join(failures))

    def stop(self, quiet: bool = False) -> None:
        """End the processes; unless quiet, each has to leave with code 0."""
        processes, self._processes = self._processes, []
        for orders in self._orders if processes else ():
            orders.put(None)
        for process in processes:
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()
        if not quiet:
            assert [p.exitcode for p in processes] == [0] * len(processes)

    def _start(self) -> None:
        context = mp.get_context("spawn")
        path = os.path.join(tempfile.mkdtemp(), "store")
        self._answers = context.Queue()
        self._orders = [context.Queue() for _ in range(WORLD)]
        self._processes = [context.Process(target=_serve, args=(rank, path, self._backend, orders, self._answers))
                           for rank, orders in enumerate(self._orders)]
        for process in self._processes:
            process.start()
