"""The folder ~/.torch_fl (or TORCH_FL_HOME): where it is, and how files in it are written.

Several processes may write at once and any of them may be killed: a writer holds a lock, writes beside the target and
renames, so that a reader sees the old file or the new one and never a part of it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from torch_fl import _env

__all__ = ["cache_dir", "home", "locked", "write_atomically"]


def home() -> Path:
    """Return the folder; it need not exist.

    A user without a home (a container's random uid) has none, and reads as one with an empty folder.
    """
    path = os.path.expanduser(str(_env.get("TORCH_FL_HOME")))
    return Path("/nonexistent/.torch_fl" if path.startswith("~") else path)


def cache_dir() -> Path:
    """Return the folder of what adapters keep between processes; it need not exist."""
    chosen = _env.get("TORCH_FL_CACHE_DIR")
    return (home() / "cache" if chosen is None else chosen).absolute()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which one thread of one process has at a time. Makes the folder.

    Raises:
        OSError: the folder cannot be made or written to.
    """
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # which also unlocks


def write_atomically(target: Path, text: str) -> None:
    """Replace the file's content as a whole; on failure the old file stays and nothing is left behind.

    Raises:
        OSError: the disk is full, the folder is not writable, …
    """
    temporary = target.parent / f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    # Makes the rename itself durable; file systems that cannot do it are no reason to fail.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
