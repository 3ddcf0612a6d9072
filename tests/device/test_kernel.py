"""torch_fl.kernel(): kernels in Python on one device, for PyTorch's operators and for new ones."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

import torch_fl
from torch_fl import routing
from torch_fl.ops.kernel import kernels
from torch_fl.ops.kernel_check import KernelMismatch

HERE, THERE = "fl:1", "fl:0"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    yield
    left = kernels()
    for kernel in left:
        kernel.remove()
    routing.enable("library", True)
    assert not left


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return x * torch.special.ndtr(x) if approximate == "none" else NotImplemented


def x(device: str = HERE, *shape: int) -> Tensor:
    return torch.randn(*(shape or (4, 6)), generator=torch.Generator().manual_seed(0)).to(device)


def tiers(call) -> dict[int, dict[str, dict[str, int]]]:
    with routing.track() as seen:
        call()
    return seen.calls


# ------------------------------------------------------------------ PyTorch's operators


def test_one_device_only_and_removal() -> None:
    with torch_fl.kernel("aten::gelu", gelu, device=HERE):
        assert tiers(lambda: F.gelu(x()))[1]["library"] == {"aten::gelu": 1}
        assert tiers(lambda: F.gelu(x(THERE))) == {0: {"native": {"aten::gelu": 1}}}
        torch.testing.assert_close(F.gelu(x()).cpu(), F.gelu(x("cpu")))
    assert tiers(lambda: F.gelu(x())) == {1: {"native": {"aten::gelu": 1}}}


def test_decorator_and_names() -> None:
    for op in ("aten::gelu", "gelu", torch.ops.aten.gelu.default, torch.ops.aten.gelu):
        for device in (HERE, torch.device(HERE), [HERE, torch.device(THERE)], "ninguang:1"):

            @torch_fl.kernel(op, device=device)
            def kernel(x: Tensor, *, approximate: str = "none") -> Tensor:
                return gelu(x)

            assert kernel.op is torch.ops.aten.gelu.default and torch.device(HERE) in kernel.devices
            assert len(kernel.devices) == (2 if isinstance(device, list) else 1)
            assert "library" in tiers(lambda: F.gelu(x()))[1]
            kernel.remove()
            kernel.remove()
    for everywhere in (None, "fl", "ninguang"):
        with torch_fl.kernel("aten::gelu", gelu, device=everywhere) as kernel:
            assert [d.index for d in kernel.devices] == [0, 1]


def test_the_kernel_may_decline_one_call() -> None:
    with torch_fl.kernel("aten::gelu", gelu, device=HERE):
        assert tiers(lambda: F.gelu(x(), approximate="tanh")) == {1: {"native": {"aten::gelu": 1}}}
        torch.testing.assert_close(F.gelu(x(), approximate="tanh").cpu(), F.gelu(x("cpu"), approximate="tanh"))
        with routing.only("native", "decompose", "cpu"):
            assert "library" not in tiers(lambda: F.gelu(x()))[1]


def test_in_place_and_out_follow() -> None:
    in_place, out = torch._C._nn.gelu_, torch._C._nn.gelu
    expected = F.gelu(x("cpu"))
    with torch_fl.kernel("aten::gelu", gelu, device=HERE) as kernel:
        assert set(kernel.overloads) == {"aten::gelu", "aten::gelu_", "aten::gelu.out"}
        target = x()
        version = target._version
        assert tiers(lambda: in_place(target))[1]["library"] == {"aten::gelu_": 1}
        torch.testing.assert_close(target.cpu(), expected)
        assert target._version == version + 1
        target = torch.empty(6, 4, device=HERE).t()
        assert tiers(lambda: out(x(), out=target))[1]["library"] == {"aten::gelu.out": 1}
        torch.testing.assert_close(target.cpu(), expected)
    with torch_fl.kernel("aten::gelu", gelu, device=HERE, variants=False):
        assert "library" not in tiers(lambda: in_place(x()))[1]


def test_an_own_in_place_kernel_comes_before_the_derived_one() -> None:
    def gelu_(x: Tensor, *, approximate: str = "none") -> None:
        x.copy_(x * 0 + 7)

    with torch_fl.kernel("aten::gelu_", gelu_, device=HERE), torch_fl.kernel("aten::gelu", gelu, device=HERE):
        assert torch._C._nn.gelu_(x()).cpu().eq(7).all()
    with torch_fl.kernel("aten::gelu", gelu, device=HERE):
        with torch_fl.kernel("aten::gelu_", gelu_, device=HERE):
            assert torch._C._nn.gelu_(x()).cpu().eq(7).all()
        torch.testing.assert_close(torch._C._nn.gelu_(x()).cpu(), F.gelu(x("cpu")))


def test_operands_of_two_devices_do_not_reach_the_kernel() -> None:
    reached = []

    def add(x: Tensor, y: Tensor, *, alpha: float = 1) -> Tensor:
        reached.append(x)
        return torch.empty_like(x)

    with torch_fl.kernel("aten::add.Tensor", add, device=HERE):
        for call in (lambda: x(HERE) + x(THERE), lambda: x(THERE) + x(HERE)):
            with pytest.raises(RuntimeError, match="same device.*fl:[01].* and fl:[01]"):
                call()
        for call in (lambda: x(HERE) + x("cpu"), lambda: x("cpu") + x(HERE), lambda: x(HERE).add_(x("cpu")),
                     lambda: torch.add(x(HERE), x(HERE), out=x("cpu")),
                     lambda: torch.add(x(HERE), x(HERE), out=x(THERE))):
            with pytest.raises(RuntimeError, match="at least two devices|expected to be on|out tensor to have device"):
                call()
        assert not reached
        x(HERE) + torch.tensor(1.0)  # a number
        assert len(reached) == 1


def test_what_may_come_from_the_cpu_still_does() -> None:
    def declined(op: str) -> torch_fl.ops.kernel.Kernel:
        return torch_fl.kernel(op, lambda *args, **kwargs: NotImplemented, variants=False, device=HERE)

    with declined("aten::copy_"), declined("aten::index.Tensor"), declined("aten::_pack_padded_sequence"):
        assert torch.equal(x(HERE).copy_(x("cpu")).cpu(), x("cpu"))
        assert torch.equal(x(HERE).copy_(x(THERE)).cpu(), x("cpu"))
        assert torch.equal(x(HERE)[torch.tensor([0])].cpu(), x("cpu")[torch.tensor([0])])
        data, sizes = torch._pack_padded_sequence(torch.ones(2, 3, 4, device=HERE), torch.tensor([3, 2]), True)
        assert data.shape == (5, 4) and sizes.tolist() == [2, 2, 1]


def test_promotion_and_broadcasting_follow_the_operator() -> None:
    def add(x: Tensor, y: Tensor, *, alpha: float = 1) -> Tensor:
        return torch.sub(x, y, alpha=-alpha)

    a, b = torch.randn(3, 1), torch.arange(4)
    with torch_fl.kernel("aten::add.Tensor", add, device=HERE):
        assert "library" in tiers(lambda: a.to(HERE) + b.to(HERE))[1]
        torch.testing.assert_close(torch.add(a.to(HERE), b.to(HERE), alpha=2).cpu(), torch.add(a, b, alpha=2))
        torch.testing.assert_close((a.to(HERE) + 2.5).cpu(), a + 2.5)
        grown = torch.zeros(3, 4, device=HERE)
        grown += a.to(HERE)
        torch.testing.assert_close(grown.cpu(), a.expand(3, 4))
        with pytest.raises(RuntimeError, match="can't be cast"):
            b.to(HERE).add_(a.to(HERE)[0])


def test_a_factory() -> None:
    def full(size, fill_value, *, dtype=None, layout=None, device=None, pin_memory=None):  # noqa: ANN001, ANN202
        return torch.zeros(size, dtype=dtype, device=device) + (fill_value + 1)

    with torch_fl.kernel("aten::full", full, device=HERE, variants=False):
        assert torch.full((2, 3), 4.0, device=HERE).cpu().eq(5).all()
        assert torch.full((2, 3), 4.0, device=THERE).cpu().eq(4).all()
        with torch.device(HERE):
            assert torch.full((2,), 1.0).cpu().tolist() == [2, 2]


def test_autograd_keeps_the_formula() -> None:
    def gradient(device: str) -> Tensor:
        leaf = x(device).clone().requires_grad_()
        F.gelu(leaf).square().sum().backward()
        return leaf.grad.cpu()

    with torch_fl.kernel("aten::gelu", gelu, device=HERE):
        torch.testing.assert_close(gradient(HERE), gradient("cpu"))


def test_composed_operators_keep_their_gradient() -> None:
    calls = []

    def layer_norm(x, shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):  # noqa: ANN001, ANN202
        calls.append(len(shape))
        dims = [-1 - d for d in range(len(shape))]
        result = (x - x.mean(dims, keepdim=True)) * torch.rsqrt(x.var(dims, unbiased=False, keepdim=True) + eps)
        result = result if weight is None else result * weight
        return result if bias is None else result + bias

    def gradient(device: str) -> Tensor:
        leaf = x(device).clone().requires_grad_()
        F.layer_norm(leaf, (6,)).pow(3).sum().backward()
        return leaf.grad.cpu()

    with torch_fl.kernel("aten::layer_norm", layer_norm, device=HERE) as kernel:
        torch.testing.assert_close(gradient(HERE), gradient("cpu"))
        assert not calls
        with torch.no_grad():
            F.layer_norm(x().requires_grad_(), (6,))
        with torch.inference_mode():
            F.layer_norm(x(), (6,))
        assert len(calls) == 2
        assert kernel.check(verbose=False).ok
    torch.testing.assert_close(gradient(HERE), gradient("cpu"))


def test_the_kernel_may_call_its_operator() -> None:
    def doubled(x: Tensor, *, approximate: str = "none") -> Tensor:
        return F.gelu(x, approximate=approximate) + torch._C._nn.gelu_(x.clone())

    with torch_fl.kernel("aten::gelu", doubled, device=HERE) as kernel:
        torch.testing.assert_close(F.gelu(x()).cpu(), 2 * F.gelu(x("cpu")))
        torch.testing.assert_close(kernel.original(x()).cpu(), F.gelu(x("cpu")))
        seen = tiers(lambda: F.gelu(x()))[1]
        assert seen["library"] == {"aten::gelu": 1} and seen["native"]["aten::gelu"] == 1


def test_replacing_needs_a_word_and_is_undone() -> None:
    one = torch_fl.kernel("aten::gelu", lambda x, *, approximate: torch.ones_like(x), device=HERE)
    with pytest.raises(torch_fl.RouteError, match=r"has a kernel already.*test_kernel.py:\d+"):
        torch_fl.kernel("aten::gelu", gelu, device=HERE)
    with torch_fl.kernel("aten::gelu", lambda x, *, approximate: x * 0 + 2, device=HERE, replace=True):
        assert F.gelu(x()).cpu().eq(2).all()
    assert F.gelu(x()).cpu().eq(1).all()
    two = torch_fl.kernel("aten::gelu", lambda x, *, approximate: x * 0 + 2, device=HERE, replace=True)
    one.remove()
    assert F.gelu(x()).cpu().eq(2).all()
    two.remove()


@pytest.mark.parametrize(("result", "words"), [
    (lambda x: x, "shares memory with an operand"),
    (lambda x: x.cpu(), "on cpu, and the call is for fl:1"),
    (lambda x: x[:1].clone(), r"promises torch.float32 \[4, 6\]"),
    (lambda x: x.double(), r"is torch.float64 \[4, 6\] on fl:1"),
    (lambda x: None, "is a NoneType"),
])  # fmt: skip
def test_wrong_results_are_told(result, words: str) -> None:
    def wrong(x: Tensor, *, approximate: str = "none") -> Tensor:
        return result(x)

    with torch_fl.kernel("aten::gelu", wrong, device=HERE), pytest.raises(
        torch_fl.RouteError, match=rf"kernel .*wrong.*test_kernel.py.* for aten::gelu: the result .*{words}"
    ):
        F.gelu(x())
    with torch_fl.kernel("aten::gelu", lambda x, *, approximate: x.double(), device=HERE, check_results=False):
        assert F.gelu(x()).dtype == torch.float64


def test_errors_of_the_kernel_pass_with_a_note() -> None:
    def broken(x: Tensor, *, approximate: str = "none") -> Tensor:
        raise ZeroDivisionError("mine")

    with torch_fl.kernel("aten::gelu", broken, device=HERE):
        with pytest.raises(ZeroDivisionError, match="mine") as caught:
            F.gelu(x())
        if sys.version_info >= (3, 11):
            assert any("broken (" in note and "aten::gelu" in note for note in caught.value.__notes__)
    F.gelu(x())


@pytest.mark.parametrize(("op", "options", "words"), [
    ("aten::geluu", {}, "did you mean aten::gelu"),
    ("aten::add", {}, "several overloads.*aten::add.Tensor"),
    ("aten::add.Tenser", {}, "no overload Tenser; it has Tensor"),
    ("gelu it", {}, "not an operator's name"),
    ("aten::gelu", {"device": "fl:9"}, "'fl:9' is not a device.*fl:0, fl:1"),
    ("aten::gelu", {"device": "cuda"}, "'cuda' is not a device"),
    ("aten::gelu", {"device": []}, "no device"),
    ("aten::gelu", {"fake": gelu}, "fake is for new operators only"),
    ("aten::view", {}, "returns a view"),
    ("tests::bad", {"schema": "(Tensr x) -> Tensor"}, "schema.*not valid"),
    ("tests::bad.out", {"schema": "(Tensor x) -> Tensor"}, "has no overloads"),
])  # fmt: skip
def test_mistakes_are_told(op: str, options: dict, words: str) -> None:
    with pytest.raises((ValueError, torch_fl.RouteError), match=words):
        torch_fl.kernel(op, gelu, **{"device": HERE, **options})
    assert not hasattr(torch.ops.tests, "bad")


def test_mistakes_of_types_are_told() -> None:
    for op, function, device in ((3, gelu, HERE), ("aten::gelu", 3, HERE), ("aten::gelu", gelu, 3)):
        with pytest.raises(TypeError):
            torch_fl.kernel(op, function, device=device)
    with pytest.raises(ValueError, match="Annotate the function"):
        torch_fl.kernel("tests::bad", lambda x: x, device=HERE)


def test_explain_names_the_kernel() -> None:
    with torch_fl.kernel("aten::gelu", gelu, device=HERE):
        told = routing.explain("aten::gelu", device=HERE)
        assert told.tier == "library" and "gelu (" in told.reasons["library"] and "test_kernel.py:" in str(told)
        assert routing.explain("aten::gelu", device=THERE).tier == "native"
    assert routing.explain("aten::gelu", device=HERE).tier == "native"


def test_copies_to_the_host_are_counted() -> None:
    def on_cpu(x: Tensor, *, approximate: str = "none") -> Tensor:
        return F.gelu(x.cpu(), approximate=approximate).to(x.device)

    with torch_fl.kernel("aten::gelu", on_cpu, device=HERE), routing.track() as seen:
        F.gelu(x())
    assert seen.bytes_moved == {1: 2 * 4 * 6 * 4}
    with routing.track() as seen:
        x().cpu()
    assert not seen.bytes_moved


def test_threads_do_not_disturb_each_other() -> None:
    """One thread is in the kernel, and another one, on the other device or the same, is not thought to be."""
    inside, go = threading.Event(), threading.Event()
    calls = []

    def slow(x: Tensor, *, approximate: str = "none") -> Tensor:
        calls.append(threading.get_ident())
        if len(calls) == 1:
            inside.set()
            assert go.wait(60)
        return gelu(x)

    with torch_fl.kernel("aten::gelu", slow, device=HERE):
        results: list[Tensor] = []
        thread = threading.Thread(target=lambda: results.append(F.gelu(x()).cpu()))
        thread.start()
        assert inside.wait(60)
        assert tiers(lambda: F.gelu(x()))[1]["library"] == {"aten::gelu": 1}
        assert tiers(lambda: F.gelu(x(THERE)))[0] == {"native": {"aten::gelu": 1}}
        go.set()
        thread.join(60)
    assert len(set(calls)) == 2
    torch.testing.assert_close(results[0], F.gelu(x("cpu")))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_under_compile(backend: str) -> None:
    calls = []

    def counted(x: Tensor, *, approximate: str = "none") -> Tensor:
        calls.append(1)
        return gelu(x)

    def step(function, device: str) -> tuple[Tensor, Tensor]:
        leaf = x(device).clone().requires_grad_()
        loss = function(leaf)
        loss.backward()
        return loss.detach().cpu(), leaf.grad.cpu()

    def model(x: Tensor) -> Tensor:
        return (F.gelu(x) * 2).sum()

    torch._dynamo.reset()
    with torch_fl.kernel("aten::gelu", counted, device=HERE):
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        torch.testing.assert_close(step(compiled, HERE), step(model, "cpu"))
        assert calls
    torch._dynamo.reset()


# ------------------------------------------------------------------ new operators


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def gradients(function, device: str) -> list[Tensor]:
    leaf, weight = (t.detach().clone().to(device).requires_grad_() for t in (x("cpu"), x("cpu", 6)))
    result = function(leaf, weight)
    result.pow(3).sum().backward()
    return [t.detach().cpu() for t in (result, leaf.grad, weight.grad)]


def test_a_new_operator_with_a_decomposition() -> None:
    calls = []

    def mine(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
        calls.append(x.device)
        return rms_norm(x, weight, eps)

    with torch_fl.kernel("tests::rms_norm", mine, device=HERE, decomposition=rms_norm) as kernel:
        assert kernel.op is torch.ops.tests.rms_norm.default
        wanted = gradients(rms_norm, "cpu")
        for device in ("cpu", THERE, HERE):
            for got, want in zip(gradients(kernel, device), wanted, strict=True):
                torch.testing.assert_close(got, want)
        assert calls == [torch.device(HERE)]
        samples = [(x("cpu"), x("cpu", 6)), ((x("cpu", 2, 3, 6), x("cpu", 6)), {"eps": 1e-3})]
        report = kernel.check(samples, verbose=False)
        assert {(row.form, row.against) for row in report.rows} == {
            (form, against) for form in ("forward", "gradient") for against in ("decomposition", "cpu")}
        on_device = [t.to(HERE).requires_grad_() for t in samples[0]]
        # test_autograd_registration knows no device but PyTorch's own; it is asked on the CPU.
        torch.library.opcheck(kernel.op, on_device, test_utils=("test_schema", "test_faketensor",
                                                                "test_aot_dispatch_dynamic"))
        torch.library.opcheck(kernel.op, [t.requires_grad_() for t in samples[0]])
        assert torch.autograd.gradgradcheck(kernel.op, [t.detach().double().requires_grad_() for t in samples[0]])
        told = routing.explain("tests::rms_norm", device=HERE)
        assert told.tier == "library" and "mine" in told.reasons["library"]
    assert routing.explain("tests::rms_norm", device=HERE).tier == "decompose"
    torch.testing.assert_close(gradients(torch.ops.tests.rms_norm, HERE), wanted)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_new_operator_under_compile(backend: str) -> None:
    torch._dynamo.reset()
    with torch_fl.kernel("tests::rms_norm", rms_norm, device=HERE, decomposition=rms_norm) as kernel:
        compiled = torch.compile(lambda a, b: kernel(a, b) + 1, backend=backend, fullgraph=True)
        for got, want in zip(gradients(compiled, HERE), gradients(lambda a, b: rms_norm(a, b) + 1, "cpu"), strict=True):
            torch.testing.assert_close(got, want)
        with routing.track() as seen:
            compiled(x(), x(HERE, 6))
        assert seen.library == {"tests::rms_norm": 1}
    torch._dynamo.reset()


def test_a_new_operator_with_its_own_gradient_fake_and_vmap() -> None:
    def square(x: Tensor) -> Tensor:
        return x * x

    def setup_context(ctx, inputs, output) -> None:  # noqa: ANN001
        ctx.save_for_backward(*inputs)

    def backward(ctx, grad):  # noqa: ANN001, ANN202
        return 2 * ctx.saved_tensors[0] * grad

    def batched(info, dims, x):  # noqa: ANN001, ANN202
        return torch.ops.tests.square(x), dims[0]

    with torch_fl.kernel("tests::square", square, device=HERE, backward=backward, setup_context=setup_context,
                         fake=torch.empty_like, vmap=batched) as kernel:
        leaf = x().requires_grad_()
        kernel(leaf).sum().backward()
        torch.testing.assert_close(leaf.grad, 2 * leaf.detach())
        torch.testing.assert_close(torch.vmap(kernel)(x()), x().square())
        assert kernel(torch.empty(3, device="meta")).shape == (3,)
        with pytest.raises(torch_fl.UnsupportedError, match="no kernel on fl:0, only on fl:1"):
            kernel(x(THERE))
        with pytest.raises(torch_fl.UnsupportedError, match="no kernel on cpu"):
            kernel(x("cpu"))
    with pytest.raises(torch_fl.UnsupportedError, match="only on no device"):
        kernel(x())


def test_what_a_new_operator_lacks_is_told() -> None:
    with torch_fl.kernel("tests::alone", lambda x: x + 1, schema="(Tensor x) -> Tensor", device=HERE) as kernel:
        with pytest.raises(torch_fl.UnsupportedError, match="no gradient"):
            kernel(x().requires_grad_()).sum().backward()
        with pytest.raises(torch_fl.UnsupportedError, match="fake="):
            kernel(torch.empty(3, device="meta"))
    with pytest.raises(ValueError, match="cannot change in this process"):
        torch_fl.kernel("tests::alone", lambda x, y: x, schema="(Tensor x, Tensor y) -> Tensor", device=HERE)
    with pytest.raises(torch_fl.RouteError, match="setup_context of tests::alone without backward"):
        torch_fl.kernel("tests::alone", lambda x: x + 1, device=HERE, setup_context=gelu)


def test_a_new_operator_that_writes() -> None:
    def scale_(x: Tensor, by: float) -> None:
        x.mul_(by)

    with torch_fl.kernel("tests::scale_", scale_, device=HERE, mutates=("x",), decomposition=scale_) as kernel:
        for device in (HERE, THERE, "cpu"):
            target = x(device).clone()
            kernel(target, 2.0)
            torch.testing.assert_close(target.cpu(), 2 * x("cpu"))
    with pytest.raises(torch_fl.RouteError, match="writes its arguments"):
        torch_fl.kernel("tests::scale2_", scale_, device=HERE, mutates=("x",), backward=gelu)


# ------------------------------------------------------------------ check()


def test_check_finds_what_is_wrong() -> None:
    with torch_fl.kernel("aten::gelu", gelu, device=HERE) as kernel:
        report = kernel.check(verbose=False)
        assert report.ok and {row.form for row in report.rows} == {"forward", "in-place", "out=", "gradient"}
        assert {row.against for row in report.rows} == {"decomposition", "chip", "cpu"}
        assert report.not_reached  # approximate="tanh", which it declines
    with torch_fl.kernel("aten::gelu", lambda x, *, approximate: gelu(x) + 1e-2, device=HERE) as wrong:
        with pytest.raises(KernelMismatch, match="values differ"):
            wrong.check(verbose=False)
        assert not wrong.check(verbose=False, raises=False).ok
        assert wrong.check([x("cpu")], atol=1, gradients=False, verbose=False).ok
    with torch_fl.kernel("aten::gelu", lambda x, *, approximate: NotImplemented, device=HERE) as idle:
        with pytest.raises(KernelMismatch, match="NOTHING WAS CHECKED"):
            idle.check(verbose=False)
    with pytest.raises(ValueError, match="removed"):
        idle.check()
    with torch_fl.kernel("aten::gelu", lambda x, *, approximate: gelu(x).t().contiguous().t(), device=HERE) as turned:
        assert turned.check([x("cpu")], verbose=False).ok
        with pytest.raises(KernelMismatch, match="strides"):
            turned.check([x("cpu")], strides=True, verbose=False)
