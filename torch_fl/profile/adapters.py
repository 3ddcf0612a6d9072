"""Which chips this machine has adapters for, where their libraries are, and which of them a process opens.

A chip comes from a registered profile, from TORCH_FL_ADAPTER_PATH, from an installed package (entry point group
`torch_fl.adapters`) or with Torch-FL itself; the first of these decides when two know the same name. `discover()` makes
of them the specs that the C++ core opens (struct AdapterSpec in csrc/core/device.h). Opens no library itself.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch_fl import _env
from torch_fl._errors import AdapterError, ConfigError, FlError, ProfileError
from torch_fl.profile import config as configuration
from torch_fl.profile import registry
from torch_fl.profile.chip_profile import ChipProfile
from torch_fl.profile.home import cache_dir
from torch_fl.profile.loader import load
from torch_fl.profile.op_plan import aten_pins, plan
from torch_fl.profile.validation import suggestion
from torch_fl.profile.visible import visible

__all__ = [
    "Chip", "chips", "discover", "failures", "find", "include_dir", "library_beside", "request", "spec", "spec_for",
]

ENTRY_POINT_GROUP = "torch_fl.adapters"
PROFILE_FILE = "profile.json"
_PACKAGE = Path(__file__).resolve().parent.parent
_failures: list[dict[str, str]] = []
_requested: list[dict[str, Any]] = []  # specs asked for by register_device() before chips were opened


@dataclass(frozen=True)
class Chip:
    """A chip that can be opened, or the reason why not.

    Attributes:
        origin: "registered", "adapter path", "installed" or "bundled".
    """

    name: str
    origin: str
    library: Path | None
    profile: ChipProfile | None = None
    profile_path: Path | None = None
    error: str | None = None


# ---------------------------------------------------------------- finding


def chips() -> list[Chip]:
    """Return every chip that is known here, in order of name, also those that cannot be opened.

    Where several places know one name, the first of registered, adapter path, installed, bundled decides. A folder of
    registered profiles that cannot be read is told by `failures()`; the other chips are still known.
    """
    known: dict[str, Chip] = {}
    try:
        for chip in _registered():
            known[chip.name] = chip
    except ProfileError as error:
        _fail(registry.folder(), str(error))
    for chip in (*_adapter_path(), *_installed(), *_bundled()):
        known.setdefault(chip.name, chip)
    return sorted(known.values(), key=lambda chip: _natural(chip.name))


def find(name: str) -> Chip:
    """Return the chip of this name.

    Raises:
        AdapterError: none is known by it.
    """
    known = chips()
    for chip in known:
        if chip.name == name:
            return chip
    names = [chip.name for chip in known]
    # A profile that cannot be read may be the one that is meant: it is known by its folder only.
    unread = "".join(f". {chip.error}" for chip in known if chip.error and chip.profile is None and chip.profile_path)
    raise AdapterError(f'no chip "{name}" is known here{suggestion(name, names)}; known: '
                       f"{', '.join(names) or 'none'}. Register its profile with `flagos-torch-fl register-device`, or "
                       f"install its adapter{unread}")


def library_beside(profile: ChipProfile, source: Path) -> Path | None:
    """Return the adapter library that stands next to the profile's file and that the profile means, or None."""
    adapter = profile.adapter or profile.device_name
    folder = source.resolve().parent
    if "/" in adapter:
        path = folder / adapter
        return path.resolve() if path.is_file() else None
    return _in_folder(folder, adapter)


def locate(profile: ChipProfile, source: Path | None) -> Path:
    """Return the profile's adapter library.

    Raises:
        AdapterError: it is nowhere; the text says where it was looked for.
    """
    adapter = profile.adapter or profile.device_name
    if source is not None and (beside := library_beside(profile, source)):
        return beside
    if "/" in adapter:
        raise AdapterError(f"adapter {adapter} of profile {source or profile.device_name} does not exist")
    chip_name = _chip_of(adapter)
    looked: list[str] = [str(source.resolve().parent)] if source else []
    for folder in (*_path_folders(), *_installed_folders(chip_name), *_bundled_folders(chip_name)):
        looked.append(str(folder))
        if library := _in_folder(folder, adapter):
            return library
    hint = "" if profile.adapter else (
        '. The profile names no adapter; `"adapter": "NAME"` chooses one (another chip\'s, to emulate this one)')
    raise AdapterError(f"no adapter library {' or '.join(_file_names(adapter))} for profile "
                       f"{source or profile.device_name}; looked in {', '.join(dict.fromkeys(looked))}{hint}")


