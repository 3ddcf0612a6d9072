"""Entries of PyTorch's operator database on an OpenCL device: a sample, or all with FL_OPENCL_ALL_OPERATORS=1.

As tests/ops/test_opinfo.py for the reference chip. What differs on every chip stands in its known_differences.yaml,
what differs here beyond that in ours. Without the CPU tier the sample must be right, and enough of the whole.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "tests" / "ops"))
import opinfo_runner  # noqa: E402
from opinfo_cases import OPS  # noqa: E402

SAMPLE = """
add sub mul div.no_rounding_mode pow maximum where clamp lerp addcmul eq lt logical_and bitwise_and neg exp log sqrt
rsqrt sigmoid tanh erf isnan abs floor sum mean var std prod amax argmax all any norm cumsum softmax log_softmax
logsumexp nn.functional.relu nn.functional.gelu nn.functional.silu nn.functional.layer_norm nn.functional.group_norm
nn.functional.batch_norm nn.functional.rms_norm mm addmm bmm matmul nn.functional.linear nn.functional.conv2d
nn.functional.conv_transpose2d nn.functional.max_pool2d nn.functional.avg_pool2d nn.functional.adaptive_avg_pool2d
nn.functional.scaled_dot_product_attention nn.functional.embedding nn.functional.cross_entropy nn.functional.nll_loss
nn.functional.mse_loss cat stack permute index_select gather scatter_add index_put index_add masked_fill tril
nn.functional.pad.constant flip roll sort topk repeat nonzero
""".split()
FULL = os.environ.get("FL_OPENCL_ALL_OPERATORS") == "1"
NAMES = list(OPS) if FULL else [name for name in SAMPLE if name in OPS]
FOLDER = Path(__file__).resolve().parents[1]


def known_differences(folder: Path) -> dict[tuple[str, str], str]:
    entries = yaml.safe_load((folder / "known_differences.yaml").read_text()) or ()
    return {(entry["op"], entry["mode"]): entry["reason"] for entry in entries}


KNOWN = known_differences(FOLDER)
KNOWN_EVERYWHERE = known_differences(Path(opinfo_runner.__file__).parent)
LEAST_WITHOUT_CPU = 0.75  # of all entries


@pytest.fixture(scope="session")
def answers() -> dict[tuple[str, str], dict[str, Any]]:
    return {(a["op"], a["mode"]): a for a in opinfo_runner.run(NAMES, processes=2 if FULL else 1)}


def failures_of(answer: dict[str, Any]) -> str:
    return "\n".join(f"  {stage}: {text}" for stage, text in answer["failures"])


def judge(answer: dict[str, Any]) -> None:
    entry = (answer["op"], answer["mode"])
    right = answer["checks"] and not answer["failures"]
    if entry in KNOWN:
        assert not right, f"{entry[0]} is right in mode {entry[1]}: remove it from known_differences.yaml"
        pytest.xfail(KNOWN[entry])
    if not right and entry in KNOWN_EVERYWHERE:
        pytest.xfail(KNOWN_EVERYWHERE[entry])
    assert not answer["failures"], f"{len(answer['failures'])} of {answer['checks']}:\n{failures_of(answer)}"
    assert answer["checks"], f"nothing of {entry[0]} could be checked"


@pytest.mark.timeout(2900)  # the first one waits for all
@pytest.mark.parametrize("name", NAMES)
def test_all_tiers(name: str, answers: dict[tuple[str, str], dict[str, Any]]) -> None:
    judge(answers[name, "all"])


@pytest.mark.timeout(2900)
@pytest.mark.parametrize("name", [name for name in NAMES if name in SAMPLE])
def test_without_the_cpu_tier(name: str, answers: dict[tuple[str, str], dict[str, Any]]) -> None:
    judge(answers[name, "no_cpu"])


@pytest.mark.timeout(2900)
@pytest.mark.skipif(not FULL, reason="counts all entries")
def test_enough_is_served_without_the_cpu_tier(answers: dict[tuple[str, str], dict[str, Any]]) -> None:
    good = [name for name in NAMES if answers[name, "no_cpu"]["checks"] and not answers[name, "no_cpu"]["failures"]]
    assert len(good) >= LEAST_WITHOUT_CPU * len(NAMES), f"{len(good)} of {len(NAMES)}"


def test_known_differences_name_entries() -> None:
    assert {name for name, _ in KNOWN} <= set(OPS) and {mode for _, mode in KNOWN} <= set(opinfo_runner.MODES)
