"""The command line of the suite: runs the cases in child processes, judges them, prints the table."""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_fl.conformance.expectation import FILE, Expectations, load

__all__ = ["main"]

# Words that older guides use for a tag.
ALIASES = {"ops": "kernel"}
GOOD = ("pass", "n/a", "unsupported", "xfail")


@dataclass
class Verdict:
    """What is to be said of one case; `outcome` is one of GOOD, "fail" or "xpass" (known to fail, but passed)."""

    name: str
    outcome: str
    detail: str = ""
    seconds: float = 0.0


def parser() -> argparse.ArgumentParser:
    from torch_fl.conformance.case import TAGS

    result = argparse.ArgumentParser(
        prog="flagos-torch-fl conform",
        description="Certify an adapter: memory, streams, events, errors, and every kernel against PyTorch's CPU. "
        "Exit code 0 if nothing failed, 1 otherwise.",
    )
    what = result.add_mutually_exclusive_group()
    what.add_argument("--device", metavar="NAME", help="a chip that is known here")
    what.add_argument("--adapter", metavar="PATH", help="an adapter library, a profile, or a folder with both")
    result.add_argument("--index", type=int, default=0, help="which of the chip's devices (default 0)")
    result.add_argument("--tag", action="append", choices=(*TAGS, *ALIASES), help="only these cases; may be repeated")
    result.add_argument("--timeout", type=float, default=120.0, help="seconds that one case may take")
    result.add_argument("--expectations", type=Path, help=f"default: {FILE} in the folder of the profile or library")
    result.add_argument("--verbose", "-v", action="store_true", help="list every case, not only those that failed")
    result.add_argument("--json", action="store_true", help="answer in JSON")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; returns the exit code.

    Raises:
        FlError: the chip is not known or cannot be used; or its expectations are not valid.
    """
    from torch_fl.conformance.case import TAGS

    try:
        options = parser().parse_args(arguments)
    except SystemExit as stop:  # argparse has said what is wrong
        return int(stop.code or 0)
    name = _chip_name(options)
    if name is None:
        print("error: say what to certify: --device NAME or --adapter PATH", file=sys.stderr)
        return 2
    from torch_fl.profile import adapters

    spec = adapters.spec_for(name)
    folder = Path(spec.get("profile_path") or spec["path"]).parent
    expectations = load(options.expectations or folder / FILE)
    tags = [ALIASES.get(tag, tag) for tag in options.tag or TAGS]
    verdicts, problem = run(spec, options.index, tags, expectations, options.timeout)
    good = problem is None and all(verdict.outcome in GOOD for verdict in verdicts)
    if options.json:
        print(
            json.dumps(
                {
                    "chip": name,
                    "library": spec["path"],
                    "conforms": good,
                    "problem": problem,
                    "cases": [vars(verdict) for verdict in verdicts],
                },
                indent=2,
            )
        )
    else:
        print_report(name, spec, verdicts, problem, options.verbose)
    return 0 if good else 1


def _chip_name(options: argparse.Namespace) -> str | None:
    if options.adapter is None:
        return options.device
    path = Path(options.adapter)
    if not path.is_dir():
        return str(path)
    profile = path / "profile.json"
    libraries = sorted(path.glob("libfl_*.so"))
    return str(profile if profile.is_file() or not libraries else libraries[0])


def run(
    spec: dict[str, Any], index: int, tags: Sequence[str], expectations: Expectations, timeout: float
) -> tuple[list[Verdict], str | None]:
    """Run all cases; returns their verdicts and what kept the suite from running, if anything did.

    A case that crashes or hangs has failed; the rest goes on in a new process.
    """
    verdicts: dict[str, Verdict] = {}
    cases: list[str] = []
    while True:
        skip = {name: "" for name in cases if name in verdicts}
        order = {"spec": spec, "index": index, "tags": list(tags), "skip": skip}
        running: str | None = None
        ending = "ended"
        for message in _child(order, timeout):
            if "cases" in message and not cases:
                cases = [name for name, _ in message["cases"]]
                for name in cases:
                    if reason := expectations.reason("unsupported", name):
                        verdicts[name] = Verdict(name, "unsupported", reason)
                if verdicts:  # start again, without them
                    ending = "again"
                    break
            elif "start" in message:
                running = message["start"]
            elif "case" in message:
                running = None
                verdicts[message["case"]] = _judge(message, expectations)
            elif "done" in message:
                return [verdicts[name] for name in cases], None
            elif "failed" in message:
                return [verdicts[name] for name in cases if name in verdicts], message["failed"]
            elif "ending" in message:
                ending = message["ending"]
        if ending == "again":
            continue
        if running is None:
            return [verdicts[name] for name in cases if name in verdicts], f"the suite's process {ending}"
        verdicts[running] = _judge(
            {"case": running, "outcome": "fail", "detail": f"the process {ending}"}, expectations
        )


def _judge(message: dict[str, Any], expectations: Expectations) -> Verdict:
    verdict = Verdict(message["case"], message["outcome"], message["detail"], message.get("seconds", 0.0))
    reason = expectations.reason("xfail", verdict.name)
    if reason is not None and verdict.outcome == "fail":
        verdict.outcome, verdict.detail = "xfail", f"{reason} ({verdict.detail})"
    elif reason is not None and verdict.outcome == "pass":
        verdict.outcome, verdict.detail = "xpass", f"it passes: remove it from xfail ({reason})"
    return verdict


def _child(order: dict[str, Any], timeout: float) -> Iterator[dict[str, Any]]:
    """Run a worker; yields its messages, at most `timeout` s apart, then {"ending": how it ended}."""
    with tempfile.TemporaryFile("w+", errors="replace") as noise:
        child = subprocess.Popen(
            [sys.executable, "-m", "torch_fl.conformance.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            text=True,
            errors="replace",
        )
        assert child.stdin is not None and child.stdout is not None
        lines: queue.Queue[str | None] = queue.Queue()
        output = child.stdout

        def read() -> None:
            for line in output:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        try:
            with contextlib.suppress(BrokenPipeError):  # it died at once; its end tells why
                child.stdin.write(json.dumps(order))
                child.stdin.close()
            while (line := lines.get(timeout=timeout)) is not None:
                with contextlib.suppress(ValueError):  # killed in the middle of a line
                    yield json.loads(line)
            child.wait()
            noise.seek(0)
            words = noise.read().strip().splitlines()[-1:]
            yield {"ending": _ending(child.returncode) + "".join(f"; its last words: {word}" for word in words)}
        except queue.Empty:
            yield {"ending": f"did not answer within {timeout:g} s"}
        finally:
            child.kill()
            child.wait()


def _ending(code: int) -> str:
    return f"crashed ({signal.Signals(-code).name})" if code < 0 else f"ended with code {code}"


def print_report(name: str, spec: dict[str, Any], verdicts: list[Verdict], problem: str | None, verbose: bool) -> None:
    """Print what failed, or every case, and a table of counts by tag."""
    print(f"conformance of {name} ({spec['path']})")
    shown = [v for v in verdicts if verbose or v.outcome not in ("pass", "n/a")]
    for verdict in shown:
        print(f"{verdict.outcome:12} {verdict.name}" + (f": {verdict.detail}" if verdict.detail else ""))
    if shown:
        print()
    outcomes = ("pass", "fail", "xfail", "xpass", "unsupported", "n/a")
    tags = list(dict.fromkeys(verdict.name.partition(".")[0] for verdict in verdicts))
    rows = [
        [tag, *(sum(v.outcome == outcome and v.name.startswith(f"{tag}.") for v in verdicts) for outcome in outcomes)]
        for tag in tags
    ]
    rows.append(["all", *(sum(v.outcome == outcome for v in verdicts) for outcome in outcomes)])
    widths = [max(map(len, tags), default=0), *map(len, outcomes)]
    widths[0] = max(12, widths[0])
    for row in (["tag", *outcomes], *rows):
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if problem is not None:
        print(f"not finished: {problem}")
    print("conforms" if problem is None and all(v.outcome in GOOD for v in verdicts) else "does not conform")