def include_dir() -> Path:
    """Return the folder with torch_fl/adapter.h.

    Raises:
        AdapterError: the headers are not installed.
    """
    for folder in (*(place / "include" for place in _package_folders()), _PACKAGE.parent / "include"):
        if (folder / "torch_fl" / "adapter.h").is_file():
            return folder
    raise AdapterError(f"torch_fl/adapter.h is not in {_PACKAGE / 'include'}: the installation is not complete")


def _file_names(adapter: str) -> tuple[str, ...]:
    if adapter.endswith(".so"):
        return (adapter,)
    return (f"libfl_{adapter}.so", f"lib{adapter}.so", f"{adapter}.so")


def _chip_of(adapter: str) -> str:
    return re.sub(r"^lib(fl_)?|\.so$", "", adapter) if adapter.endswith(".so") else adapter


def _in_folder(folder: Path, adapter: str) -> Path | None:
    return next((folder / name for name in _file_names(adapter) if (folder / name).is_file()), None)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _from_profile(path: Path, origin: str) -> Chip:
    """Return the chip of a profile's file; a profile that is not valid, or has no adapter, is told in `error`."""
    try:
        profile = load(path)
    except ProfileError as error:
        return Chip(path.parent.name, origin, None, None, path, str(error))
    try:
        return Chip(profile.device_name, origin, locate(profile, path), profile, path)
    except AdapterError as error:
        return Chip(profile.device_name, origin, None, profile, path, str(error))


def _registered() -> Iterator[Chip]:
    for entry in registry.registered():
        if entry.profile is None:
            yield Chip(entry.name, "registered", None, None, entry.path, entry.error)
        else:
            chip = _from_profile(entry.path, "registered")
            yield replace(chip, name=entry.name)  # the file may have become invalid since it was read


def _adapter_path() -> Iterator[Chip]:
    for path in _env.get("TORCH_FL_ADAPTER_PATH"):
        profile = (path if path.is_dir() else path.parent) / PROFILE_FILE
        if profile.is_file():
            yield _from_profile(profile, "adapter path")
        elif path.is_file():
            yield Chip(_chip_of(path.name), "adapter path", path.resolve())
        elif path.is_dir():
            for library in sorted(path.glob("libfl_*.so")):
                yield Chip(_chip_of(library.name), "adapter path", library)
        else:
            yield Chip(_chip_of(path.name), "adapter path", None,
                       error=f"TORCH_FL_ADAPTER_PATH names {path}, which does not exist")


def _path_folders() -> list[Path]:
    return [path if path.is_dir() else path.parent for path in _env.get("TORCH_FL_ADAPTER_PATH")]


def _installed() -> Iterator[Chip]:
    for entry in _entry_points():
        folder = _folder_of(entry)
        if folder is None:
            yield Chip(entry.name, "installed", None, error=f"the entry point {entry.name} = {entry.value} of group "
                       f"{ENTRY_POINT_GROUP} names no module that can be found; reinstall its package")
        elif (folder / PROFILE_FILE).is_file():
            yield _from_profile(folder / PROFILE_FILE, "installed")
        elif library := _in_folder(folder, entry.name):
            yield Chip(entry.name, "installed", library)
        else:
            yield Chip(entry.name, "installed", None, error=f"{folder} holds neither {PROFILE_FILE} nor "
                       f"{' nor '.join(_file_names(entry.name))}; reinstall its package")


def _installed_folders(name: str) -> list[Path]:
    return [folder for entry in _entry_points() if entry.name == name and (folder := _folder_of(entry))]


def _entry_points() -> list[importlib.metadata.EntryPoint]:
    return sorted(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name)


def _folder_of(entry: importlib.metadata.EntryPoint) -> Path | None:
    # find_spec, not import: an adapter's package need not run any code to be found.
    try:
        found = importlib.util.find_spec(entry.value.partition(":")[0].strip())
    except Exception:  # a broken parent package raises whatever it likes
        return None
    if found is None:
        return None
    if found.submodule_search_locations:
        return Path(next(iter(found.submodule_search_locations)))
    return Path(found.origin).parent if found.origin else None


