"""Cases of errors: what is wrong is refused with the right exception, and the device goes on."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torch_fl.conformance.case import Context, case, expect, expect_equal
from torch_fl.conformance.memory import pattern


def refused(what: str, action: Callable[[], object], *kinds: type[BaseException]) -> str:
    """Run the action, which must raise one of `kinds`; returns the text."""
    try:
        action()
    except kinds as error:
        expect(str(error).strip(), f"{what} is refused without a word")
        return str(error)
    expect(False, f"{what} is accepted")
    return ""


def works(context: Context) -> None:
    expect_equal(pattern(5000, 1).to(context.device), pattern(5000, 1), "a copy after the error")


@case("error")
def no_such_device(context: Context) -> None:
    """A device index that does not exist is refused."""
    for index in (99, 63):
        text = refused(
            f"device {index}", lambda i=index: torch.empty(1, device=f"{context.device.type}:{i}"), RuntimeError
        )
        expect(str(index) in text, f"the text does not name the index: {text}")
    works(context)


@case("error")
def index_out_of_range(context: Context) -> None:
    """An index outside its tensor raises, at the latest when the result is read."""
    x = torch.arange(10.0).to(context.device)
    for bad in (10, 1 << 40):
        index = torch.tensor([0, bad]).to(context.device)
        refused(f"index {bad} of 10", lambda i=index: torch.index_select(x, 0, i).cpu(), IndexError, RuntimeError)
        works(context)


@case("error")
def shapes_that_do_not_fit(context: Context) -> None:
    """Operands whose shapes do not fit are refused before the chip sees them."""
    a, b = torch.ones(2, 3).to(context.device), torch.ones(4, 5).to(context.device)
    refused("adding 2x3 and 4x5", lambda: a + b, RuntimeError)
    refused("multiplying 2x3 and 4x5", lambda: a @ b, RuntimeError)
    works(context)


@case("error")
def operands_on_two_devices(context: Context) -> None:
    """Operands of two devices are refused."""
    a, b = torch.ones(3).to(context.device), torch.ones(3).to(context.second())
    refused("adding operands of two devices", lambda: (a + b).cpu(), RuntimeError)
    works(context)


@case("error")
def impossible_size(context: Context) -> None:
    """A size beyond every memory is an error, not a crash."""
    refused("2^60 bytes", lambda: torch.empty(1 << 60, dtype=torch.uint8, device=context.device), RuntimeError)
    works(context)


@case("error")
def repeated_failures(context: Context) -> None:
    """A hundred refused requests leave nothing behind."""
    from torch_fl import _C

    torch.accelerator.empty_cache()
    before = _C.memory_info(context.device.index)[0]
    size = context.info["total_memory"] * 2
    for _ in range(100):
        refused(
            "twice the memory",
            lambda: torch.empty(size, dtype=torch.uint8, device=context.device),
            torch.OutOfMemoryError,
        )
    torch.accelerator.empty_cache()
    after = _C.memory_info(context.device.index)[0]
    expect(after >= before, f"{before - after} bytes are lost")
    works(context)
