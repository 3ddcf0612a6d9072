"""The only reader of uniops/uniops.yaml (and of uniops/composites.yaml).

Every generator starts from `load()`, which checks the lists and fills in the defaults that the yaml leaves to the
category (unary: self -> out, and so on). Knows no PyTorch: signatures are matched with the installed torch elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
UNIOPS_YAML = ROOT / "uniops" / "uniops.yaml"
COMPOSITES_YAML = ROOT / "uniops" / "composites.yaml"

# Operands of a category where an entry names none; a category without a default must spell them out.
DEFAULT_INPUTS = {"unary": ("self",), "binary": ("self", "other"), "reduction": ("self",), "scan": ("self",)}
DEFAULT_OUTPUTS = {category: ("out",) for category in ("unary", "binary", "reduction", "scan", "creation")}
FIELDS = ("id", "inputs", "outputs", "attrs", "aten", "by_hand", "out", "note")
OUT_TYPES = ("bool", "int64", "any")

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_OPERAND = re.compile(r"[A-Za-z][A-Za-z0-9_]*[?*]?")
_OVERLOAD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")


class UniOpsError(ValueError):
    """The list is not well-formed."""


@dataclass(frozen=True)
class UniOp:
    """One hardware-neutral operator. Operand names end in `?` (may be absent) or `*` (repeats)."""

    name: str
    id: int
    category: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: tuple[str, ...] = ()
    aten: tuple[str, ...] = ()  # overloads whose wrappers are generated
    by_hand: tuple[str, ...] = ()  # overloads lowered in csrc/bridge/ops/
    out: str | None = None  # output type where it is not the computing type
    note: str = ""

    @property
    def overloads(self) -> tuple[str, ...]:
        """All ATen overloads that stand on this UniOp."""
        return self.aten + self.by_hand


@dataclass(frozen=True)
class Composites:
    """ATen names that are not in uniops.yaml, and the UniOps that they stand on."""

    composites: dict[str, tuple[str, ...]]
    backward: dict[str, tuple[str, ...]]  # ATen base name -> UniOps of its gradient that the naming rule does not find
    views: tuple[str, ...]  # need no kernel


def load(path: Path = UNIOPS_YAML) -> list[UniOp]:
    """Read and check the list.

    Returns:
        All UniOps in the order of the file.

    Raises:
        UniOpsError: an entry is not well-formed, or a name, an id or a generated overload appears twice.
    """
    document = _read(path)
    ops = [_entry(category, name, fields) for category, entries in document.items()
           for name, fields in _mapping(entries, category).items()]
    _check_unique(ops)
    return ops


def load_composites(ops: list[UniOp], path: Path = COMPOSITES_YAML) -> Composites:
    """Read composites.yaml and check that it names only UniOps of `ops`."""
    document = _read(path)
    known = {op.name for op in ops}
    sections = {}
    for section in ("composites", "backward"):
        entries = _mapping(document.get(section, {}), section)
        for name, stands_on in entries.items():
            unknown = set(_strings(stands_on, f"{section}.{name}")) - known
            if unknown:
                raise UniOpsError(f"{path.name}: {section}.{name} names no UniOp: {', '.join(sorted(unknown))}")
        sections[section] = {name: tuple(stands_on) for name, stands_on in entries.items()}
    extra = set(document) - {"composites", "backward", "views"}
    if extra:
        raise UniOpsError(f"{path.name}: unknown section {', '.join(sorted(extra))}")
    return Composites(sections["composites"], sections["backward"], _strings(document.get("views", []), "views"))


def base_name(overload: str) -> str:
    """Return the name users know an overload by: `relu_` and `relu.out` are both `relu`."""
    name = overload.split(".", 1)[0]
    return name if name.endswith("__") or not name.endswith("_") else name[:-1]


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML lets a later key silently replace an earlier one; a list of permanent ids must not."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise UniOpsError(f"line {node.start_mark.line + 1}: listed twice: {', '.join(sorted(twice))}")
        return super().construct_mapping(node, deep)


def _read(path: Path) -> dict[str, Any]:
    try:
        return _mapping(yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader), path.name)
    except yaml.YAMLError as error:
        raise UniOpsError(f"{path}: {error}") from None


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UniOpsError(f"{where}: expected a mapping, got {type(value).__name__}")
    return value


def _strings(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UniOpsError(f"{where}: expected a list of names, got {value!r}")
    return tuple(value)


def _entry(category: str, name: str, fields: Any) -> UniOp:
    where = f"{category}.{name}"
    fields = _mapping(fields, where)
    unknown = set(fields) - set(FIELDS)
    if unknown:
        raise UniOpsError(f"{where}: unknown field {', '.join(sorted(unknown))}; fields are {', '.join(FIELDS)}")
    if not _NAME.fullmatch(name):
        raise UniOpsError(f"{where}: a UniOp's name is lower case [a-z0-9_]")
    if not isinstance(fields.get("id"), int) or fields["id"] < 1:
        raise UniOpsError(f"{where}: id must be a positive integer, got {fields.get('id')!r}")
    if fields.get("out") not in (None, *OUT_TYPES):
        raise UniOpsError(f"{where}: out must be one of {', '.join(OUT_TYPES)}, got {fields['out']!r}")

    def names(field: str, default: tuple[str, ...] | None, pattern: re.Pattern[str]) -> tuple[str, ...]:
        if field not in fields and default is None:
            raise UniOpsError(f"{where}: {field} must be given, category {category} has no default")
        value = _strings(fields.get(field, list(default or ())), f"{where}.{field}")
        for item in value:
            if not pattern.fullmatch(item):
                raise UniOpsError(f"{where}.{field}: malformed name {item!r}")
        return value

    return UniOp(
        name=name, id=fields["id"], category=category,
        inputs=names("inputs", DEFAULT_INPUTS.get(category), _OPERAND),
        outputs=names("outputs", DEFAULT_OUTPUTS.get(category), _OPERAND),
        attrs=names("attrs", (), _OPERAND),
        aten=names("aten", (), _OVERLOAD),
        by_hand=names("by_hand", (), _OVERLOAD),
        out=fields.get("out"), note=fields.get("note", ""),
    )


def _check_unique(ops: list[UniOp]) -> None:
    names: dict[str, UniOp] = {}
    ids: dict[int, UniOp] = {}
    generated: dict[str, UniOp] = {}
    for op in ops:
        if op.name in names:
            raise UniOpsError(f"{op.name} is in both {names[op.name].category} and {op.category}")
        if op.id in ids:
            raise UniOpsError(f"id {op.id} belongs to both {ids[op.id].name} and {op.name}; ids are permanent")
        names[op.name] = ids[op.id] = op
        for overload in op.aten:
            if overload in generated:
                raise UniOpsError(f"{overload} would be generated for both {generated[overload].name} and {op.name}")
            generated[overload] = op