def _bundled() -> Iterator[Chip]:
    """A folder of chips/ is a chip; the files of its profiles/ are chips of the same adapter."""
    names = {folder.name for root in (*(place / "chips" for place in _package_folders()), _PACKAGE.parent / "chips")
             if root.is_dir() for folder in root.iterdir() if (folder / PROFILE_FILE).is_file()}
    for name in sorted(names):
        folder = next(folder for folder in _bundled_folders(name) if (folder / PROFILE_FILE).is_file())
        for path in (folder / PROFILE_FILE, *sorted((folder / "profiles").glob("*.json"))):
            yield _from_profile(path, "bundled")


def _bundled_folders(name: str) -> list[Path]:
    """Folders of a chip that comes with Torch-FL: installed, or in the source tree and what was built of it."""
    root = _PACKAGE.parent
    folders = [place / "chips" / name for place in _package_folders()]
    folders.append(root / "chips" / name)
    for pattern in (f"build/chips/{name}", f"build/chips/{name}/*", f"build/*/chips/{name}", f"build/*/chips/{name}/*"):
        folders += sorted(path for path in root.glob(pattern) if any(path.glob("*.so")))
    return list(dict.fromkeys(folders))


def _package_folders() -> list[Path]:
    """Where the package's files are: an editable install keeps compiled files apart from the sources."""
    folders = [_PACKAGE]
    package = importlib.util.find_spec("torch_fl")
    folders += [Path(place) for place in (package.submodule_search_locations or ()) if package] if package else []
    compiled = importlib.util.find_spec("torch_fl._C")
    if compiled is not None and compiled.origin:
        folders.append(Path(compiled.origin).resolve().parent)
    return list(dict.fromkeys(folders))


# ---------------------------------------------------------------- choosing


def discover() -> list[dict[str, Any]]:
    """Return the specs of the adapters that this process opens, in the order of their devices.

    The chips are those of TORCH_FL_CHIPS, else of `devices` in the configuration file, else every registered profile,
    every adapter of TORCH_FL_ADAPTER_PATH and every installed one, else the bundled reference chip. Installed and
    bundled chips that are opened on request only are not among them. One that cannot be opened is left out, logged, and
    told by `failures()`.

    Raises:
        ConfigError: the configuration, or an environment variable, is not valid or names a chip that is not known.
    """
    _failures.clear()
    config, document = configuration.load_document()
    specs = []
    chosen = _chosen(config, document)
    if _requested and all(chip.origin == "bundled" and entry is None for chip, entry in chosen):
        chosen = []  # the bundled chip stands in only where nothing was asked for
    for chip, entry in chosen:
        if chip.error is not None:
            _fail(chip.library or chip.profile_path or chip.name, f"chip {chip.name} is left out: {chip.error}")
        else:
            specs.append(spec(chip, config, entry))
    asked = {spec["device_name"]: spec for spec in _requested if spec["device_name"]}
    # A chip asked for keeps its place in the configured order, so that fl:N does not depend on who was asked first.
    specs = [asked.pop(found["device_name"], found) for found in specs]
    specs += [spec for spec in _requested if not spec["device_name"] or spec["device_name"] in asked]
    return visible(specs, _env.get("TORCH_FL_VISIBLE_DEVICES"))


def request(wanted: dict[str, Any]) -> None:
    """Make `discover()` open a spec too; for a chip registered before any was opened."""
    if wanted not in _requested:
        _requested.append(wanted)


def failures() -> list[dict[str, str]]:
    """Return what the last `discover()` left out: dicts of `path` and `reason`."""
    return list(_failures)


def spec_for(name: str) -> dict[str, Any]:
    """Return the spec of one chip, whatever the configuration chooses.

    Args:
        name: a chip that is known here, a profile's file (*.json) or an adapter library (*.so).

    Raises:
        FlError: it is not known, or cannot be opened.
    """
    config = configuration.load_config()
    if name.endswith(".json"):
        profile = load(name)
        chip = Chip(profile.device_name, "file", locate(profile, Path(name)), profile, Path(name).resolve())
    elif name.endswith(".so"):
        if not Path(name).is_file():
            raise AdapterError(f"adapter library {name} does not exist")
        chip = Chip(_chip_of(Path(name).name), "file", Path(name).resolve())
    else:
        chip = find(name)
    if chip.error is not None:
        raise AdapterError(f"chip {chip.name} cannot be used: {chip.error}")
    entry = next((entry for entry in config.devices or () if entry.type == chip.name), None)
    return spec(chip, config, entry)


