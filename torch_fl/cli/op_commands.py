"""ops, explain and conform: which operators a chip computes, why, and whether its adapter keeps its word."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import typer

from torch_fl import _uniop_table as table
from torch_fl.cli.compiled import compiled, open_devices
from torch_fl.cli.output import MissingPart, Refused, print_json, print_table

__all__ = ["add_to"]

JSON = typer.Option(False, "--json", help="Answer in JSON.")
CATEGORIES = tuple(dict.fromkeys(op.category for op in table.UNIOPS))


def add_to(app: typer.Typer) -> None:
    """Add this file's commands."""
    app.command("ops")(ops)
    app.command("explain")(explain)
    # --help is the suite's too.
    app.command("conform", add_help_option=False,
                context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(conform)


def ops(
    device: str = typer.Option(None, "--device", metavar="CHIP", help="Coverage of this chip by native kernels."),
    category: str = typer.Option(None, "--category", help=f"Only one of: {', '.join(CATEGORIES)}."),
    profile: Path = typer.Option(None, "--profile", help="Coverage under this chip_profile.json, which is not "
                                 "registered: the tier of each operator."),
    model: str = typer.Option(None, "--model", metavar="FILE.py:FUNCTION", help="With --profile: also call this "
                              "function with the device, and tell where its operators ran."),
    as_json: bool = JSON,
) -> None:
    """List the UniOps, what stands on them, and, with --device or --profile, what a chip computes natively."""
    if category is not None and category not in CATEGORIES:
        raise typer.BadParameter(f"{category!r} is not a category; allowed: {', '.join(CATEGORIES)}")
    if profile is not None and device is not None:
        raise typer.BadParameter("--device is a chip that is known here, --profile a file: give one of them")
    if model is not None and profile is None:
        raise typer.BadParameter("--model needs --profile")
    if profile is not None:
        from torch_fl.cli import emulation

        emulation.show(profile, model, category, as_json)
        return
    listed = [op for op in table.UNIOPS if category in (None, op.category)]
    if device is None:
        if as_json:
            print_json([op._asdict() for op in listed])
        else:
            print_table(("UniOp", "category", "inputs", "outputs", "attributes", "ATen overloads"),
                        [(op.name, op.category, op.inputs, op.outputs, op.attrs, op.overloads) for op in listed])
        return
    types = _native_types(device)
    if as_json:
        print_json({"chip": device, "native": sum(op.name in types for op in listed), "of": len(listed),
                    "ops": [{"uniop": op.name, "category": op.category, "native": types.get(op.name, [])}
                            for op in listed]})
        return
    print_table(("UniOp", "category", "native for"),
                [(op.name, op.category, types.get(op.name) or None) for op in listed])
    print(f"{sum(op.name in types for op in listed)} of {len(listed)} UniOps are native on {device}")


def _native_types(chip_name: str) -> dict[str, list[str]]:
    """UniOp -> the types it is native for: what the adapter has and the profile allows."""
    from torch_fl.profile import adapters

    spec = adapters.spec_for(chip_name)
    core = compiled()
    if not core.devices_opened():
        core.set_discover(lambda: [])  # this one chip is enough
    try:
        first = core.device_info(core.add_adapter(spec)[0])
        kernels = core.adapter_kernels(spec["path"], first.get("ordinal", 0))
    except (RuntimeError, IndexError) as error:
        raise Refused(f"adapter {spec['path']} does not work here: {error}") from None
    native: dict[str, list[str]] = {}
    for uniop, dtype, _ in kernels:
        allowed = spec.get("native", {}).get(uniop) or spec.get("dtypes") or None
        if uniop in spec.get("not_native", ()) or (spec.get("only_listed") and uniop not in spec["native"]):
            continue
        if (allowed is None or dtype in allowed) and dtype not in native.setdefault(uniop, []):
            native[uniop].append(dtype)
    return {uniop: types for uniop, types in native.items() if types}


def explain(
    op: str = typer.Argument(..., help="An ATen function (aten::gelu), an overload of it, or a UniOp (gelu)."),
    device: str = typer.Option(None, "--device", metavar="CHIP", help="Only this chip, opened if it is not, or this "
                               "device (fl:1)."),
    as_json: bool = JSON,
) -> None:
    """Tell which UniOps an operator stands on and who computes them on each chip that is open here."""
    from torch_fl.profile.op_name import UnknownOp, resolve

    try:
        meant = resolve(op)
    except UnknownOp as error:
        raise Refused(f"{op}: {error}") from None
    answer: dict[str, Any] = {"op": op, "uniops": sorted(meant), "devices": []}
    devices, failures = open_devices()
    chips = {one["chip"]: one for one in (devices if device is None else _chosen(device, devices))}
    for chip, one in chips.items():
        answer["devices"].append({"chip": chip, "routes": _routes(one, sorted(meant))})
    if as_json:
        print_json({**answer, "failures": failures})
        return
    if not meant:
        print(f"{op} moves no data: it needs no kernel")
        return
    print(f"{op} stands on {', '.join(sorted(meant))}")
    for entry in answer["devices"]:
        print_table(("UniOp", "tier", "why"), [(r["uniop"], r["tier"], r["why"]) for r in entry["routes"]],
                    title=f"\n{entry['chip']}")
    if not chips:
        print("no device is open here; `flagos-torch-fl diagnose` says why")


def _chosen(wanted: str, devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The open devices of a chip, or one device by its number; a known chip that is not open is opened."""
    from torch_fl import _env
    from torch_fl.profile import adapters

    name, _, number = wanted.partition(":")
    of_chip = devices if name == _env.get("TORCH_FL_DEVICE_NAME") else [d for d in devices if d["chip"] == name]
    if not of_chip and not number:
        core = compiled()
        try:
            of_chip = [core.device_info(index) for index in core.add_adapter(adapters.spec_for(wanted))]
        except (RuntimeError, IndexError) as error:
            raise Refused(f"--device {wanted}: {error}") from None
    chosen = [d for i, d in enumerate(of_chip) if not number or str(i) == number]
    if not chosen:
        known = [f"{_env.get('TORCH_FL_DEVICE_NAME')}:{d['index']} ({d['chip']})" for d in devices]
        raise Refused(f"there is no device {wanted} here; there are {', '.join(known) or 'none'}")
    return chosen


def _routes(device: dict[str, Any], uniops: list[str]) -> list[dict[str, Any]]:
    from torch_fl.profile import adapters
    from torch_fl.profile.op_plan import plan

    chip = next((chip for chip in adapters.chips() if chip.name == device["chip"]), None)
    profile = chip.profile if chip is not None else None
    resolved = plan(profile) if profile is not None else None
    types = _native_types(str(device["chip"])) if chip is not None else {}
    profile_file = chip.profile_path if chip is not None else None
    routes = []
    for uniop in uniops:
        if resolved is not None and uniop in resolved.pinned:
            tier, why = resolved.pinned[uniop], f"{profile_file} pins it"
        elif uniop in types:
            tier, why = "native", f"the adapter has kernels for {', '.join(types[uniop])}"
        elif resolved is not None and resolved.only_listed and uniop not in resolved.native:
            tier, why = "decompose, library or cpu", f"native_ops of {profile_file} does not list it"
        else:
            tier, why = "decompose, library or cpu", "the adapter has no kernel"
        routes.append({"uniop": uniop, "tier": tier, "why": why})
    return routes


def conform(context: typer.Context) -> None:
    """Run the conformance suite on an adapter; its options are its own."""
    if importlib.util.find_spec("torch_fl.conformance") is None:
        raise MissingPart("the conformance suite (torch_fl.conformance) is not part of this installation; until it is, "
                          "`flagos-torch-fl diagnose` tries an adapter")
    suite = importlib.import_module("torch_fl.conformance")
    raise typer.Exit(suite.main(list(context.args)))
