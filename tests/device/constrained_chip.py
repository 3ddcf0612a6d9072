"""Builds variants of the small test adapter, adapters/constrained.c, and registers their devices."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import torch

import torch_fl
from torch_fl.profile.adapters import include_dir


class Chip:
    """A registered variant: its device and what its kernels have counted."""

    def __init__(self, folder: Path, name: str, *flags: str) -> None:
        library = folder / f"libfl_{name}.so"
        source = Path(__file__).parent / "adapters" / "constrained.c"
        subprocess.run(
            [
                "gcc",
                "-std=c11",
                "-O1",
                "-shared",
                "-fPIC",
                "-D_POSIX_C_SOURCE=200809L",
                f"-DCHIP={name}",
                *flags,
                f"-I{include_dir()}",
                str(source),
                "-o",
                str(library),
                "-lm",
            ],
            check=True,
        )
        torch.fl.init()  # the reference chip first: fl:0 and fl:1
        (self.device,) = torch_fl.register_device(str(library))
        self._library = ctypes.CDLL(str(library))

    @property
    def violations(self) -> int:
        """Operands that the chip's kernels got although they had declared not to take such."""
        return self._library.constrained_violations()

    @property
    def launches(self) -> int:
        return self._library.constrained_launches()


def drop_aliases() -> None:
    """register_device() makes names stand for devices on this thread; other tests should not see it."""
    from torch_fl.device import _alias

    for name in list(_alias.aliases()):
        torch_fl.unregister_alias(name)
    assert not torch._C._len_torch_function_stack()
