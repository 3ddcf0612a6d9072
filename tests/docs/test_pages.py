"""The pages tell the truth: generated ones are fresh, links resolve, the README's commands and example work."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IGNORED = {".venv", "build", ".git", "node_modules", "dist"}
PAGES = [path for path in sorted(ROOT.rglob("*.md")) if not IGNORED & set(path.relative_to(ROOT).parts)]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=500,
                          env={**os.environ, "PATH": path, **variables})


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """The commands of a page's shell blocks, without comments, one a line."""
    lines = [line for block in blocks(text, "sh") for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("generator", ["codegen.gen_python", "codegen.gen_docs", "torch_fl._env"])
def test_generated_files_are_fresh(generator):
    found = run(sys.executable, "-m", generator, "--check")
    assert found.returncode == 0, f"{found.stderr}\nmake docs writes it again"


def test_a_stale_page_is_found(tmp_path):
    from codegen import gen_docs

    page = tmp_path / "ops.md"
    assert gen_docs.main(["--check", "--output", str(page)]) == 1
    assert gen_docs.main(["--write", "--output", str(page)]) == 0
    assert gen_docs.main(["--check", "--output", str(page)]) == 0
    page.write_text(page.read_text() + "x")
    assert gen_docs.main(["--check", "--output", str(page)]) == 1


def anchor(heading: str) -> str:
    """GitHub's rule."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, fragment = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{page.name} links to {target}, which does not exist"
        if fragment and path.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert fragment in map(anchor, headings), f"{page.name} links to {target}, which has no such heading"


def test_all_docs_are_reachable_from_the_readme():
    for page in (ROOT / "docs").glob("*.md"):
        assert f"docs/{page.name}" in README, f"README.md does not link to docs/{page.name}"


@pytest.mark.parametrize("command", commands(README), ids=" ".join)
def test_commands_of_the_readme_exist(command):
    program, *words = command
    if program == "make":
        found = run("make", "-n", "-t", *words)
        assert found.returncode == 0, found.stderr
    elif program == ".venv/bin/python":
        script, *options = words
        found = run(sys.executable, script, "--help")
        assert found.returncode == 0, found.stderr
        assert all(option in found.stdout for option in options if option.startswith("--"))
    else:
        assert program == "flagos-torch-fl"
        found = run(sys.executable, "-m", "torch_fl.cli", words[0], "--help")
        assert found.returncode == 0, found.stderr
        # conform shows its own options when it runs.
        assert words[0] == "conform" or all(word in found.stdout for word in words if word.startswith("--"))


def test_commands_of_the_status_table_exist():
    table = README.partition("<!-- status")[2].partition("<!-- /status -->")[0]
    for script in re.findall(r"python (benchmarks/\w+\.py)", table):
        assert (ROOT / script).is_file(), script


def test_example_of_the_readme_runs():
    first, *others = blocks(README, "python")
    for example in others:
        found = run(sys.executable, "-c", example)
        assert found.returncode == 0, found.stderr
    found = run(sys.executable, "-c", first)
    assert found.returncode == 0, found.stderr
    assert "[Torch-FL] Operator routing: native=" in found.stdout and "cpu_fallback=0" in found.stdout


def test_targets_of_the_makefile_are_explained():
    text = (ROOT / "Makefile").read_text()
    explained = set(re.findall(r"make ([a-z-]+)", run("make", "-s", "help").stdout))
    targets = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())
    assert targets - explained - {"help", "test-programs"} == set()
