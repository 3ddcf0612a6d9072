"""init-profile, register-device, unregister-device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from torch_fl.cli.compiled import compiled
from torch_fl.cli.output import MissingPart, Refused, print_json

__all__ = ["add_to", "profile_of_adapter"]

JSON = typer.Option(False, "--json", help="Answer in JSON.")


def add_to(app: typer.Typer) -> None:
    """Add this file's commands."""
    app.command("init-profile")(init_profile)
    app.command("register-device")(register_device)
    app.command("unregister-device")(unregister_device)


def init_profile(
    device: str = typer.Option(..., "--device", metavar="NAME", help="A chip known here, or an adapter's *.so file."),
    output: Path = typer.Option(Path("chip_profile.json"), "--output", "-o", help="File to write; - is stdout."),
    force: bool = typer.Option(False, "--force", help="Replace the file if it exists."),
    as_json: bool = JSON,
) -> None:
    """Write a profile from what the chip's adapter says of itself."""
    from torch_fl.profile.home import write_atomically

    to_stdout = str(output) == "-"
    if not to_stdout and output.exists() and not force:
        raise Refused(f"{output} exists; --force replaces it")
    text = render(profile_of_adapter(device))
    if to_stdout:
        print(text, end="")
        return
    write_atomically(output.absolute(), text)
    if as_json:
        print_json({"written": str(output), "device_name": device})
    else:
        print(f"wrote {output}; edit it, then: flagos-torch-fl register-device --profile {output}")


def register_device(
    profile: Path = typer.Option(..., "--profile", help="The chip_profile.json to register."),
    check: bool = typer.Option(False, "--check", help="Check the profile and its adapter; register nothing."),
    force: bool = typer.Option(False, "--force", help="Replace another profile of this name; allow no adapter."),
    as_json: bool = JSON,
) -> None:
    """Register a chip by its profile, for all later processes of this user."""
    from torch_fl._errors import AdapterError
    from torch_fl.profile import adapters, loader, registry

    loaded = loader.load(profile)
    adapter, missing = None, None
    try:
        adapter = adapters.locate(loaded, profile)
    except AdapterError as error:
        if not force:
            raise
        missing = str(error)
    if adapter is not None and loaded.options:
        missing = _refused_options(loaded, profile, adapter, force)
    answer: dict[str, Any] = {"device_name": loaded.device_name, "profile": str(profile),
                              "adapter": str(adapter) if adapter else None, "registered": None}
    if missing:
        answer["warning"] = missing
    if not check:
        answer["registered"] = str(registry.register(profile, force=force).path)
    if as_json:
        print_json(answer)
        return
    if missing:
        typer.echo(f"warning: {missing}", err=True)
    print(f"{profile} is a valid profile of {loaded.device_name}; adapter: {adapter or 'none'}" if check else
          f"registered {loaded.device_name} ({answer['registered']}); adapter: {adapter or 'none'}")


def _refused_options(loaded: Any, profile: Path, adapter: Path, force: bool) -> str | None:
    """Ask the library whether it takes the profile's options; a warning where it cannot be asked.

    Raises:
        Refused: it does not take one, and `force` is off.
    """
    try:
        refused = compiled().refused_options(str(adapter), loaded.option_texts())
    except (MissingPart, RuntimeError) as error:
        return f"the options of {profile} are not checked: {error}"
    if not refused:
        return None
    told = "; ".join(f"{key}={loaded.option_texts()[key]}: {reason}" for key, reason in refused)
    message = f"adapter {adapter} refuses options of {profile}: {told}. The chip could not be opened with them"
    if not force:
        raise Refused(f"{message}: correct them; --force registers the profile all the same")
    return message


def unregister_device(
    name: str = typer.Argument(..., help="The profile's device_name."),
    as_json: bool = JSON,
) -> None:
    """Remove a registered profile."""
    from torch_fl.profile import registry

    removed = registry.unregister(name)
    if as_json:
        print_json({"device_name": name, "removed": str(removed)})
    else:
        print(f"unregistered {name} ({removed})")


def profile_of_adapter(name: str) -> dict[str, Any]:
    """Return a profile, as JSON data, that says what the adapter of chip `name` offers on its first device."""
    from torch_fl.profile.chip_profile import DTYPES
    from torch_fl.profile.schema import SCHEMA_FILE

    library, device_name, adapter, chosen = _adapter_of(name)
    core = compiled()
    if not core.devices_opened():
        core.set_discover(lambda: [])  # this one adapter is enough
    try:
        identity = core.open_adapter(library)
        # Without a profile, so that nothing hides what the adapter has.
        info = core.device_info(core.add_adapter({"path": library, **chosen})[0])
        kernels = core.adapter_kernels(library, info.get("ordinal", 0))
    except (RuntimeError, IndexError) as error:
        raise Refused(f"adapter {library} does not work here: {error}") from None
    types: dict[str, set[str]] = {}
    for uniop, *pair in kernels:
        types.setdefault(uniop, set()).update(pair)
    used = set().union(*types.values())
    has = [dtype for dtype in DTYPES if dtype in used]
    profile: dict[str, Any] = {
        "$schema": SCHEMA_FILE.as_uri(),
        "device_name": device_name or identity["name"],
        "arch": info["arch"],
        "adapter": adapter,
        "memory_pool": {"prealloc_mb": 0, "min_block_bytes": max(512, info["alignment"]),
                        "alignment": info["alignment"]},
    }
    profile.update(chosen)
    if has:
        profile["dtypes"] = has
    profile["fp16_supported"] = "float16" in used
    profile["bf16_supported"] = "bfloat16" in used
    profile["unified_memory"] = "host_visible" in info["capabilities"]
    profile["native_ops"] = [_native_op(uniop, types[uniop], has) for uniop in types]
    return profile


def _adapter_of(name: str) -> tuple[str, str, str, dict[str, Any]]:
    """Return library, device_name (empty: the adapter's own), and what the profile's fields should say.

    These are the field `adapter`, and those of `match` and `options` that the chip's own profile has.
    """
    from torch_fl.profile import adapters

    spec = adapters.spec_for(name)
    library, chosen = spec["path"], {field: spec[field] for field in ("match", "options") if spec.get(field)}
    if name.endswith((".so", ".json")):
        return library, "", library, chosen
    chip = adapters.find(name)
    if chip.origin not in ("installed", "bundled"):
        return library, name, library, chosen
    shared = chip.profile is not None and chip.profile.match.globs() and chip.profile.adapter
    return library, name, shared or name, chosen


def _native_op(uniop: str, types: set[str], has: list[str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"op": uniop, "compute": "native"}
    if types != set(has):
        entry["dtypes"] = [dtype for dtype in has if dtype in types]
    return entry


def render(profile: dict[str, Any]) -> str:
    """Return the profile as JSON text with one field, and one operator, on a line."""
    lines = [f"  {json.dumps(field)}: {json.dumps(value)}" for field, value in profile.items() if field != "native_ops"]
    entries = ",\n".join(f"    {json.dumps(entry)}" for entry in profile["native_ops"])
    lines.append(f'  "native_ops": [\n{entries}\n  ]' if entries else '  "native_ops": []')
    return "{\n" + ",\n".join(lines) + "\n}\n"
