"""Processes: ends with work queued, fork, interrupts, threads, several processes, DataLoader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from ninguang_faults import small_model, train

DEVICE = "fl:1"
pytestmark = pytest.mark.timeout(600)


def test_exit_right_after_backward_twenty_times() -> None:
    code = "import torch; m = torch.nn.Linear(8, 8).to('fl:1'); m(torch.ones(4, 8, device='fl:1')).sum().backward()"
    for _ in range(5):  # four at a time, which makes the race likelier too
        running = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(4)]
        for process in running:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0 and not errors, (process.returncode, errors)


@pytest.mark.parametrize("end", ["pass", "import sys; sys.exit(0)", "import os; os._exit(0)"])
def test_exit_while_work_is_queued(run_python, end: str) -> None:
    begin = time.monotonic()
    run_python(f"""
        import torch
        x = torch.ones(1 << 20, device="fl:1")
        side = torch.fl.Stream("fl:0")
        with torch.fl.stream(side):
            y = torch.ones(1 << 20, device="fl:0")
            for _ in range(20):
                y = y * 1.5
        for _ in range(50):
            x = torch.sin(x)
        pinned = torch.ones(1 << 16).pin_memory().to("fl:1", non_blocking=True)
        {end}
    """)
    assert time.monotonic() - begin < 120


def test_exit_with_failed_work_nobody_waited_for(run_python) -> None:
    done = run_python(
        """
        import torch
        x = torch.ones(4, device="fl:1")
        for _ in range(4):
            x = x + 1
    """,
        NINGUANG_FAULT="launch:3@1",
    )
    assert "Traceback" not in done.stderr


def test_an_uncaught_error_ends_the_process_with_one(run_python) -> None:
    done = run_python(
        """
        import torch
        x = torch.ones(3, requires_grad=True, device="fl:1")
        (x * 2).sum().backward()
        raise ValueError("mine")
    """,
        check=False,
    )
    assert done.returncode == 1 and "ValueError: mine" in done.stderr


def test_fork_after_use_is_refused_clearly(run_python) -> None:
    done = run_python("""
        import os, torch
        x = torch.ones(3, device="fl:1")
        torch.fl.synchronize(1)
        pid = os.fork()
        if pid == 0:
            ok = torch.fl._is_in_bad_fork() and not torch.fl.is_initialized()
            for call in (lambda: x + 1, lambda: x.cpu(), lambda: torch.ones(2, device="fl"),
                         lambda: torch.ones(2).to("fl:1"), lambda: torch.fl.synchronize(),
                         lambda: torch.fl.set_device(1), lambda: torch.fl.Stream("fl:1"),
                         lambda: torch.ones(2).pin_memory(), lambda: torch.fl.empty_cache()):
                try:
                    call()
                    ok = False
                    print("no error", call.__code__.co_consts)
                except RuntimeError as error:
                    if "fork" not in str(error):
                        ok = False
                        print(error)
            torch.manual_seed(3)                      # a DataLoader worker does this
            assert (torch.ones(3) + 1).sum() == 6     # the CPU works
            del x
            import sys; sys.stdout.flush()
            os._exit(0 if ok else 3)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert (x + 1).sum().item() == 6
    """)
    assert "Traceback" not in done.stderr


def test_a_forked_child_may_return_from_main(run_python) -> None:
    run_python("""
        import os, torch
        x = torch.ones(3, requires_grad=True, device="fl:1")
        (x + 1).sum().backward()
        pid = os.fork()
        if pid != 0:
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0, status
    """)


def test_fork_before_first_use_works(run_python) -> None:
    run_python("""
        import os, torch, torch_fl
        torch.fl.is_initialized()
        pid = os.fork()
        total = torch.arange(4.0, device="fl:1").sum().item()
        assert total == 6
        if pid != 0:
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0, status
    """)


def test_multiprocessing_fork_and_spawn(run_python, tmp_path) -> None:
    script = tmp_path / "main.py"
    script.write_text("""
import torch, torch.multiprocessing as mp
def work(index, queue):
    try:
        torch.ones(1, device=f"fl:{index}")
        queue.put((index, torch.arange(5.0, device=f"fl:{index}").sum().item()))
    except RuntimeError as error:
        queue.put((index, str(error)))
