"""PyTorch's operator database on fl:1 against the CPU, with all tiers and with the CPU tier off. About a minute.

An entry that is not right stands in known_differences.yaml with a reason, and one that became right must leave it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import opinfo_runner
import pytest
import yaml
from opinfo_cases import OPS

KNOWN: dict[tuple[str, str], str] = {
    (entry["op"], entry["mode"]): entry["reason"]
    for entry in yaml.safe_load(Path(__file__).with_name("known_differences.yaml").read_text())
}


@pytest.fixture(scope="session")
def answers() -> dict[tuple[str, str], dict[str, Any]]:
    return {(a["op"], a["mode"]): a for a in opinfo_runner.run(OPS)}


@pytest.mark.timeout(900)  # the first one waits for all
@pytest.mark.parametrize("mode", opinfo_runner.MODES)
@pytest.mark.parametrize("name", OPS)
def test_op(name: str, mode: str, answers: dict[tuple[str, str], dict[str, Any]]) -> None:
    answer = answers[name, mode]
    failures = "\n".join(f"  {stage}: {text}" for stage, text in answer["failures"])
    if (name, mode) in KNOWN:
        passes = answer["checks"] and not failures
        assert not passes, f"{name} passes in mode {mode}: remove it from known_differences.yaml"
        pytest.xfail(KNOWN[name, mode])
    assert not failures, f"{len(answer['failures'])} of {answer['checks']} checks of {name}:\n{failures}"
    assert answer["checks"], f"nothing of {name} could be checked: the CPU has no result"


def test_known_differences_name_entries() -> None:
    assert {name for name, _ in KNOWN} <= set(OPS)
    assert {mode for _, mode in KNOWN} <= set(opinfo_runner.MODES)
