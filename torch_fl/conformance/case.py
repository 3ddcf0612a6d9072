"""What a case of the suite is, how the files of cases declare theirs, and what a case is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["TAGS", "Case", "Context", "Failed", "NotApplicable", "case", "declared", "expect", "expect_equal"]

TAGS = ("memory", "stream", "event", "error", "kernel")


class NotApplicable(Exception):
    """The case has no meaning on this chip; the text says why."""


class Failed(Exception):
    """What the chip did is not what it must do."""


@dataclass(frozen=True)
class Context:
    """What a case may use.

    Attributes:
        device: where it runs.
        others: further devices of the same chip.
        info: what the adapter says of the device (_C.device_info).
        kernels: (UniOp, computing type, first output's type) of each kernel of the adapter that the profile allows.
    """

    device: torch.device
    others: tuple[torch.device, ...]
    info: dict[str, Any]
    kernels: tuple[tuple[str, str, str], ...]

    def second(self) -> torch.device:
        """Return another device of the chip.

        Raises:
            NotApplicable: it has only one.
        """
        if not self.others:
            raise NotApplicable("the chip has one device here")
        return self.others[0]


@dataclass(frozen=True)
class Case:
    """One thing that must hold; `run` raises where it does not."""

    name: str  # "memory.alignment", "kernel.add.float32"
    doc: str
    run: Callable[[Context], None]

    @property
    def tag(self) -> str:
        return self.name.partition(".")[0]


_declared: list[Case] = []


def case(tag: str) -> Callable[[Callable[[Context], None]], Callable[[Context], None]]:
    """Declare a function as a case; its name and docstring become the case's."""

    def declare(function: Callable[[Context], None]) -> Callable[[Context], None]:
        doc = (function.__doc__ or "").strip().splitlines()
        _declared.append(Case(f"{tag}.{function.__name__}", doc[0] if doc else "", function))
        return function

    return declare


def declared() -> list[Case]:
    """Return the cases declared so far, in order."""
    return list(_declared)


def expect(condition: object, text: str) -> None:
    """Fail the case with `text` unless the condition holds."""
    if not condition:
        raise Failed(text)


def expect_equal(found: Any, expected: Any, what: str) -> None:
    """Fail the case unless a device tensor (or a value) equals the expected CPU tensor (or value), bit for bit."""
    if isinstance(expected, torch.Tensor):
        found = found.cpu()
        same = (
            torch.equal(found, expected)
            if not expected.is_floating_point()
            else torch.equal(found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))
        )
        wrong = int((found != expected).sum()) if found.shape == expected.shape else -1
        expect(
            same,
            f"{what}: {wrong} of {expected.numel()} elements differ"
            if wrong >= 0
            else f"{what}: shape {tuple(found.shape)} in place of {tuple(expected.shape)}",
        )
    else:
        expect(found == expected, f"{what}: {found!r} in place of {expected!r}")
