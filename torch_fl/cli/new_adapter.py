"""new-adapter: a folder that builds at once and works as a chip of host memory, for a vendor to make its own.

The files are in skeleton/, with @NAME@ and the like where the chip's name goes; the suffix .in keeps
other tools from reading them.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import typer

from torch_fl.cli.output import Refused, print_json

__all__ = ["add_to", "create"]

SKELETON = Path(__file__).resolve().parent / "skeleton"
FILES = ("adapter.c", "profile.json", "Makefile", "CMakeLists.txt", "pyproject.toml", "README.md")


def add_to(app: typer.Typer) -> None:
    """Add this file's command."""
    app.command("new-adapter")(new_adapter)


def new_adapter(
    name: str = typer.Argument(..., help="The chip's name: lower-case letters, digits, - and _."),
    output: Path = typer.Option(None, "--output", "-o", help="Folder to make; without it, NAME."),
    as_json: bool = typer.Option(False, "--json", help="Answer in JSON."),
) -> None:
    """Write the skeleton of an adapter."""
    folder = create(name, output or Path(name))
    if as_json:
        print_json({"folder": str(folder), "files": list(FILES)})
    else:
        print(f"wrote {folder}/: {', '.join(FILES)}\nnext: cd {folder} && make && flagos-torch-fl register-device "
              "--profile profile.json   (README.md has the whole way)")


def create(name: str, folder: Path) -> Path:
    """Write the skeleton of chip `name` to a new folder.

    Raises:
        Refused: the name is not usable, or the folder is there and not empty.
        OSError: the folder cannot be written; what was written of it is removed.
    """
    from torch_fl.profile.adapters import include_dir
    from torch_fl.profile.contradictions import RESERVED_NAMES
    from torch_fl.profile.schema import SCHEMA_FILE

    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,63}", name) or name in RESERVED_NAMES:
        raise Refused(f"{name!r} cannot be a chip's name; allowed: lower-case letters, digits, - and _, starting with "
                      f"a letter, and none of {', '.join(RESERVED_NAMES)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{folder} is there already and not an empty folder; choose another with --output")
    made = not folder.exists()
    words = {
        "NAME": name, "TITLE": name.replace("_", " ").replace("-", " ").title(),
        "MODULE": "fl_adapter_" + name.replace("-", "_"), "DISTRIBUTION": "fl-adapter-" + name.replace("_", "-"),
        "INCLUDE": str(include_dir()), "SCHEMA": SCHEMA_FILE.as_uri(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for file in FILES:
            text = (SKELETON / f"{file}.in").read_text(encoding="utf-8")
            (folder / file).write_text(re.sub(r"@([A-Z]+)@", lambda m: words[m[1]], text), encoding="utf-8")
    except OSError:
        if made:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder
