"""Registered profiles: ~/.torch_fl/profiles/NAME.json, one per device_name.

A registered profile is a copy; an adapter named by a path relative to the original is stored as an absolute one.
Files are written under the folder's lock and replaced as a whole (home.py); reading needs no lock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from torch_fl._errors import ProfileError
from torch_fl.profile.chip_profile import ChipProfile
from torch_fl.profile.home import home, locked, write_atomically
from torch_fl.profile.loader import InvalidProfile, load

__all__ = ["AlreadyRegistered", "NotRegistered", "Registered", "find", "folder", "register", "registered", "unregister"]


class AlreadyRegistered(ProfileError):
    """Another profile of this device_name is registered."""


class NotRegistered(ProfileError):
    """No profile of this name is registered."""


@dataclass(frozen=True)
class Registered:
    """One file of the folder: a profile, or the reason why it is not usable."""

    name: str
    path: Path
    profile: ChipProfile | None
    error: str | None = None


def folder() -> Path:
    """Return the folder of registered profiles; it need not exist."""
    return home() / "profiles"


def register(source: str | Path, *, force: bool = False) -> Registered:
    """Register the profile in the file `source`.

    Args:
        source: a chip_profile.json.
        force: replace a registered profile of the same device_name that says something else.

    Returns:
        What is registered now. Registering the same content again changes nothing.

    Raises:
        InvalidProfile: the profile is not valid.
        AlreadyRegistered: another one of this name is registered.
        ProfileError: the folder cannot be written.
    """
    source = Path(source)
    profile = _with_absolute_adapter(load(source), source)
    target = folder() / f"{profile.device_name}.json"
    try:
        with locked(target.parent):
            existing = _read(target) if target.exists() else None
            if existing is not None and existing.profile == profile:
                return existing
            if existing is not None and not force:
                raise AlreadyRegistered(
                    f'a profile of device_name "{profile.device_name}" is already registered ({target}) and says '
                    f"something else than {source}{_difference(existing.profile, profile)}. Use --force to replace it, "
                    f"`flagos-torch-fl unregister-device {profile.device_name}` to remove it, or another device_name")
            for leftover in target.parent.glob(".*.tmp"):  # of a writer that was killed; a living one holds the lock
                leftover.unlink(missing_ok=True)
            write_atomically(target, render(profile))
    except OSError as error:
        raise ProfileError(_storage_message("register", target, error)) from error
    return Registered(profile.device_name, target, profile)


def unregister(name: str) -> Path:
    """Remove the registered profile `name`; returns the file that was removed.

    Raises:
        NotRegistered: there is none.
        ProfileError: the folder cannot be written.
    """
    target = folder() / f"{name}.json"
    known = [entry.name for entry in registered()]
    if name not in known:
        shown = ", ".join(known) if known else "none"
        raise NotRegistered(f'no profile "{name}" is registered in {folder()}; registered: {shown}')
    try:
        with locked(target.parent):
            target.unlink()
    except FileNotFoundError:
        raise NotRegistered(f'profile "{name}" was removed by another process') from None
    except OSError as error:
        raise ProfileError(_storage_message("unregister", target, error)) from error
    return target


def registered() -> list[Registered]:
    """Return all registered profiles by name, also those that are not usable, with the reason.

    Raises:
        ProfileError: the folder cannot be read.
    """
    try:
        files = sorted(path for path in folder().iterdir() if path.suffix == ".json" and path.name[0] != ".")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ProfileError(_storage_message("read", folder(), error)) from error
    return [entry for path in files if (entry := _read(path)).profile is not None or path.exists()]


def find(name: str) -> Registered | None:
    """Return the registered profile of this name, usable or not, or None."""
    return next((entry for entry in registered() if entry.name == name), None)


def render(profile: ChipProfile) -> str:
    """Return the profile as JSON text, without the fields that are at their defaults."""
    return json.dumps(_without_defaults(profile), indent=2, ensure_ascii=False) + "\n"


def _without_defaults(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_defaults(item) for item in value]
    if not isinstance(value, msgspec.Struct):
        return value
    result = {}
    for field in msgspec.structs.fields(value):
        item = getattr(value, field.name)
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        if item != default:
            result[field.encode_name] = _without_defaults(item)
    return result


def _read(path: Path) -> Registered:
    try:
        profile = load(path)
    except InvalidProfile as error:
        return Registered(path.stem, path, None, str(error))
    if profile.device_name != path.stem:
        return Registered(path.stem, path, None, f'{path}: device_name is "{profile.device_name}", but the file is '
                          f"named {path.name}; register the profile again")
    return Registered(path.stem, path, profile)


def _with_absolute_adapter(profile: ChipProfile, source: Path) -> ChipProfile:
    from torch_fl.profile.adapters import library_beside

    library = library_beside(profile, source)
    return msgspec.structs.replace(profile, adapter=str(library)) if library else profile


def _difference(old: ChipProfile | None, new: ChipProfile) -> str:
    if old is None:
        return " (the registered one is not valid)"
    fields = [field.encode_name for field in msgspec.structs.fields(ChipProfile)
              if getattr(old, field.name) != getattr(new, field.name)]
    return f" (of {', '.join(fields)})"


def _storage_message(action: str, path: Path, error: OSError) -> str:
    return f"cannot {action} {path}: {error.strerror or error}; TORCH_FL_HOME chooses another folder"
