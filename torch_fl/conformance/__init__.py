"""The suite that certifies an adapter: `flagos-torch-fl conform`. Runs without pytest, on any machine with the chip.

case.py     what a case is, and how cases are collected
memory.py, stream.py, event.py, error.py, kernel.py     the cases, one file for each tag
samples_*.py, philox.py     operands for each UniOp, and what random numbers must come out
expectation.py     conformance.yaml: what a chip does not support, and what is known to fail
worker.py   runs cases in a child process, so that a crash or a hang is a result and not the end
command.py  the command line and the table
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `conform` with its own options; returns the exit code."""
    from torch_fl.conformance.command import main as run

    return run(arguments)