if __name__ == "__main__":
    torch.ones(1, device="fl:0")
    spawn = mp.get_context("spawn")
    queue = spawn.SimpleQueue()
    workers = [spawn.Process(target=work, args=(i, queue)) for i in range(2)]
    for w in workers: w.start()
    assert sorted(queue.get() for _ in workers) == [(0, 10.0), (1, 10.0)]
    for w in workers: w.join(); assert w.exitcode == 0
    fork = mp.get_context("fork")
    queue = fork.SimpleQueue()
    worker = fork.Process(target=work, args=(1, queue))
    worker.start()
    assert "spawn" in queue.get()[1]
    worker.join()
    assert worker.exitcode == 0
""")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_an_interrupt_ends_work_cleanly() -> None:
    # A shell's background job starts with SIGINT ignored, and Python then leaves it so: ask for the usual handler.
    code = """
import signal, torch
signal.signal(signal.SIGINT, signal.default_int_handler)
x = torch.ones(256, 256, device="fl:1") / 256
try:
    print("ready", flush=True)
    while True:
        x = x @ x
        x.sum().item()
except KeyboardInterrupt:
    pass
print(torch.ones(3, device="fl:1").sum().item(), flush=True)
"""
    for delay in (0.0, 0.05, 0.2):
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0 and out == "3.0\n" and not errors, (process.returncode, out, errors)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, {1, -signal.SIGINT}), (signal.SIGTERM, {-signal.SIGTERM})])
def test_an_interrupt_nobody_catches(number: int, code: set[int]) -> None:
    script = """
import signal, torch
signal.signal(signal.SIGINT, signal.default_int_handler)
m = torch.nn.Linear(64, 64).to("fl:1")
print("ready", flush=True)
while True:
    m(torch.ones(8, 64, device="fl:1")).sum().backward()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode in code, (process.returncode, errors)
    assert "terminate called" not in errors and "Segmentation" not in errors


def in_threads(work, count: int = 4) -> None:
    failures = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


def test_threads_train_at_once() -> None:
    models = [small_model(f"fl:{i % 2}", seed=7) for i in range(4)]
    results: dict[int, list[float]] = {}

    def work(index: int) -> None:
        results[index] = train(models[index], steps=4)

    in_threads(work)
    assert all(results[i] == results[0] for i in range(4))


def test_threads_on_one_stream_and_one_allocator() -> None:
    def work(index: int) -> None:
        for round in range(60):
            size = 100 * (index + 1) + round * 37
            x = torch.full((size,), float(index), device=DEVICE)
            assert (x + round).sum().item() == size * (index + round)

    in_threads(work, 6)


def test_the_current_device_and_stream_are_of_the_thread() -> None:
    torch.fl.set_device(1)
    seen = []
    try:
        in_threads(lambda _: seen.append((torch.fl.current_device(), torch.empty(1, device="fl").device.index)), 1)
    finally:
        torch.fl.set_device(0)
    assert seen == [(0, 0)]


def test_two_processes_train_at_once(run_python) -> None:
    code = (
        "import sys; sys.path.insert(0, %r); from ninguang_faults import *; print(train(small_model('fl:1'), steps=3))"
    )
    code %= os.path.dirname(__file__)
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    results = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert results[0] == results[1] and results[0].startswith("[")


class Squares(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(index)), index * index


@pytest.mark.parametrize("workers", [0, 2])
def test_dataloader_with_workers_and_pinned_memory(workers: int) -> None:
    torch.ones(1, device=DEVICE)  # the chip is in use before the workers are forked
    loader = torch.utils.data.DataLoader(Squares(), batch_size=5, num_workers=workers, pin_memory=True)
    total, squares = 0.0, 0
    for x, y in loader:
        assert x.is_pinned() and y.is_pinned()
        total += x.to(DEVICE, non_blocking=True).sum().item()
        squares += y.to(DEVICE, non_blocking=True).sum().item()
    assert total == 3 * sum(range(24)) and squares == sum(i * i for i in range(24))
