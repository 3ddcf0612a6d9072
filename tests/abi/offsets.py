"""Sizes, offsets and constants of adapter.h and its extensions as this machine's compiler lays them out.

`python tests/abi/offsets.py --write` renews golden_offsets.json, in the commit that appends to the ABI and never else.
The structs and constants are read from the header itself, so that nothing can be forgotten here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include"
HEADERS = [INCLUDE / "torch_fl" / name for name in ("adapter.h", "ext_virtual_memory.h")]
GOLDEN = Path(__file__).with_name("golden_offsets.json")


def _source() -> str:
    text = re.sub(r"/\*.*?\*/", "", "".join(header.read_text() for header in HEADERS), flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def _members(body: str) -> list[str]:
    depth, start, names = 0, 0, []
    for at, char in enumerate(body):
        depth += {"{": 1, "}": -1, "(": 1, ")": -1}.get(char, 0)
        if char == ";" and depth == 0:
            member = body[start:at]
            pointer = re.search(r"\(\*\s*(\w+)\)", member)
            names.append(pointer.group(1) if pointer else re.search(r"(\w+)\s*(\[\w+\])?\s*$", member).group(1))
            start = at + 1
    return names


def structs() -> dict[str, list[str]]:
    """Member names of each struct that the headers define, in order."""
    found = {}
    for match in re.finditer(r"typedef struct (\w+)\s*\{", _source()):
        depth, at = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(_source()[at], 0)
            at += 1
        found[match.group(1)] = _members(_source()[match.end() : at - 1])
    return found


def constants() -> list[str]:
    """Names of all enumerators, and the version macros."""
    names = ["FL_ABI_MAJOR", "FL_ABI_MINOR"]
    for body in re.findall(r"enum\s*\{(.*?)\}", _source(), flags=re.S):
        names += re.findall(r"(\w+)\s*=", body)
    return names


def measure() -> dict:
    """Compiles and runs a C program that prints the layout."""
    lines = ["#include <stdio.h>", *(f'#include "torch_fl/{header.name}"' for header in HEADERS), "int main(void) {"]
    for name, members in structs().items():
        lines.append(f'printf("{name} sizeof %zu\\n", sizeof({name}));')
        lines += [f'printf("{name} {m} %zu\\n", offsetof({name}, {m}));' for m in members]
    lines += [f'printf("constants {c} %lld\\n", (long long){c});' for c in constants()]
    lines.append("return 0; }")
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "offsets.c"), Path(folder, "offsets")
        source.write_text("\n".join(lines))
        subprocess.run(["gcc", "-std=c11", "-I", INCLUDE, source, "-o", program], check=True)
        output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    layout: dict = {}
    for line in output.splitlines():
        group, name, value = line.split()
        layout.setdefault(group, {})[name] = int(value)
    return layout


if __name__ == "__main__":
    text = json.dumps(measure(), indent=1) + "\n"
    if "--write" in sys.argv:
        GOLDEN.write_text(text)
    else:
        print(text, end="")
