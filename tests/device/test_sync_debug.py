"""TORCH_FL_SYNC_DEBUG: what fails is named by its ATen operator at the call, on every path work takes to a chip."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from ninguang_faults import Faults

from torch_fl import _C

DEVICE = "fl:1"
N = 1 << 12
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def debug() -> Iterator[None]:
    _C.set_sync_debug(True)
    yield
    _C.set_sync_debug(False)


def x() -> torch.Tensor:
    return torch.ones(64, 64, device=DEVICE)


def step(**kind: bool) -> Callable[[], None]:
    p = x().requires_grad_()
    p.grad = x()
    return torch.optim.SGD([p], lr=0.1, **kind).step


def backward() -> Callable[[], None]:
    y, gradient = x().requires_grad_() * x(), x()
    return lambda: y.backward(gradient)


# Makes the operands and returns what is to fail; the operator that is named.
QUEUED: dict[str, tuple[Callable[[], Callable[[], object]], str]] = {
    "elementwise": (lambda: lambda t=x(): t + 1, r"aten::add\.Tensor, UniOp add failed"),
    "in place": (lambda: lambda t=x(): t.mul_(2), r"aten::mul_\.Tensor, UniOp mul failed"),
    "type conversion": (lambda: lambda t=x(): t.to(torch.int32), r"aten::.*, UniOp copy failed"),
    "mixed types": (lambda: lambda t=x(), i=x().int(): t + i, r"aten::add\.Tensor"),
    "strided copy": (lambda: lambda t=x(): t.t().contiguous(), r"\(in aten::contiguous\)"),
    "fill": (lambda: lambda t=x(): t.fill_(3), r"aten::fill_\.Scalar, UniOp fill"),
    "factory": (lambda: lambda: torch.full((4, 4), 2.0, device=DEVICE), r"aten::full"),
    "random": (lambda: lambda t=x(): t.normal_(), r"aten::normal_, UniOp"),
    "dropout": (lambda: lambda t=x(): torch.nn.functional.dropout(t), r"aten::native_dropout|aten::bernoulli"),
    "reduction": (lambda: lambda t=x(): t.sum(), r"aten::sum"),
    "matmul": (lambda: lambda t=x(): t @ t, r"aten::mm.* \(in aten::matmul\), UniOp"),
    "softmax": (lambda: lambda t=x(): t.softmax(0), r"aten::_softmax.* \(in aten::softmax"),
    "index": (lambda: lambda t=x(), i=torch.tensor([1], device=DEVICE): t[i], r"aten::index\.Tensor"),
    "composition": (lambda: lambda t=x(): torch.nn.functional.layer_norm(t, (64,)), r"aten::native_layer_norm"),
    "optimizer, fused": (lambda: step(fused=True), r"aten::_fused_sgd_, UniOp sgd"),
    "optimizer, foreach": (lambda: step(foreach=True), r"aten::.*_foreach_add_"),
    "backward": (backward, r"\(in \w+Backward0\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", QUEUED)
def test_a_queued_failure_is_raised_at_its_operator(faults: Faults, debug: None, case: str) -> None:
    make, named = QUEUED[case]
    act = make()
    faults.arm("launch:1@1")
    with pytest.raises(RuntimeError, match=named) as caught:
        act()
    assert "NG_ERROR_LAUNCH_FAILED" in str(caught.value) and "fl:1" in str(caught.value)
    faults.disarm()
    torch.fl.synchronize(DEVICE)  # nothing is left to report


AT_ONCE: dict[str, tuple[Callable[[], Callable[[], object]], str, str]] = {
    "kernel": (lambda: lambda t=x(): t + 1, "call:ngOperatorLaunch:1", r"aten::add\.Tensor, UniOp add failed on fl:1"),
    "from the host": (lambda: lambda t=torch.ones(N): t.to(DEVICE), "copy:1", r"aten::.*, copy from the host failed"),
    "to the host": (lambda: x().cpu, "copy:1", r"aten::.*, copy to the host failed on fl:1"),
    "within the device": (lambda: x().clone, "copy:1", r"aten::.*, copy failed on fl:1"),
    "to another device": (lambda: lambda t=x(): t.to("fl:0"), "copy:1", r"copy to another device failed on fl:1"),
    "one element": (lambda: x().sum().item, "copy:1", r"aten::_local_scalar_dense.*, copy to the host failed"),
    "resize": (lambda: lambda t=x(): t.untyped_storage().resize_(1 << 20), "copy:1", r"while a storage was resized"),
}


@pytest.mark.parametrize("case", AT_ONCE)
def test_a_failure_at_once_names_its_operator_too(faults: Faults, debug: None, case: str) -> None:
    make, fault, named = AT_ONCE[case]
    act = make()
    faults.arm(fault + "@1" if fault.startswith("copy") else fault)
    with pytest.raises(RuntimeError, match=named):
        act()


def test_without_it_the_failure_comes_at_the_next_wait(faults: Faults) -> None:
    t = x()
    faults.arm("launch:1@1")
    t.exp_()
    with pytest.raises(RuntimeError, match="synchronize of stream 0.*exp"):
        torch.fl.synchronize(DEVICE)


def test_what_makes_operands_fit_a_chip_is_watched_too(run_python) -> None:
    run_python(
        """
        import json, pathlib, tempfile
        import torch, torch_fl
        from ninguang_faults import Faults
        from torch_fl import _C
        profile = {"device_name": "strict", "adapter": "ninguang", "arch": "tgpu-v2",
                   "native_ops": [{"op": "mul", "constraints": {"contiguous": True}}, {"op": "*"}]}
        path = pathlib.Path(tempfile.mkdtemp()) / "chip_profile.json"
        path.write_text(json.dumps(profile))
        device = torch_fl.register_device(str(path))[0]
        armed = Faults()
        x = torch.ones(8, 8, device=device)
        torch.fl.synchronize(device)
        _C.set_sync_debug(True)
        seen = []
        for number in range(1, 4):          # the copy that makes the operand dense, then the kernel
            armed.arm(f"launch:{number}")
            try:
                x[:, ::2] * 2.0
                seen.append("")
            except RuntimeError as error:
                seen.append(str(error))
            armed.disarm()
        assert all("aten::mul.Tensor" in text for text in seen[:2]), seen
        assert "UniOp copy" in seen[0] and "UniOp mul" in seen[1] and seen[2] == "", seen
        """
    )
