"""The command `flagos-torch-fl` (short: `torch-fl`). typer and rich are imported only when it runs.

Exit codes
    0  done; the answer is yes
    1  the command ran and the answer is no: an invalid profile, a broken adapter, no such device
    2  the command line is wrong: unknown option, missing argument
    3  this installation lacks a part that the command needs
    130  interrupted
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    from torch_fl.cli.app import run

    return run(arguments)
