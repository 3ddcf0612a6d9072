"""device-list and env: what is here."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from typing import Any

import typer

from torch_fl import _env
from torch_fl.cli.compiled import open_devices
from torch_fl.cli.output import EXIT_NO, print_json, print_table

__all__ = ["add_to", "version"]

JSON = typer.Option(False, "--json", help="Answer in JSON.")


def add_to(app: typer.Typer) -> None:
    """Add this file's commands."""
    app.command("device-list")(device_list)
    app.command("env")(env)


def version() -> str:
    """Return the version of Torch-FL, or "not installed" when it runs from a source tree."""
    try:
        return importlib.metadata.version("flagos-torch-fl")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def device_list(
    everything: bool = typer.Option(False, "--all", help="Also the devices that PyTorch serves itself."),
    as_json: bool = JSON,
) -> None:
    """List the devices. Exit code 1 if there is none."""
    devices, failures = open_devices()
    others = _torch_devices() if everything else []
    if as_json:
        answer: dict[str, Any] = {"devices": devices, "failures": failures}
        if everything:
            answer["others"] = others
        print_json(answer)
    else:
        name = _env.get("TORCH_FL_DEVICE_NAME")
        rows = [(f"{name}:{d['index']}", d["chip"], d["name"], d["arch"], d["adapter"], _memory(d), d["uuid"])
                for d in devices]
        rows += [(other["device"], other["chip"], other["name"], None, "PyTorch", _memory(other), None)
                 for other in others]
        if rows:
            print_table(("device", "chip", "name", "arch", "adapter", "free / total memory", "uuid"), rows)
        else:
            print("no devices")
        for failure in failures:
            place = f"{failure['path']}: " if failure["path"] else ""
            print(f"not opened: {place}{failure['reason']}", file=sys.stderr)
        if not devices:
            print("`flagos-torch-fl diagnose` says why each adapter has none", file=sys.stderr)
    if not devices:
        raise typer.Exit(EXIT_NO)


def env(
    everything: bool = typer.Option(False, "--all", help="Also environment variables that are not set."),
    include_dir: bool = typer.Option(False, "--include-dir", help="Print only the folder of torch_fl/adapter.h."),
    as_json: bool = JSON,
) -> None:
    """Print versions, settings and known chips, to be pasted into a report. Opens no device."""
    from torch_fl.profile import adapters

    if include_dir:
        folder = str(adapters.include_dir())
        print_json({"include_dir": folder}) if as_json else print(folder)
        return
    report = _report()
    if as_json:
        print_json(report)
        return
    for field in ("torch_fl", "torch", "python", "platform", "cpus", "home", "config"):
        print(f"{field + ':':10}{report[field]}")
    print()
    print_table(("chip", "from", "adapter library", "problem"),
                [(c["name"], c["origin"], c["library"], c["error"]) for c in report["chips"]])
    print()
    rows = [(row["set_by"] or row["name"], row["value"], row["error"]) for row in report["variables"]
            if everything or row["set_by"]]
    rows += [(name, os.environ[name], "unknown variable" + (f"; did you mean {close}?" if close else ""))
             for name, close in report["unknown_variables"].items()]
    if rows:
        print_table(("environment variable", "value", "problem"), rows)
    else:
        print("no TORCH_FL_* environment variable is set (--all lists them)")


def _report() -> dict[str, Any]:
    from torch_fl._errors import FlError
    from torch_fl.profile import adapters, config, home

    try:
        file = config.config_file()
        config.load_config()
        configuration = str(file) if file else "none"
    except FlError as error:
        configuration = f"not valid: {error}"
    try:
        chips = [{"name": chip.name, "origin": chip.origin, "library": str(chip.library) if chip.library else None,
                  "profile": str(chip.profile_path) if chip.profile_path else None, "error": chip.error}
                 for chip in adapters.chips()]
    except FlError as error:
        chips = [{"name": None, "origin": None, "library": None, "profile": None, "error": str(error)}]
    return {
        "torch_fl": version(), "torch": _version_of("torch"), "python": platform.python_version(),
        "platform": platform.platform(), "cpus": os.cpu_count(), "home": str(home.home()), "config": configuration,
        "compiled": _compiled_facts(), "chips": chips, "variables": _env.report(), "unknown_variables": _env.unknown(),
    }


def _compiled_facts() -> dict[str, Any]:
    from torch_fl.cli.compiled import compiled
    from torch_fl.cli.output import MissingPart

    try:
        core = compiled()
    except MissingPart as error:
        return {"usable": False, "error": str(error)}
    return {"usable": True, "built_for_torch": getattr(core, "built_for_torch", None),
            "abi": getattr(core, "abi_version", None)}


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _torch_devices() -> list[dict[str, Any]]:
    import torch

    found: list[dict[str, Any]] = []
    for kind in ("cuda", "xpu", "mps"):
        module = getattr(torch, kind, None)
        if module is None or not module.is_available():
            continue
        for index in range(module.device_count()):
            name = module.get_device_name(index) if hasattr(module, "get_device_name") else kind
            found.append({"device": f"{kind}:{index}", "chip": kind, "name": name})
    found.append({"device": "cpu", "chip": "cpu", "name": platform.processor() or platform.machine()})
    return found


def _memory(device: dict[str, Any]) -> str | None:
    if "total_memory" not in device:
        return None
    free = device.get("memory_free")
    return f"{_mib(free) if free is not None else '?'} / {_mib(device['total_memory'])} MiB"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f}"
