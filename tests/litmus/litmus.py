"""The frame of the litmus programs: what a program gets, how its results are checked, how a run is delayed.

A litmus program is right only if a few waits happen. The reference chip's delays stretch queued work, on each stream by
itself, so that a wait that is missing shows as a wrong value. Every check is exact.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

import torch_fl

ONE, TWO = "fl:1", "fl:0"  # not the current device first
FOLDER = Path(__file__).resolve().parents[2] / "build" / "litmus"
DELAY_US = 3000  # most that one command is held up

PROGRAMS: dict[str, Program] = {}


class Wrong(AssertionError):
    """A value that differs from the CPU's."""


class Run:
    """One run of a program: values of its own, so that what an earlier run left in memory is wrong for this one."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.kept: list[torch.Tensor] = []  # lives as long as the run
        self._generator = torch.Generator().manual_seed(seed)

    def values(self, *shape: int, high: int = 64) -> torch.Tensor:
        """Whole numbers from 1, float32, on the CPU: sums and products of a few of them are exact."""
        return torch.randint(1, high, shape, generator=self._generator).float()

    def on(self, stream: torch.Stream, values: torch.Tensor) -> torch.Tensor:
        """The values on the stream's device, copied there by the stream; their pinned buffer is not used again."""
        self.kept.append(values.pin_memory())
        with torch.fl.stream(stream):
            return self.kept[-1].to(stream.device, non_blocking=True)

    def overwrite(self, stream: torch.Stream, size: int, count: int = 4) -> None:
        """Takes memory of the stream for other values: whoever reads what lay there before is too late."""
        with torch.fl.stream(stream):
            for _ in range(count):
                self.kept.append(torch.full((size,), -float(self.seed % 1000 + 1), device=stream.device))

    @staticmethod
    def check(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
        """Compares host memory, bit for bit."""
        assert actual.device.type == "cpu" and expected.device.type == "cpu", what
        if actual.shape == expected.shape and torch.equal(actual, expected):
            return
        differ = "shapes" if actual.shape != expected.shape else int((actual != expected).sum())
        raise Wrong(f"{what}: {differ} of {expected.numel()} values differ")


@dataclass(frozen=True)
class Program:
    """A litmus program and how its mutants are made."""

    name: str
    body: Callable[[Run], None]
    unified: bool  # needs memory that the host sees (NINGUANG_UNIFIED=1)
    together: bool  # several threads: the order of waits varies, so those of one line are removed together


def litmus(*, unified: bool = False, together: bool = False) -> Callable[[Callable[[Run], None]], Callable]:
    """Registers a program under its function's name."""

    def register(body: Callable[[Run], None]) -> Callable[[Run], None]:
        PROGRAMS[body.__name__] = Program(body.__name__, body, unified, together)
        return body

    return register


def programs() -> dict[str, Program]:
    """All programs, by name."""
    for path in sorted(Path(__file__).parent.glob("programs_*.py")):
        importlib.import_module(path.stem)
    return PROGRAMS


def build_library(source: Path, target: Path, *flags: str) -> Path:
    """Compiles an adapter in C; at once for other processes that do the same."""
    from torch_fl.profile.adapters import include_dir

    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_suffix(f".{os.getpid()}")
    command = ["cc", "-std=c11", "-O1", "-shared", "-fPIC", "-D_POSIX_C_SOURCE=200809L", f"-I{include_dir()}", *flags]
    subprocess.run([*command, str(source), "-o", str(half), "-lm", "-ldl", "-pthread"], check=True)
    half.replace(target)
    return target


@cache
def other_chip() -> torch.device:
    """A chip of another adapter, without streams of its own: its calls are done when they return."""
    source = Path(__file__).parents[1] / "device" / "adapters" / "constrained.c"
    library = build_library(source, FOLDER / "libfl_other.so", "-DCHIP=other", "-DSTRIDED_COPY")
    with warnings.catch_warnings():  # that backward() may have come before; no program trains on it
        warnings.simplefilter("ignore", RuntimeWarning)
        (device,) = torch_fl.register_device(str(library))
    torch_fl.unregister_alias("other")
    return device


class Delays:
    """Delays of the reference chip, by the very library that the adapter has opened."""

    def __init__(self) -> None:
        torch.fl.init()
        already_open = 4  # RTLD_NOLOAD
        # Programs mix streams and parameters as they like.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        self._sdk = ctypes.CDLL("libninguang.so", mode=os.RTLD_NOW | already_open)

    def arm(self, seed: int) -> None:
        """Delays by a seed; every fourth spares copies, so that the short cut for small ones on idle streams is taken.

        By the ABI's rules, copies into pageable memory need not wait. Here they do not, so that the host's waits count.
        """
        kinds = ("delay_kernel", "delay_fill") if seed % 4 == 3 else ("delay",)
        faults = [f"{kind}:{DELAY_US}:{seed}" for kind in kinds] + ["early_copy:1:every"]
        assert self._sdk.ngFaultSet(",".join(faults).encode()) == 0

    def disarm(self) -> None:
        assert self._sdk.ngFaultSet(None) == 0


def settle() -> None:
    """Waits for everything, so that what is late arrives. No program depends on it: its waits are never removed."""
    for index in range(torch.fl.device_count()):
        torch.fl.synchronize(index)


def tidy() -> None:
    """Gives all cached memory back. Its waits are never removed either."""
    settle()
    torch.fl.empty_cache()


def run(program: Program, delays: Delays, seed: int, around: AbstractContextManager | None = None) -> None:
    """Runs a program once under the delays of a seed; its body, and nothing else, within `around`.

    Raises:
        Wrong: a value differs from the CPU's.
    """
    delays.arm(seed)
    try:
        with around or nullcontext():
            program.body(Run(seed))
    finally:
        delays.disarm()
        settle()
