"""What the types of a profile cannot say: fields that are fine one by one and cannot be true together."""

from __future__ import annotations

import re

from torch_fl.profile.chip_profile import ChipProfile, NativeOp
from torch_fl.profile.located import Document, Path, Problem
from torch_fl.profile.op_name import UnknownOp, resolve
from torch_fl.profile.op_plan import plan

__all__ = ["find"]

# Names that PyTorch or Torch-FL give another meaning.
RESERVED_NAMES = ("cpu", "cuda", "hip", "mps", "xpu", "meta", "xla", "privateuseone", "fl", "flagos")
# Keys of the adapter's configure() that the host itself uses, and the field that says it.
HOST_OPTIONS = {"cache_dir": "kernel_cache.path", "cache_max_mb": "kernel_cache.max_mb"}
_HALF_TYPES = (("fp16", "fp16_supported", "float16"), ("bf16", "bf16_supported", "bfloat16"))


def find(profile: ChipProfile, document: Document) -> list[Problem]:
    """Return all contradictions of a profile, in the order of its fields."""
    problems: list[Problem] = []
    if profile.device_name in RESERVED_NAMES:
        problems.append(document.problem(("device_name",), "this name is taken",
                                         f"any name but {', '.join(RESERVED_NAMES)}"))
    elif profile.device_name.endswith("\n"):  # "$" of the schema's pattern lets one newline through
        problems.append(document.problem(("device_name",), "ends in a newline"))
    for key in profile.options:
        if key in HOST_OPTIONS:
            problems.append(document.problem(("options", key), f"is not an option of an adapter: {HOST_OPTIONS[key]} "
                                             "says it"))
        elif not re.fullmatch(r"[a-z][a-z0-9_]*", key):
            problems.append(document.problem(("options", key), "malformed name of an option",
                                             "lower-case letters, digits and _"))
    problems += _memory(profile, document)
    problems += _types(profile, document)
    for position, entry in enumerate(profile.native_ops or ()):
        problems += _op_types(profile, entry, ("native_ops", position), document)
    problems += _ops(profile, document)
    problems += _fusion(profile, document)
    return sorted(problems, key=lambda problem: problem.line or 0)


def _power_of_two(value: int) -> bool:
    return value & (value - 1) == 0


def _memory(profile: ChipProfile, document: Document) -> list[Problem]:
    pool, problems = profile.memory_pool, []
    path: Path = ("memory_pool",)
    if not _power_of_two(pool.alignment):
        problems.append(document.problem((*path, "alignment"), "not a power of two", "1, 2, 4, … 1048576"))
    elif pool.min_block_bytes % pool.alignment:
        problems.append(document.problem((*path, "min_block_bytes"), "not a multiple of the alignment",
                                         f"multiples of {pool.alignment}", value=pool.min_block_bytes))
    if pool.total_mb is not None and pool.prealloc_mb > pool.total_mb:
        problems.append(document.problem((*path, "prealloc_mb"), "larger than the memory (total_mb)",
                                         f"0 to {pool.total_mb}"))
    if pool.total_mb is not None and pool.min_block_bytes > pool.total_mb << 20:
        problems.append(document.problem((*path, "min_block_bytes"), "larger than the memory (total_mb)",
                                         f"1 to {pool.total_mb << 20}", value=pool.min_block_bytes))
    owners = [(("constraints",), profile.constraints)]
    owners += [(("native_ops", i, "constraints"), entry.constraints)
               for i, entry in enumerate(profile.native_ops or ()) if entry.constraints]
    for owner, constraints in owners:
        if not _power_of_two(constraints.alignment):
            problems.append(document.problem((*owner, "alignment"), "not a power of two", "0, 1, 2, 4, … 1048576"))
    return problems


def _types(profile: ChipProfile, document: Document) -> list[Problem]:
    problems = []
    if profile.dtypes is not None:
        problems += _repeated(profile.dtypes, ("dtypes",), document)
        for _, field, dtype in _HALF_TYPES:
            says = getattr(profile, field)
            if says is not None and says != (dtype in profile.dtypes):
                problems.append(document.problem((field,), f"contradicts dtypes, which {'lacks' if says else 'lists'} "
                                                 f"{dtype}", "false" if says else "true"))
    return problems


def _op_types(profile: ChipProfile, entry: NativeOp, path: Path, document: Document) -> list[Problem]:
    problems = []
    has = profile.effective_dtypes()
    for field, chip_field, dtype in _HALF_TYPES:
        says = getattr(entry, field)
        if says and dtype not in has:
            cause = f"{chip_field} is false" if getattr(profile, chip_field) is False else f"dtypes lacks {dtype}"
            problems.append(document.problem((*path, field), f"the chip does not have {dtype}: {cause}", "false"))
        if says is not None and entry.dtypes is not None and says != (dtype in entry.dtypes):
            problems.append(document.problem((*path, field), f"contradicts dtypes of the same operator, which "
                                             f"{'lacks' if says else 'lists'} {dtype}", "false" if says else "true"))
    for position, dtype in enumerate(entry.dtypes or ()):
        if dtype not in has:
            problems.append(document.problem((*path, "dtypes", position), f"the chip does not have {dtype}",
                                             ", ".join(has)))
    problems += _repeated(entry.dtypes or [], (*path, "dtypes"), document)
    return problems


def _ops(profile: ChipProfile, document: Document) -> list[Problem]:
    resolved = plan(profile)
    entries = profile.native_ops or []
    problems = [document.problem(("native_ops", position, "op"), message)
                for position, message in resolved.unknown.items()]
    told: set[tuple[int, int]] = set()
    for conflict in resolved.conflicts:
        pair = (conflict.first, conflict.second)
        if pair in told:
            continue
        told.add(pair)
        first, second = entries[conflict.first], entries[conflict.second]
        line = document.line(("native_ops", conflict.first, "op"))
        what = (f'compute "{second.compute}" here, "{first.compute}" there' if first.compute != second.compute
                else "with other types or constraints")
        if first.op == second.op:
            message = f"listed twice, {what} (line {line})"
        else:
            message = (f"means UniOp {conflict.uniop}, as {first.op} on line {line} does, and says something else of "
                       f"it ({what}); name UniOp {conflict.uniop} itself to decide")
        problems.append(document.problem(("native_ops", conflict.second, "op"), message))
    return problems


def _fusion(profile: ChipProfile, document: Document) -> list[Problem]:
    problems = []
    names = [pattern.name for pattern in profile.fusion.patterns]
    for position, pattern in enumerate(profile.fusion.patterns):
        path = ("fusion", "patterns", position)
        if pattern.name in names[:position]:
            problems.append(document.problem((*path, "name"), "two patterns of one name"))
        for index, op in enumerate(pattern.ops):
            try:
                resolve(op)
            except UnknownOp as error:
                problems.append(document.problem((*path, "ops", index), str(error)))
    return problems


def _repeated(names: list[str], path: Path, document: Document) -> list[Problem]:
    return [document.problem((*path, position), "listed twice")
            for position, name in enumerate(names) if name in names[:position]]
