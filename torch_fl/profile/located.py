"""JSON and YAML documents that know the line of each of their parts, so that an error can name it.

Neither json, msgspec nor PyYAML keeps positions of decoded values, and all of them let a repeated key silently win;
both matter for files that people write. `read()` is the entry; validation.py and the loaders use what it returns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, NoReturn

__all__ = ["Document", "Path", "Problem", "Unreadable", "dotted", "read", "shown"]

Path = tuple[str | int, ...]
MAX_BYTES = 8 << 20
MAX_DEPTH = 64
MAX_PARTS = 100_000
_MISSING: Any = object()


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a document."""

    path: Path
    message: str
    line: int | None = None
    value: Any = _MISSING
    allowed: str | None = None

    def text(self, file: str) -> str:
        """Return `file:line: field = value: message; allowed: …`."""
        place = f"{file}:{self.line}" if self.line else file
        subject = dotted(self.path)
        if self.value is not _MISSING and self.path:
            subject += f" = {shown(self.value)}"
        allowed = f"; allowed: {self.allowed}" if self.allowed else ""
        return ": ".join(part for part in (place, subject, self.message + allowed) if part)

    def plain(self) -> dict[str, Any]:
        """Return the problem as JSON data, for `--json`."""
        value = None if self.value is _MISSING else self.value
        return {"line": self.line, "field": dotted(self.path), "value": value, "message": self.message,
                "allowed": self.allowed}


class Unreadable(Exception):
    """The text is not a document at all."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass
class Document:
    """Decoded data with the line of each part, by its path."""

    file: str
    data: Any
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)  # repeated keys

    def line(self, path: Path) -> int | None:
        """Return the line of the part, or of the closest part around it."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path)

    def problem(self, path: Path, message: str, allowed: str | None = None, *, value: Any = _MISSING) -> Problem:
        """Return a Problem at `path` with its line and, unless given, its value filled in."""
        if value is _MISSING:
            value = self.data
            for step in path:
                try:
                    value = value[step]
                except (KeyError, IndexError, TypeError):
                    value = _MISSING
                    break
        return Problem(path, message, self.line(path), value, allowed)


