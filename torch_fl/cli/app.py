"""Puts the commands together and turns every way to fail into a message and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from torch_fl._errors import FlError
from torch_fl.cli import device_commands, diagnose, new_adapter, op_commands, profile_commands
from torch_fl.cli.output import EXIT_MISSING, EXIT_NO, EXIT_OK, MissingPart, print_json

__all__ = ["app", "run"]

app = typer.Typer(
    name="flagos-torch-fl", no_args_is_help=True, add_completion=True, rich_markup_mode=None,
    pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]},
    help="PyTorch on any AI chip: profiles, devices, operators, adapters. "
    "Exit codes: 0 yes, 1 no, 2 wrong command line, 3 a part of the installation is missing.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"flagos-torch-fl {device_commands.version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


for _module in (profile_commands, device_commands, diagnose, op_commands, new_adapter):
    _module.add_to(app)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code and never raises for what a user can do wrong."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(words, as_json="--json" in words)
    except (BrokenPipeError, SystemExit):  # typer makes a SystemExit of a broken pipe, and of nothing else here
        # `| head` has read enough; what is still buffered must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_OK


def _run(words: list[str], as_json: bool) -> int:
    try:
        code = app(words, standalone_mode=False, prog_name="flagos-torch-fl")
        sys.stdout.flush()
        return code if isinstance(code, int) else EXIT_OK
    except MissingPart as error:
        return _failed(error, EXIT_MISSING, as_json)
    except BrokenPipeError:
        raise
    except (FlError, OSError) as error:
        return _failed(error, EXIT_NO, as_json)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        error.show()  # a typer exception: the usage line and what is wrong
        return int(getattr(error, "exit_code", 2))


def _failed(error: Exception, code: int, as_json: bool) -> int:
    text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    if as_json:
        answer: dict[str, Any] = {"error": text, "kind": type(error).__name__}
        if hasattr(error, "problems"):
            answer["file"] = error.file
            answer["problems"] = [problem.plain() for problem in error.problems]
        print_json(answer)
    else:
        print(f"error: {text}", file=sys.stderr)
    return code