def spec(chip: Chip, config: configuration.Config | None = None,
         entry: configuration.ConfiguredDevice | None = None) -> dict[str, Any]:
    """Return the fields of struct AdapterSpec (csrc/core/device.h) for a chip that has a library."""
    config = config or configuration.Config()
    result: dict[str, Any] = {
        "path": str(chip.library),
        # A library without a profile goes by the name in its own table.
        "device_name": chip.profile.device_name if chip.profile else "",
        "profile_path": str(chip.profile_path or ""),
        "max_devices": -1 if entry is None or entry.count is None else entry.count,
        "memory_fraction": 1.0 if entry is None else float(entry.memory_fraction),
        "max_split_bytes": configuration.max_split_bytes(config),
        "garbage_collection_threshold": float(configuration.garbage_collection_threshold(config)),
        "expandable_segments": configuration.expandable_segments(config),
        "cache_dir": _cache_folder(chip),
    }
    if chip.profile is None:
        return result
    profile, ops, pool = chip.profile, plan(chip.profile), chip.profile.memory_pool
    restricted = profile.dtypes is not None or profile.fp16_supported is False or profile.bf16_supported is False
    result.update(
        only_listed=ops.only_listed,
        native=ops.native,
        not_native=sorted(ops.pinned),
        pins=aten_pins(ops),
        match=profile.match.globs(),
        options=profile.option_texts(),
        cache_max_mb=profile.kernel_cache.max_mb,
        dtypes=list(profile.effective_dtypes()) if restricted else [],
        memory_limit_bytes=(pool.total_mb or 0) << 20,
        prealloc_bytes=pool.prealloc_mb << 20,
        min_block_bytes=pool.min_block_bytes,
        alignment=pool.alignment,
        constraints=profile.constraints.given(),
        op_constraints={uniop: constraints.given() for uniop, constraints in ops.constraints.items()},
        sync_primitive=profile.sync_primitive,
    )
    if profile.unified_memory is not None:
        result["unified_memory"] = profile.unified_memory
    return result


def _cache_folder(chip: Chip) -> str:
    """Where the chip's adapter keeps files; nowhere is an empty text."""
    cache = chip.profile.kernel_cache if chip.profile else None
    if cache is None or (cache.enable and cache.path is None):
        return str(cache_dir())
    if not cache.enable:
        return ""
    beside = chip.profile_path.resolve().parent if chip.profile_path else Path.cwd()
    return str(beside / Path(cache.path).expanduser())


def _chosen(config: configuration.Config, document: Any) -> list[tuple[Chip, configuration.ConfiguredDevice | None]]:
    entries = {entry.type: entry for entry in config.devices or ()}
    names = _env.get("TORCH_FL_CHIPS")
    if names is not None:
        variable = (_env.raw("TORCH_FL_CHIPS") or ("TORCH_FL_CHIPS", ""))[0]
        return [(_must_find(name, f"environment variable {variable}"), entries.get(name)) for name in names]
    if config.devices is not None:
        return [(_must_find(entry.type, f"{document.file}:{document.line(('devices', position, 'type'))}: "
                            f"devices[{position}].type"), entry) for position, entry in enumerate(config.devices)]
    known = [chip for chip in chips() if not _waits(chip)]
    wanted = [chip for chip in known if chip.origin != "bundled"]
    # Of two chips of one library, the one that chooses its devices comes before the one that takes what is left.
    chooses = {chip.library for chip in wanted if chip.profile and chip.profile.match.globs()}
    wanted.sort(key=lambda chip: chip.library in chooses and not (chip.profile and chip.profile.match.globs()))
    return [(chip, None) for chip in wanted or known]


def _waits(chip: Chip) -> bool:
    return chip.origin in ("installed", "bundled") and chip.profile is not None and chip.profile.on_request


def _fail(path: Path | str, reason: str) -> None:
    failure = {"path": str(path), "reason": reason}
    if failure not in _failures:
        _failures.append(failure)
        logging.getLogger("torch_fl.profile").warning("%s", reason)


def _must_find(name: str, who: str) -> Chip:
    try:
        return find(name)
    except FlError as error:
        raise ConfigError(f"{who}: {error}") from None
