"""The only reader of environment variables; each is declared once, in VARIABLES, which also makes the docs page.

    python -m torch_fl._env --write     writes docs/environment.md
    python -m torch_fl._env --check     exit 1 if the page is stale

A value is read when it is asked for, never at import, so a bad one cannot break `import torch`.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_fl._errors import ConfigError

__all__ = ["VARIABLES", "Variable", "external", "get", "is_set", "raw", "report", "unknown"]

LOG_LEVELS = ("debug", "info", "warning", "error", "off")
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


class _Bad(ValueError):
    """A value that does not parse; the text says what is allowed."""


def _parse_bool(text: str) -> bool:
    value = text.strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise _Bad(f"{'/'.join(_TRUE)} or {'/'.join(_FALSE)}")


def _parse_int(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise _Bad(f"a whole number from {low} to {high}")
        return value

    return parse


def _parse_fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise _Bad("a number from 0 to 1")
    return value


def _parse_bytes(text: str) -> int:
    match = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)(i?b)?\s*", text.lower())
    if not match:
        raise _Bad("a number of bytes, as 1048576, 512k, 64m or 2g")
    value = int(match[1]) << (10 * " kmgt".index(match[2] or " "))
    if value > 1 << 62:
        raise _Bad("at most 2^62 bytes")
    return value


def _parse_choice(*allowed: str, **aliases: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        value = text.strip().lower()
        value = aliases.get(value, value)
        if value not in allowed:
            raise _Bad(" or ".join((", ".join(allowed[:-1]), allowed[-1])))
        return value

    return parse


def _parse_device_name(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", text):
        raise _Bad("lower-case letters, digits and _, starting with a letter")
    if text in ("cpu", "cuda", "xpu", "mps", "meta", "hip", "xla", "privateuseone"):
        raise _Bad("a name that PyTorch does not use itself")
    return text


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _parse_paths(text: str) -> tuple[Path, ...]:
    return tuple(_parse_path(item) for item in text.split(os.pathsep) if item.strip())


def _parse_path(text: str) -> Path:
    return Path(os.path.expanduser(text))  # unlike Path.expanduser, does not fail for a user without a home


@dataclass(frozen=True)
class Variable:
    """One environment variable.

    Attributes:
        kind: the type in words, for the docs page.
        default: what get() returns when the variable is not set. None: decided elsewhere, `doc` says where.
        strict: a bad value raises; otherwise it is warned of once and the default is used.
    """

    name: str
    kind: str
    parse: Callable[[str], Any]
    default: Any
    doc: str
    alias: str | None = None
    strict: bool = True


VARIABLES: dict[str, Variable] = {
    variable.name: variable
    for variable in (
        Variable("TORCH_FL_HOME", "path", _parse_path, Path("~/.torch_fl"),
                 "Folder of registered profiles, the configuration file and caches."),
        Variable("TORCH_FL_CACHE_DIR", "path", _parse_path, None,
                 "Folder in which adapters keep what they have compiled, each in a folder of its own; may be deleted "
                 "at any time. Not set: `cache` in TORCH_FL_HOME."),
        Variable("TORCH_FL_CONFIG", "path", _parse_path, None,
                 "Configuration file. Not set: `config.yaml` in TORCH_FL_HOME, if there is one."),
        Variable("TORCH_FL_DEVICE_NAME", "name", _parse_device_name, "fl",
                 "Name of the PyTorch device, as in `device=\"fl:0\"`. PyTorch lets it be chosen once per process."),
        Variable("TORCH_FL_CHIPS", "list of names", _parse_list, None,
                 "Chips to open, in this order. Not set: `devices` of the configuration file, else every registered "
                 "profile and installed adapter, else the bundled reference chip. Chips whose profile says "
                 "`on_request`, as the other bundled ones do, are opened only when they are registered or named.",
                 alias="FLAGOS_DEVICE_BACKEND"),
        Variable("TORCH_FL_VISIBLE_DEVICES", "list of selectors", _parse_list, None,
                 "Devices to show, each a flat index (`0`), a chip (`acme`), `chip:index` or a uuid. Empty: none."),
        Variable("TORCH_FL_ADAPTER_PATH", "list of paths", _parse_paths, (),
                 "Adapter libraries, or folders with a library and `profile.json`, beside the installed ones. "
                 "Separated as in PATH."),
        Variable("TORCH_FL_LOG_LEVEL", "choice", _parse_choice(*LOG_LEVELS, warn="warning", none="off"), None,
                 f"One of {', '.join(LOG_LEVELS)}. Not set: `logging.level` of the configuration file, else warning.",
                 alias="FLAGOS_LOG_LEVEL", strict=False),
        Variable("TORCH_FL_LOG_PATH", "path", _parse_path, None,
                 "File that log lines are appended to. Not set: `logging.path` of the configuration file, else "
                 "standard error."),
        Variable("TORCH_FL_VERBOSE", "number", _parse_int(0, 3), 0,
                 "1: prints the routing summary at exit. 2: also logs each segment that the allocator takes or gives "
                 "back, and each time it runs out of memory.", strict=False),
        Variable("TORCH_FL_SYNC_DEBUG", "switch", _parse_bool, False,
                 "Synchronises after every kernel and copy, so that a failure names the operator that caused it.",
                 strict=False),
        Variable("TORCH_FL_RACE_CHECK", "choice",
                 _parse_choice("off", "warn", "raise", **dict.fromkeys(_FALSE, "off"), **dict.fromkeys(_TRUE, "warn"),
                               **{"2": "raise"}), "off",
                 "`1` or `warn`: warns of two accesses to the same memory that no event orders, naming both "
                 "operations. `2` or `raise`: torch_fl.RaceError, a RuntimeError, at the second of them. Slow; see "
                 "docs/streams.md.",
                 strict=False),
        Variable("TORCH_FL_CPU_FALLBACK", "switch", _parse_bool, None,
                 "Whether operators may run on the CPU when no other tier can. Not set: `fallback.enable_cpu_fallback` "
                 "of the configuration file, else on."),
        Variable("TORCH_FL_GENERIC_KERNEL", "switch", _parse_bool, None,
                 "Whether kernel libraries may be used. Not set: `fallback.enable_generic_kernel` of the configuration "
                 "file, else on."),
        Variable("TORCH_FL_INTEGRATIONS", "list of names", _parse_list, None,
                 "Patches of other software to apply, `none` for none. Not set: all of torch_fl/integrations."),
        Variable("TORCH_FL_ALLOC_MAX_SPLIT_BYTES", "bytes", _parse_bytes, None,
                 "Cached blocks larger than this are not split. Not set: `memory.max_split_bytes` of the configuration "
                 "file, else no limit."),
        Variable("TORCH_FL_ALLOC_GC_THRESHOLD", "fraction", _parse_fraction, None,
                 "Share of the device's memory from which unused cached blocks are given back; 0 is off. Not set: "
                 "`memory.garbage_collection_threshold` of the configuration file, else off."),
        Variable("TORCH_FL_ALLOC_EXPANDABLE_SEGMENTS", "switch", _parse_bool, None,
                 "Whether the allocator's segments grow and shrink page by page, on chips whose adapter can map memory "
                 "into address ranges. Not set: `memory.expandable_segments` of the configuration file, else on."),
    )
}
_BY_ANY_NAME = {name: variable for variable in VARIABLES.values() for name in (variable.name, variable.alias) if name}
_warned: set[str] = set()


def raw(name: str) -> tuple[str, str] | None:
    """Return (variable that is set, its text), looking at the name first and then at its alias; None if neither."""
    variable = VARIABLES[name]
    for candidate in (variable.name, variable.alias):
        if candidate and candidate in os.environ:
            return candidate, os.environ[candidate]
    return None


def external(name: str, default: str) -> str:
    """Return the text of a variable that is not ours (torchrun's, say)."""
    return os.environ.get(name, default)


def is_set(name: str) -> bool:
    """Tell whether the variable, or its alias, is set."""
    return raw(name) is not None


def get(name: str) -> Any:
    """Return the variable's value, in its declared type.

    Raises:
        ConfigError: the value is not one of the allowed ones (only a warning for variables that cannot do harm).
    """
    variable = VARIABLES[name]
    found = raw(name)
    if found is None:
        return _parse_path(str(variable.default)) if isinstance(variable.default, Path) else variable.default
    set_name, text = found
    try:
        if variable.kind not in ("list of selectors", "list of paths") and not text.strip():
            return variable.default  # `VAR= command` is how a shell user unsets one
        return variable.parse(text)
    except _Bad as allowed:
        message = f"environment variable {set_name}={text!r} is not valid; allowed: {allowed}"
        if variable.strict:
            raise ConfigError(message) from None
        if message not in _warned:
            _warned.add(message)
            logging.getLogger("torch_fl.env").warning("%s; using %s", message, _shown(variable.default))
        return variable.default


def unknown() -> dict[str, str | None]:
    """Return the TORCH_FL_* variables that are set but not declared, each with the closest declared name or None."""
    result = {}
    for name in sorted(os.environ):
        if name.startswith("TORCH_FL_") and name not in _BY_ANY_NAME:
            close = difflib.get_close_matches(name, VARIABLES, n=1)
            result[name] = close[0] if close else None
    return result


def report() -> list[dict[str, Any]]:
    """Return every variable with its value, who set it and what is wrong with it, for `flagos-torch-fl env`."""
    rows = []
    for variable in VARIABLES.values():
        found = raw(variable.name)
        row = {"name": variable.name, "set_by": found[0] if found else None, "text": found[1] if found else None}
        try:
            if found and found[1].strip():
                variable.parse(found[1])
            row["value"], row["error"] = _plain(get(variable.name)), None
        except _Bad as allowed:
            row["value"], row["error"] = _plain(variable.default), f"not valid; allowed: {allowed}"
        except ConfigError as error:
            row["value"], row["error"] = _plain(variable.default), str(error)
        rows.append(row)
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "not set"
    return {True: "1", False: "0"}[value] if isinstance(value, bool) else str(value)


def render() -> str:
    """Return the text of docs/environment.md."""
    lines = [
        "# Environment variables",
        "",
        "<!-- Generated by `python -m torch_fl._env --write` from torch_fl/_env.py. Do not edit. -->",
        "",
        "`flagos-torch-fl env` prints those that are set, and says which values are not valid. A switch takes "
        f"{'/'.join(_TRUE)} or {'/'.join(_FALSE)}; bytes may end in k, m, g or t.",
        "",
        "| variable | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for variable in VARIABLES.values():
        alias = f" Also read as `{variable.alias}`." if variable.alias else ""
        bad = "" if variable.strict else " A value that is not valid is warned of and not used."
        default = "–" if variable.default in (None, ()) else f"`{_shown(variable.default)}`"
        lines.append(f"| `{variable.name}` | {variable.kind} | {default} | {variable.doc}{alias}{bad} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write or check docs/environment.md; returns the exit code."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m torch_fl._env", description="Makes docs/environment.md.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the page")
    action.add_argument("--check", action="store_true", help="exit 1 if the page is stale")
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent.parent / "docs/environment.md")
    options = parser.parse_args(arguments)
    if options.write:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(render(), encoding="utf-8")
        return 0
    if options.output.exists() and options.output.read_text(encoding="utf-8") == render():
        return 0
    print(f"{options.output} is stale: run python -m torch_fl._env --write", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
