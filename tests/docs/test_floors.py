"""The floors of docs/architecture.md: what a room may import, and what no room may hold."""

from __future__ import annotations

import ast
import importlib.util
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOST = ("csrc", "include", "torch_fl", "uniops", "codegen", "cmake")
# Chips in the tree, and the makers whose names come to mind; PyTorch's own device names are not among them.
VENDORS = sorted(path.parent.name for path in (ROOT / "chips").glob("*/profile.json")) + [
    "nvidia", "ascend", "cambricon", "enflame", "iluvatar", "kunlun", "metax", "mthreads", "hygon", "biren",
    "graphcore", "cerebras", "groq", "tenstorrent", "gaudi"]  # fmt: skip
LONGEST = 600
GENERATED = {"torch_fl/_uniop_table.py"}
TO_BE_SPLIT = {"chips/ninguang/sdk/tests/test_kernels_index.py"}  # may only shrink; remove it when it fits


def sources(*rooms: str, suffixes: tuple[str, ...]) -> list[Path]:
    return [path for room in rooms for path in sorted((ROOT / room).rglob("*"))
            if path.suffix in suffixes and "__pycache__" not in path.parts and "build" not in path.parts]


def python_code(path: Path) -> str:
    """The file without comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings.add(first.value.lineno)
    kept = [token.string for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type != tokenize.COMMENT and not (token.type == tokenize.STRING and token.start[0] in docstrings)]
    return "\n".join(kept)


def c_code(path: Path) -> str:
    """The file without comments."""
    text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"//.*", "", text)


def test_imports_keep_to_their_floors():
    if importlib.util.find_spec("importlinter") is None:
        pytest.skip("import-linter is not installed")
    found = subprocess.run([sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()",
                            "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr


def test_no_vendor_in_the_code_of_the_host():
    pattern = re.compile(r"\b(" + "|".join(VENDORS) + r")\b", re.IGNORECASE)
    for path in sources(*HOST, suffixes=(".py",)):
        assert not (found := pattern.search(python_code(path))), f"{path.relative_to(ROOT)} names {found[0]}"
    for path in sources(*HOST, suffixes=(".c", ".cpp", ".h")):
        assert not (found := pattern.search(c_code(path))), f"{path.relative_to(ROOT)} names {found[0]}"
    for path in sources("uniops", "cmake", suffixes=(".yaml", ".cmake")):
        assert not (found := pattern.search(path.read_text())), f"{path.relative_to(ROOT)} names {found[0]}"


def test_a_vendor_would_be_found(tmp_path):
    (tmp_path / "a.py").write_text('"""ninguang is fine here."""\nx = "ninguang"  # and ninguang here\n')
    assert python_code(tmp_path / "a.py").count("ninguang") == 1
    (tmp_path / "a.c").write_text("/* ninguang */ int x; // ninguang\nint ninguang;\n")
    assert c_code(tmp_path / "a.c").count("ninguang") == 1


def test_the_core_knows_no_torch():
    for path in sources("csrc/core", suffixes=(".cpp", ".h")):
        assert not re.search(r"#include [<\"](torch|ATen|c10)/", path.read_text()), path.relative_to(ROOT)
    for path in sources("include", suffixes=(".h",)):
        allowed = r"#include (<stdint\.h>|<stddef\.h>|[<\"]torch_fl/|[<\"]adapter\.h|[<\"]ext_)"
        for line in path.read_text().splitlines():
            assert not line.startswith("#include") or re.match(allowed, line), f"{path.name}: {line}"


def test_chips_see_the_c_abi_only():
    for path in sources("chips", suffixes=(".c", ".cpp", ".h")):
        for line in re.findall(r'#include ["<]([^">]+)', path.read_text()):
            assert not re.match(r"(torch|ATen|c10|core|bridge)/", line), f"{path.relative_to(ROOT)} includes {line}"
            assert "/sdk/" not in str(path) or not line.startswith("torch_fl/"), f"{path.relative_to(ROOT)}: {line}"


def test_settings_are_read_in_one_place():
    for path in sources("torch_fl", suffixes=(".py",)):
        if path.name == "_env.py":
            continue
        for line in python_code(path).splitlines():
            assert "getenv" not in line, f"{path.relative_to(ROOT)}: use torch_fl._env"
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"environ(\.get\(|\[)\s*['\"](TORCH_FL|FLAGOS)_", text), f"{path.name}: use torch_fl._env"
    for path in sources("csrc", suffixes=(".cpp", ".h")):
        assert "getenv(" not in c_code(path), f"{path.relative_to(ROOT)}: settings come from Python"


def test_no_file_is_too_long():
    found = {}
    for path in sources(*HOST, "chips", "tests", "examples", "benchmarks", suffixes=(".py", ".c", ".cpp", ".h")):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > LONGEST and str(path.relative_to(ROOT)) not in GENERATED | TO_BE_SPLIT:
            found[str(path.relative_to(ROOT))] = lines
    assert not found, f"hand-written files have at most {LONGEST} lines"


def test_files_say_what_they_hold():
    """Source files open with a comment or a docstring."""
    for path in sources(*HOST, "chips", "examples", "benchmarks", suffixes=(".py", ".c", ".cpp", ".h")):
        text = path.read_text(encoding="utf-8").lstrip()
        opening = ('"""', "#", 'r"""') if path.suffix == ".py" else ("/*", "//")
        assert not text or text.startswith(opening), f"{path.relative_to(ROOT)} does not say what it holds"
