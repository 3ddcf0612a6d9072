"""diagnose: every adapter that is known here, tried for real, each in a child process, with the reason if it fails."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import typer

from torch_fl import _env
from torch_fl._errors import FlError
from torch_fl.cli.output import EXIT_NO, print_json
from torch_fl.profile.adapters import Chip

__all__ = ["add_to", "check_chip"]

# The words of csrc/core/error.cpp for FL_STATUS_UNAVAILABLE, and of its loader for a library that is not installed.
UNAVAILABLE_WORDS = ("Unavailable", "found no device", "no device of adapter", "cannot open shared object file")


def add_to(app: typer.Typer) -> None:
    """Add this file's command."""
    app.command("diagnose")(diagnose)


def diagnose(
    chip: str = typer.Argument(None, metavar="[CHIP]", help="Only this chip."),
    timeout: float = typer.Option(120.0, "--timeout", min=1.0, help="Seconds that one adapter may take."),
    as_json: bool = typer.Option(False, "--json", help="Answer in JSON."),
) -> None:
    """Try every adapter: found, loaded, devices, a real computation, or the reason why not.

    Exit code 0 if at least one device works and nothing is broken. An adapter whose chip is not in this machine is not
    broken.
    """
    from torch_fl.profile import adapters

    problems = _settings_problems()
    try:
        chips = [adapters.find(chip)] if chip else adapters.chips()
        problems += [failure["reason"] for failure in adapters.failures()]
    except FlError as error:
        chips = []
        problems.append(str(error))
    results = []
    for known in chips:
        results.append(check_chip(known, timeout))
        if not as_json:
            _print_result(results[-1])
    healthy = not problems and any(r["state"] == "works" for r in results) and not any(
        r["state"] == "broken" for r in results)
    if as_json:
        print_json({"healthy": healthy, "problems": problems, "adapters": results})
    else:
        for problem in problems:
            print(f"problem: {problem}")
        absent = [r["chip"] for r in results if r["state"] == "unavailable"]
        everything = f"everything that is here works; not here: {', '.join(absent)}" if absent else "everything works"
        print(everything if healthy else "not everything works" if results else "no chip is known here")
    if not healthy:
        raise typer.Exit(EXIT_NO)


def check_chip(chip: Chip, timeout: float) -> dict[str, Any]:
    """Try one chip.

    Returns:
        chip, origin, library, state ("works", "unavailable": no hardware or vendor library here, "broken"), adapter
        (its own words), devices, and, unless it works, reason.
    """
    from torch_fl.profile import adapters, config

    result: dict[str, Any] = {
        "chip": chip.name, "origin": chip.origin, "library": str(chip.library) if chip.library else None,
        "profile": str(chip.profile_path) if chip.profile_path else None, "state": "broken", "adapter": None,
        "devices": [], "reason": chip.error,
    }
    if chip.error is not None:
        return result
    try:
        settings = config.load_config()
    except FlError:  # told once, as a problem of the settings
        settings = config.Config()
    _run_probe(adapters.spec(chip, settings), timeout, result)
    wrong = [d for d in result["devices"] if not d["right"]]
    if wrong:
        result["reason"] = f"device {wrong[0].get('ordinal')} computes wrongly: {wrong[0]['reason']}"
    elif result["reason"] is None:
        result["state"] = "works"
    elif any(words in result["reason"] for words in UNAVAILABLE_WORDS):
        result["state"] = "unavailable"
    return result


def _run_probe(spec: dict[str, Any], timeout: float, result: dict[str, Any]) -> None:
    child = subprocess.Popen([sys.executable, "-m", "torch_fl.cli.probe"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    try:
        output, noise = child.communicate(json.dumps(spec), timeout=timeout)
        ending = None
    except subprocess.TimeoutExpired:
        child.kill()
        output, noise = child.communicate()
        ending = f"no answer within {timeout:g} s while"
    doing, finished = "starting", False
    for line in output.splitlines():
        try:
            message = json.loads(line)
        except ValueError:  # the child was killed in the middle of a line
            continue
        doing = message.get("doing", doing)
        finished = finished or "done" in message or "failed" in message
        result["reason"] = message.get("failed", result["reason"])
        result["adapter"] = message.get("adapter", result["adapter"])
        if "device" in message:
            result["devices"].append(message["device"])
    if finished:
        return
    if ending is None and child.returncode < 0:
        ending = f"crashed ({signal.Signals(-child.returncode).name}) while"
    last = noise.strip().splitlines()[-1:] if noise.strip() else []
    result["reason"] = f"{ending or f'ended with code {child.returncode} while'} {doing}" + "".join(
        f"; its last words: {words}" for words in last)


def _settings_problems() -> list[str]:
    from torch_fl.profile import config

    problems = [f"environment variable {row['set_by']}={row['text']!r}: {row['error']}"
                for row in _env.report() if row["error"]]
    problems += [f"environment variable {name} is unknown" + (f"; did you mean {close}?" if close else "")
                 for name, close in _env.unknown().items()]
    try:
        config.load_config()
    except FlError as error:
        if "environment variable" not in str(error):  # else it is told already
            problems.append(str(error))
    problems += _autoload_problem()
    return problems


def _autoload_problem() -> list[str]:
    """Return what kept `import torch` from loading Torch-FL by itself; autoload records it instead of raising."""
    try:
        from torch_fl import _autoload
    except ImportError as error:
        return [f"torch_fl._autoload cannot be imported: {error}"]
    failure = getattr(_autoload, "failure", None)
    failure = failure() if callable(failure) else failure
    return [f"autoload failed: {failure}"] if failure else []


def _print_result(result: dict[str, Any]) -> None:
    print(f"{result['chip']} ({result['origin']}): {result['state']}")
    print(f"  library   {result['library'] or 'not found'}")
    adapter = result["adapter"]
    if adapter:
        vendor = f" of {adapter['vendor']}" if adapter.get("vendor") else ""
        version = adapter["version"] or "?"
        print(f"  loaded    adapter {adapter['name']}{vendor}, version {version}, ABI {adapter['abi']}")
    for device in result["devices"]:
        tier = f", by the {device['tier']} tier" if device.get("tier") else ""
        verdict = f"[1, 2, 3] * 2 is right{tier}" if device["right"] else device["reason"]
        print(f"  device    {device.get('ordinal', device['index'])}: {device['name']}, {device['arch']}, "
              f"{device['total_memory'] >> 20} MiB, {verdict}")
    if result["reason"]:
        print("  reason    " + result["reason"].replace("\n", "\n            "))
