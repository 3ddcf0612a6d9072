"""Operands on two devices: every operator refuses them with PyTorch's error, or does what CUDA documents. Seconds.

Each entry of PyTorch's operator database is called with one tensor operand on another chip, or on the CPU, and the rest
on the device. Which operators may take operands of several devices is PyTorch's to say (native_functions.yaml); the
entries that stand on such operators, or check by themselves, are listed here with the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from opinfo_cases import DEVICE, OPS, dtype_of, quiet
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_unflatten

CPU = torch.device("cpu")
SAMPLES = 12  # of an entry; those whose tensors have the same numbers of dimensions count as one

# Entries that take operands of several devices, with CUDA too.
TAKES_SEVERAL = {
    **dict.fromkeys(("expand_as", "reshape_as", "view_as", "resize_as_"), "reads the sizes of the second"),
    **dict.fromkeys(("broadcast_tensors", "atleast_1d", "atleast_2d", "atleast_3d"), "views of each by itself"),
    **dict.fromkeys(("as_strided_scatter", "diagonal_scatter", "select_scatter", "slice_scatter"),
                    "copies, as copy_()"),
    **dict.fromkeys(("linspace.tensor_overload", "logspace.tensor_overload", "index_fill", "narrow"),
                    "reads a number, as item()"),
    **dict.fromkeys(("index_put", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate"),
                    "moves the indices to the indexed tensor"),
    "tensor_split": "wants its sections on the CPU",
    "nn.functional.ctc_loss": "moves the targets to the probabilities",
    **dict.fromkeys(("nn.functional.batch_norm", "nn.functional.batch_norm.without_cudnn", "nn.functional.bilinear",
                     "linalg.pinv"), "answers for an empty batch without reading the rest"),
}  # fmt: skip
# Entries that take operands of several chips, and refuse the CPU beside a chip.
TAKES_SEVERAL_CHIPS = {"equal": "its answer is the host's; CUDA refuses it"}
# Entries with an error of PyTorch's own that does not name both devices.
OWN_ERROR = {
    **dict.fromkeys(("meshgrid.variadic_tensors", "meshgrid.list_of_tensors", "cartesian_prod"),
                    "expects all tensors to have the same device"),
    "_chunk_cat": "expects all inputs tensors on the same device",
    "_unsafe_masked_index": "indices should be either on cpu or on the same device",
    "tensor_split": "to be on cpu",
    "inner": "DeviceType",
    "nn.functional.conv_transpose3d": "should be the same",
}  # fmt: skip


def calls(op: OpInfo, other: torch.device) -> Iterator[tuple[torch.Tensor, Any, tuple, dict]]:
    """The entry's calls with one operand on `other`: that operand, and the call."""
    torch.manual_seed(0)
    seen = set()
    for sample in itertools.islice(op.sample_inputs("cpu", dtype_of(op)), SAMPLES):
        leaves, spec = tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
        tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        form = tuple((i, leaves[i].dim()) for i in tensors)
        if len(tensors) < 2 or form in seen:
            continue
        seen.add(form)
        for odd in tensors:
            moved = [leaf.to(other if i == odd else DEVICE) if i in tensors else leaf for i, leaf in enumerate(leaves)]
            yield moved[odd], *tree_unflatten(moved, spec)


def finding(name: str, op: OpInfo, other: torch.device, odd: torch.Tensor, call: tuple) -> str | None:
    """What is wrong with the outcome of one call, or None."""
    x, args, kwargs = call
    value = other == CPU and odd.dim() == 0  # a number of the CPU, as TensorIterator takes them
    try:
        op(x, *args, **kwargs)
        torch.accelerator.synchronize(DEVICE)
    except RuntimeError as error:
        text = str(error)
        if "device" in text.lower() and str(other) in text and str(DEVICE) in text:
            return None
        if value and "too many CPU scalars" in text:
            return None
        known = name in OWN_ERROR and OWN_ERROR[name] in text
        return None if known else f"raises {' '.join(text.split())[:200]}"
    several = name in TAKES_SEVERAL or (other != CPU and name in TAKES_SEVERAL_CHIPS)
    return None if value or several else "computes"


def sweep(other: torch.device) -> tuple[int, list[str]]:
    """Call every entry; return how many calls were right, and what was wrong with the others."""
    right, findings = 0, []
    with quiet():
        for name, op in OPS.items():
            if name.startswith("jiterator"):
                continue  # CUDA only
            for odd, *call in calls(op, other):
                wrong = finding(name, op, other, odd, tuple(call))
                right += wrong is None
                if wrong is not None:
                    findings.append(f"{name} with {tuple(odd.shape)} {odd.dtype} on {other} {wrong}")
    return right, findings


@pytest.mark.parametrize("where", ["another chip", "cpu"])
def test_every_operator_refuses_operands_of_two_devices(where: str) -> None:
    other = CPU if where == "cpu" else torch.device("fl", (DEVICE.index + 1) % torch.fl.device_count())
    if other == DEVICE:
        pytest.skip("there is one device")
    # PyTorch keeps a stack trace for each seed that a sample sets: on a thread of its own the stack is short.
    with ThreadPoolExecutor(1) as thread:
        refused, findings = thread.submit(sweep, other).result()
    assert not findings, f"{len(findings)} calls:\n" + "\n".join(findings)
    assert refused > 500, f"only {refused} calls had two tensors"


def test_the_exceptions_name_entries() -> None:
    assert set(TAKES_SEVERAL) <= set(OPS)
    assert set(OWN_ERROR) <= set(OPS)


def test_what_the_cpu_tier_would_have_copied() -> None:
    """A whole model's input forgotten on the CPU, and operators of the tiers after native."""
    images = torch.randn(1, 3, 8, 8)
    with pytest.raises(RuntimeError, match="same device|should be the same"):
        torch.nn.Conv2d(3, 4, 3).to(DEVICE)(images)
    grad, weight = torch.ones(1, 4, 6, 6, device=DEVICE), torch.ones(4, 3, 3, 3, device=DEVICE)
    with pytest.raises(RuntimeError, match=f"same device.*{DEVICE}.*cpu"):  # PyTorch's own would read device memory
        torch.ops.aten.convolution_backward(grad, images, weight, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1,
                                            [True, True, True])  # fmt: skip
    with pytest.raises(RuntimeError, match=f"same device.*{DEVICE}.*cpu"):
        torch.linalg.lstsq(torch.eye(3, device=DEVICE), torch.ones(3, 1))
    with pytest.raises(RuntimeError, match="same device"):
        torch.ops.aten._cdist_forward(torch.ones(2, 3, device=DEVICE), torch.ones(2, 3), 2.0, None)


def test_numbers_and_indices_of_the_cpu_are_taken() -> None:
    x = torch.arange(6.0, device=DEVICE)
    assert (x + torch.tensor(1.0)).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert torch.xlogy(x, torch.tensor(1.0)).tolist() == [0.0] * 6  # through the CPU tier on some chips
    assert x[torch.tensor([4, 1])].tolist() == [4.0, 1.0]
    x[torch.tensor([0])] = torch.tensor(9.0)
    assert x.tolist()[0] == 9.0
    custom = torch.library.Library("two_devices", "DEF")
    custom.define("scale(Tensor x, Tensor factors) -> Tensor")
    custom.impl("scale", lambda x, factors: x * factors.sum(), "CPU")
    assert torch.ops.two_devices.scale(x, torch.tensor([1.0, 2.0])).device == DEVICE