def dotted(path: Path) -> str:
    """Return `native_ops[2].op` for ("native_ops", 2, "op")."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def shown(value: Any) -> str:
    """Return the value as JSON, shortened."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def read(file: str | FilePath, *, other: str = "json") -> Document:
    """Read a JSON or YAML file, told by its suffix; `other` says what one of another suffix is.

    Raises:
        Unreadable: there is no such file, or it is no text, or not well-formed.
    """
    name = str(file)
    try:
        with open(file, "rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise Unreadable(Problem((), f"cannot be read: {error.strerror or error}")) from None
    if len(content) > MAX_BYTES:
        raise Unreadable(Problem((), f"is larger than {MAX_BYTES >> 20} MiB"))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Unreadable(Problem((), "is not UTF-8 text", line)) from None
    kind = {".yaml": "yaml", ".yml": "yaml", ".json": "json"}.get(FilePath(name).suffix, other)
    return parse_yaml(text, name) if kind == "yaml" else parse_json(text, name)


# ---------------------------------------------------------------- JSON


def parse_json(text: str, file: str) -> Document:
    """Decode JSON text.

    Raises:
        Unreadable: the text is not well-formed; the problem names the line.
    """
    return _JsonReader(text, file).document()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


class _JsonReader:
    """Walks containers itself, to note lines; the standard decoder reads strings, numbers and literals."""

    _space = re.compile(r"[ \t\r\n]*")

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._scalar: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder(
            parse_constant=_refuse_constant).raw_decode
        self._document = Document(file, None)
        self._position = 0
        self._line = 1
        self._counted = 0  # lines are counted up to here

    def document(self) -> Document:
        self._skip_space()
        if self._position == len(self._text):
            self._fail("is empty: expected a JSON object")
        self._document.data = self._value((), 0)
        self._skip_space()
        if self._position != len(self._text):
            self._fail(f"unexpected text after the end of the JSON value: {self._next_text()}")
        return self._document

    def _value(self, path: Path, depth: int) -> Any:
        self._document.lines.setdefault(path, self._here())
        if depth > MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH} levels")
        start = self._peek()
        if start == "{":
            return self._object(path, depth)
        if start == "[":
            return self._array(path, depth)
        try:
            value, self._position = self._scalar(self._text, self._position)
        except json.JSONDecodeError as error:
            if start == '"':
                self._fail(f"malformed string: {error.msg}", at=error.pos)
            self._fail(f"expected a value, found {self._next_text()}")
        except ValueError as error:
            self._fail(str(error))
        return value

    def _object(self, path: Path, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        opened = self._here()
        self._position += 1
        self._skip_space()
        if self._take("}"):
            return result
        while True:
            line = self._here()
            if self._peek() != '"':
                self._fail(f"expected a field name in double quotes, found {self._next_text()}")
            try:
                key, self._position = self._scalar(self._text, self._position)
            except json.JSONDecodeError as error:
                self._fail(f"malformed field name: {error.msg}", at=error.pos)
            member = (*path, key)
            if key in result:
                self._document.problems.append(
                    Problem(member, f"appears twice; first on line {self._document.lines[member]}", line))
            self._document.lines[member] = line
            self._skip_space()
            if not self._take(":"):
                self._fail(f'expected ":" after "{key}", found {self._next_text()}')
            self._skip_space()
            result[key] = self._value(member, depth + 1)
            if self._end_or_comma("}", "object", opened):
                return result

    def _array(self, path: Path, depth: int) -> list[Any]:
        result: list[Any] = []
        opened = self._here()
        self._position += 1
        self._skip_space()
        if self._take("]"):
            return result
        while True:
            result.append(self._value((*path, len(result)), depth + 1))
            if self._end_or_comma("]", "array", opened):
                return result

    def _end_or_comma(self, end: str, what: str, opened: int) -> bool:
        self._skip_space()
        if self._take(end):
            return True
        if not self._peek():
            self._fail(f'the {what} opened on line {opened} is never closed: expected "," or "{end}"')
        if not self._take(","):
            self._fail(f'expected "," or "{end}", found {self._next_text()}')
        self._skip_space()
        if self._peek() == end:
            self._fail(f'a comma before "{end}" is not JSON; remove it')
        return False

    def _peek(self) -> str:
        return self._text[self._position:self._position + 1]

    def _take(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._position += 1
        return True

    def _skip_space(self) -> None:
        match = self._space.match(self._text, self._position)
        self._position = match.end() if match else self._position

    def _here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._position)
        self._counted = self._position
        return self._line

    def _next_text(self) -> str:
        rest = self._text[self._position:self._position + 20].split("\n", 1)[0]
        return f"`{rest}`" if rest else "the end of the line" if self._peek() else "the end of the file"

    def _fail(self, message: str, at: int | None = None) -> NoReturn:
        at = self._position if at is None else at
        line = self._text.count("\n", 0, at) + 1
        column = at - self._text.rfind("\n", 0, at)
        raise Unreadable(Problem((), f"not valid JSON at column {column}: {message}", line))


# ---------------------------------------------------------------- YAML


def parse_yaml(text: str, file: str) -> Document:
    """Decode YAML text of one document with plain types only.

    Raises:
        Unreadable: the text is not well-formed; the problem names the line.
    """
    import yaml

    document = Document(file, None, {(): 1})
    try:
        loader = yaml.SafeLoader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Unreadable(Problem((), f"not valid YAML: {error.reason}", line)) from None
    try:
        node = loader.get_single_node()
        if node is not None:
            document.data = _yaml_value(loader, node, (), document, 0)
    except RecursionError:
        raise Unreadable(Problem((), f"nested deeper than {MAX_DEPTH} levels")) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = ", ".join(part for part in (error.context, error.problem) if part)
        raise Unreadable(Problem((), f"not valid YAML: {words}", mark.line + 1 if mark else None)) from None
    except yaml.YAMLError as error:
        raise Unreadable(Problem((), f"not valid YAML: {error}")) from None
    finally:
        loader.dispose()
    return document


def _yaml_value(loader: Any, node: Any, path: Path, document: Document, depth: int) -> Any:
    import yaml

    line = node.start_mark.line + 1
    document.lines.setdefault(path, line)
    if depth > MAX_DEPTH:
        raise Unreadable(Problem(path[:3], f"nested deeper than {MAX_DEPTH} levels", line))
    if len(document.lines) > MAX_PARTS:  # a few aliases of aliases can stand for billions of parts
        raise Unreadable(Problem(path[:3], f"has more than {MAX_PARTS} parts", line))
    if isinstance(node, yaml.SequenceNode):
        return [_yaml_value(loader, item, (*path, index), document, depth + 1) for index, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        try:
            return loader.construct_object(node)
        except ValueError as error:  # 2020-99-99 is a malformed date
            raise Unreadable(Problem(path, f"not valid YAML: {error}", line)) from None
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key_line = key_node.start_mark.line + 1
        key = key_node.value
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
            raise Unreadable(Problem(path, "a field name must be plain text", key_line))
        member = (*path, key)
        if key in result:
            document.problems.append(
                Problem(member, f"appears twice; first on line {document.lines[member]}", key_line))
        document.lines[member] = key_line
        result[key] = _yaml_value(loader, value_node, member, document, depth + 1)
    return result
