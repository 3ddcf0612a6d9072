"""Checks decoded data against a msgspec type and finds everything that is wrong with it, not only the first thing.

msgspec itself does the conversion; this walk runs only when it refuses, to say which field on which line has which
value, and what is allowed there.
"""

from __future__ import annotations

import difflib
from typing import Any, TypeVar

import msgspec

from torch_fl.profile.located import Document, Path, Problem

__all__ = ["convert", "suggestion"]

T = TypeVar("T")


def convert(document: Document, target: type[T]) -> tuple[T | None, list[Problem]]:
    """Convert the document's data to `target`.

    Returns:
        The object and no problems, or None and at least one problem.
    """
    problems = list(document.problems)
    result = None
    try:
        result = msgspec.convert(document.data, target)
    except (msgspec.ValidationError, RecursionError) as error:
        found = _Walk(document).check(document.data, (), target)
        problems += found or [Problem((), str(error), document.line(()))]
    return (None, problems) if problems else (result, [])


def suggestion(name: str, known: Any) -> str:
    """Return ` — did you mean "x"?`, or nothing if no known name is close."""
    close = difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""


class _Walk:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._problems: list[Problem] = []

    def check(self, value: Any, path: Path, target: Any) -> list[Problem]:
        import msgspec.inspect

        self._visit(value, path, msgspec.inspect.type_info(target))
        return self._problems

    def _add(self, path: Path, message: str, allowed: str | None = None) -> None:
        self._problems.append(self._document.problem(path, message, allowed))

    def _visit(self, value: Any, path: Path, kind: Any) -> None:
        inspect = msgspec.inspect
        kind = _plain(kind)
        if isinstance(kind, inspect.UnionType):
            options = [_plain(option) for option in kind.types if not isinstance(option, inspect.NoneType)]
            if value is None and len(options) < len(kind.types):
                return None
            if len(options) > 1:
                return self._one_of(value, path, options)
            kind = options[0]
        if isinstance(kind, inspect.StructType):
            self._struct(value, path, kind)
        elif isinstance(kind, inspect.ListType):
            if not isinstance(value, list):
                return self._add(path, f"expected a list, got {_kind(value)}", _allowed(kind))
            if len(value) < (kind.min_length or 0):
                self._add(path, "too short", f"at least {kind.min_length} of {_allowed(kind.item_type)}")
            for index, item in enumerate(value):
                self._visit(item, (*path, index), kind.item_type)
        elif isinstance(kind, inspect.DictType):
            if not isinstance(value, dict):
                return self._add(path, f"expected an object with fields, got {_kind(value)}")
            for key, item in value.items():
                self._visit(item, (*path, key), kind.value_type)
        elif isinstance(kind, inspect.LiteralType):
            if value not in kind.values or isinstance(value, bool):
                close = suggestion(value, kind.values) if isinstance(value, str) else ""
                self._add(path, f"not one of the allowed values{close}", _allowed(kind))
        elif not _matches(value, kind):
            self._add(path, f"expected {_NAMES[type(kind).__name__]}, got {_kind(value)}", _allowed(kind))
        elif not _in_bounds(value, kind):
            self._add(path, "out of range" if not isinstance(value, str) else "malformed", _allowed(kind))
        return None

    def _one_of(self, value: Any, path: Path, options: list[Any]) -> None:
        """Plain types only: a text, a number, true or false."""
        if not any(type(option).__name__ in _NAMES and _matches(value, option) and not (
                isinstance(value, (dict, list)) or value is None) for option in options):
            kinds = sorted({type(option).__name__ for option in options} & set(_NAMES))
            names = [_NAMES[name] for name in kinds if name != "IntType" or "FloatType" not in kinds]
            self._add(path, f"expected {', or '.join(names)}, got {_kind(value)}")

    def _struct(self, value: Any, path: Path, kind: Any) -> None:
        names = {field.encode_name: field for field in kind.fields}
        if not isinstance(value, dict):
            return self._add(path, f"expected an object with fields, got {_kind(value)}", ", ".join(names))
        for key, item in value.items():
            if key not in names:
                self._add((*path, key), f"unknown field{suggestion(key, names)}", ", ".join(names))
            else:
                self._visit(item, (*path, key), names[key].type)
        for name, field in names.items():
            if field.required and name not in value:
                line = self._document.line(path)
                self._problems.append(Problem((*path, name), "required field is missing", line,
                                              allowed=_allowed(_plain(field.type))))
        return None


_NAMES = {"IntType": "a whole number", "FloatType": "a number", "StrType": "a text", "BoolType": "true or false"}


def _plain(kind: Any) -> Any:
    return kind.type if isinstance(kind, msgspec.inspect.Metadata) else kind


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a whole number",
             float: "a number", type(None): "null"}
    return names.get(type(value), f"a {type(value).__name__}")


def _matches(value: Any, kind: Any) -> bool:
    name = type(kind).__name__
    if name == "IntType":
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "FloatType":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, {"StrType": str, "BoolType": bool}.get(name, object))


def _in_bounds(value: Any, kind: Any) -> bool:
    import re

    if isinstance(value, str):
        return (not kind.pattern or re.search(kind.pattern, value) is not None) and (
            kind.min_length is None or len(value) >= kind.min_length) and (
            kind.max_length is None or len(value) <= kind.max_length)
    if isinstance(value, bool):
        return True
    return (kind.ge is None or value >= kind.ge) and (kind.gt is None or value > kind.gt) and (
        kind.le is None or value <= kind.le) and (kind.lt is None or value < kind.lt)


def _allowed(kind: Any) -> str | None:
    kind = _plain(kind)
    name = type(kind).__name__
    if name == "UnionType":
        return _allowed(kind.types[0])
    if name == "LiteralType":
        return ", ".join(str(value) for value in kind.values)
    if name == "ListType":
        inner = _allowed(kind.item_type)
        return f"a list of {inner}" if inner else "a list"
    if name == "StructType":
        return "an object with " + ", ".join(field.encode_name for field in kind.fields)
    if name == "BoolType":
        return "true, false"
    if name == "StrType":
        return f"a text matching {kind.pattern}" if kind.pattern else "a text"
    if name in ("IntType", "FloatType"):
        low = kind.ge if kind.ge is not None else kind.gt
        high = kind.le if kind.le is not None else kind.lt
        noun = _NAMES[name]
        if low is None and high is None:
            return noun
        above = f" {'from' if kind.ge is not None else 'above'} {low}" if low is not None else ""
        return f"{noun}{above}{f' up to {high}' if high is not None else ''}"
    return None
