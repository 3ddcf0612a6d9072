"""How commands answer: as JSON for programs, as text and tables for people; and how they fail.

A command returns its answer; errors are exceptions that app.py turns into text and an exit code. rich is imported only
when a table is printed to a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from torch_fl._errors import FlError

__all__ = ["EXIT_MISSING", "EXIT_NO", "EXIT_OK", "EXIT_USAGE", "MissingPart", "Refused", "print_json", "print_table"]

EXIT_OK, EXIT_NO, EXIT_USAGE, EXIT_MISSING = 0, 1, 2, 3


class MissingPart(Exception):
    """This installation lacks a part that the command needs; the text says which and what to do."""


class Refused(FlError):
    """The command ran and the answer is no."""


def print_json(value: Any) -> None:
    """Print the answer for a program."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    """Print rows under column names: a rich table on a terminal, aligned text elsewhere."""
    cells = [[_cell(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(columns, cells, title)
        return
    if title:
        print(title)
    widths = [max(len(row[i]) for row in [list(columns), *cells]) for i in range(len(columns))]
    for row in [list(columns), *cells]:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _print_rich(columns: Sequence[str], cells: list[list[str]], title: str | None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title, box=SIMPLE_HEAD, title_justify="left")
    for row in cells:
        table.add_row(*(Text(text) for text in row))
    Console().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    return str(value)
