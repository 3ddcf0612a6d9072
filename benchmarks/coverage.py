"""Operator coverage by PyTorch's OpInfo database: how many entries are right, with and without the CPU tier.

    python benchmarks/coverage.py [--device CHIP | --profile FILE] [--json] [--write] [--ops NAME ...]

An entry passes if forward, backward, in-place, out= and non-contiguous inputs all give what the CPU gives.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "ops"))
DOCUMENT = ROOT / "docs" / "coverage.md"


def summarize(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures: entries, passed by mode, and failures by mode as name -> reason."""
    summary: dict[str, Any] = {"entries": len({a["op"] for a in answers}), "passed": {}, "failures": {}, "cpu_tier": {}}
    for mode in ("all", "no_cpu"):
        of_mode = [a for a in answers if a["mode"] == mode]
        failed = {a["op"]: reason(a) for a in of_mode if a["failures"] or not a["checks"]}
        summary["passed"][mode] = len(of_mode) - len(failed)
        summary["failures"][mode] = failed
    for answer in answers:
        for name in answer["cpu"]:
            summary["cpu_tier"].setdefault(name, []).append(answer["op"])
    return summary


def reason(answer: dict[str, Any]) -> str:
    """One line: the first failure, and how many there are."""
    if not answer["failures"]:
        return "nothing to compare with: PyTorch's CPU does not have it"
    stage, text = answer["failures"][0]
    return f"{stage} ({len(answer['failures'])} of {answer['checks']}): {text}"


def table(summary: dict[str, Any]) -> str:
    """The table of docs/coverage.md."""
    entries = summary["entries"]
    lines = ["<!-- made by: python benchmarks/coverage.py --write -->", "# Operator coverage", "",
             "PyTorch's OpInfo database, float32, on `fl:1` of the reference chip: forward, backward, in-place, out=",
             "and non-contiguous inputs, each compared with the CPU.", "",
             "| tiers | entries | right | share |", "|---|---|---|---|"]  # fmt: skip
    for mode, label in (("all", "all"), ("no_cpu", "CPU tier off")):
        passed = summary["passed"][mode]
        lines.append(f"| {label} | {entries} | {passed} | {100 * passed / entries:.1f} % |")
    for mode, title in (("all", "Not right with all tiers"), ("no_cpu", "Needs the CPU tier")):
        lines += ["", f"## {title}", ""]
        names = [n for n in summary["failures"][mode] if mode == "all" or n not in summary["failures"]["all"]]
        lines.append(", ".join(f"`{n}`" for n in names) or "None.")
    return "\n".join(lines) + "\n"


def emulate(profile: Path, folder: Path) -> str:
    """Make the chip of a profile known to this process and its workers; return its name."""
    import msgspec

    from torch_fl.profile import adapters, loader, registry

    loaded = loader.load(profile)
    (folder / adapters.PROFILE_FILE).write_text(
        registry.render(msgspec.structs.replace(loaded, adapter=str(adapters.locate(loaded, profile)))))
    os.environ["TORCH_FL_ADAPTER_PATH"] = str(folder)
    return loaded.device_name


def main() -> int:
    """Run and print; the exit status tells only whether it ran."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", metavar="CHIP", help="a chip, whose first device is used, or a device (fl:2)")
    parser.add_argument("--profile", type=Path, help="a chip_profile.json of a chip to emulate; it is not registered")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--write", action="store_true", help="write docs/coverage.md")
    parser.add_argument("--ops", nargs="*", help="only these entries")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    if (arguments.device or arguments.profile) and arguments.write:
        parser.error("docs/coverage.md is the reference chip's: --write goes without --device and --profile")
    if arguments.device and arguments.profile:
        parser.error("--device and --profile exclude each other")
    folder = tempfile.TemporaryDirectory()
    if arguments.profile:
        arguments.device = emulate(arguments.profile, Path(folder.name))
    if arguments.device:  # read when the modules below are imported, here and in the workers
        place = arguments.device if ":" in arguments.device else "fl:0"
        os.environ["FL_TEST_DEVICE"] = place
        if place != arguments.device:
            os.environ["TORCH_FL_CHIPS"] = arguments.device
    import opinfo_runner
    from opinfo_cases import OPS

    def progress(answer: dict[str, Any]) -> None:
        if answer["failures"] and not arguments.json:
            print(f"  {answer['op']} [{answer['mode']}] {reason(answer)}"[:240], file=sys.stderr, flush=True)

    answers = opinfo_runner.run(arguments.ops or OPS, processes=arguments.processes, progress=progress)
    summary = summarize(answers)
    if arguments.json:
        print(json.dumps({**summary, "answers": answers}, indent=1))
    else:
        entries = summary["entries"]
        print(f"entries: {entries}")
        for mode, label in (("all", "all tiers"), ("no_cpu", "CPU tier off")):
            passed = summary["passed"][mode]
            print(f"passed, {label}: {passed} ({100 * passed / entries:.1f} %)")
            for name, why in summary["failures"][mode].items():
                print(f"  {name}: {why}"[:240])
    if arguments.write:
        DOCUMENT.write_text(table(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
