"""Tiers in their order, pins, calls that a kernel declines, legalisation for a constrained chip, kernel libraries."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from constrained_chip import Chip, drop_aliases

import torch_fl
from torch_fl import routing
from torch_fl.ops import libraries

DEVICE = "fl:1"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    routing.unpin_all()
    for tier in ("native", "decompose", "library", "cpu"):
        routing.enable(tier, True)


def tier_of(call, name: str) -> str:
    with routing.track() as seen:
        call()
    return next(t for t in ("native", "decompose", "library", "cpu") if name in seen[t])


# ------------------------------------------------------------------ tiers


def silu_with_numpy(name: str):
    if name != "aten::silu":
        return None

    def silu(t: torch.Tensor) -> torch.Tensor:
        x = t.cpu().numpy()
        return torch.from_numpy(x / (1 + np.exp(-x))).to(t.device)

    return silu


def test_tiers_are_tried_in_order() -> None:
    x = torch.randn(4, 6)
    on_chip = x.to(DEVICE)
    taken = []
    libraries.register("numpy", silu_with_numpy)
    try:
        for off in (None, "native", "decompose", "library"):
            if off is not None:
                routing.enable(off, False)
            with routing.track() as seen:
                result = torch.nn.functional.silu(on_chip)
            torch.testing.assert_close(result.cpu(), torch.nn.functional.silu(x))
            taken.append([t for t in routing.counting.TIERS if any("silu" in name for name in seen[t])])
    finally:
        libraries.unregister("numpy")
    assert taken == [["native"], ["decompose"], ["library"], ["cpu"]]


@pytest.mark.parametrize("tier", ["native", "decompose", "cpu"])
def test_a_pin_chooses_the_tier(tier: str) -> None:
    x = torch.randn(3, 5)
    on_chip = x.to(DEVICE)
    routing.pin("aten::softplus", tier)
    with routing.track() as seen:
        result = torch.nn.functional.softplus(on_chip)
    assert any("softplus" in name for name in seen[tier]), seen
    torch.testing.assert_close(result.cpu(), torch.nn.functional.softplus(x))


def test_a_pin_is_for_one_device_and_can_be_taken_back() -> None:
    x0, x1 = torch.ones(3, device="fl:0"), torch.ones(3, device="fl:1")
    routing.pin("aten::exp", "cpu", device=1)
    assert tier_of(lambda: x0.exp(), "aten::exp") == "native"
    assert tier_of(lambda: x1.exp(), "aten::exp") == "cpu"
    routing.unpin_all()
    with routing.track() as seen:
        x1.exp()
    assert not seen.cpu_fallback and seen.native


def test_no_cpu_fallback_says_what_and_what_to_do() -> None:
    x = torch.randn(3, 3, device=DEVICE)
    routing.enable("decompose", False)
    with routing.no_cpu_fallback(), pytest.raises(NotImplementedError) as caught:
        torch.linalg.eigh(x)
    text = str(caught.value)
    for word in ("aten::_linalg_eigh", "fl:1", "ninguang", "Float[3, 3]", "no_cpu_fallback", "Allow the CPU tier"):
        assert word in text, text
    assert torch.linalg.eigh(x).eigenvalues.shape == (3,)
    routing.enable("cpu", False)
    with pytest.raises(NotImplementedError, match="TORCH_FL_CPU_FALLBACK"):
        torch.linalg.eigh(x)


def test_counters_add_up() -> None:
    routing.enable("decompose", False)
    a = torch.randn(4, 4, device=DEVICE)
    with routing.track() as seen:
        for _ in range(3):
            a + a
        torch.linalg.eigvalsh(a)
    assert sum(n for name, n in seen.native.items() if name.startswith("aten::add")) == 3
    assert sum(seen.cpu_fallback.values()) == 1
    # In: 4x4 float32. Out: 4 eigenvalues and the empty eigenvectors.
    assert seen.bytes_moved == {1: 64 + 16}
    assert "cpu_fallback=1" in str(seen) and str(seen).startswith("[Torch-FL] Operator routing: native=")


def test_explain_agrees_with_what_happens() -> None:
    assert routing.explain("aten::add.Tensor", torch.float32, DEVICE).tier == "native"
    routing.enable("decompose", False)
    assert routing.explain("aten::_linalg_eigh", torch.float32, DEVICE).tier == "cpu"
    with pytest.raises(ValueError, match="no operator"):
        routing.explain("aten::no_such_thing")
    with pytest.raises(ValueError, match="unknown tier"):
        routing.pin("aten::add", "gpu")
    with pytest.raises(ValueError, match="no operator"):
        routing.pin("aten::no_such_thing", "cpu")


# --------------------------------------------------------------- CPU tier


def test_cpu_tier_keeps_views_in_place_and_out() -> None:
    routing.enable("native", False)
    routing.enable("decompose", False)
    x = torch.arange(12.0).reshape(3, 4)
    on_chip = x.to(DEVICE)
    view, twin = on_chip.t()[1:3], x.t()[1:3]
    view.add_(1)
    twin.add_(1)
    assert torch.equal(on_chip.cpu(), x)
    out, out_twin = torch.empty(0, device=DEVICE), torch.empty(0)
    torch.mul(on_chip, 2, out=out)
    torch.mul(x, 2, out=out_twin)
    assert torch.equal(out.cpu(), out_twin)
    on_chip.addcmul_(on_chip, on_chip)  # one operand three times
    x.addcmul_(x, x)
    assert torch.equal(on_chip.cpu(), x)
    values, indices = torch.sort(on_chip, dim=1, descending=True)
    assert torch.equal(values.cpu(), torch.sort(x, dim=1, descending=True).values)
    assert indices.device == torch.device(DEVICE)
    assert torch.equal(torch.cat([on_chip, on_chip]).cpu(), torch.cat([x, x]))
    index = torch.tensor([0, 2], device=DEVICE)
    assert torch.equal(on_chip[index].cpu(), x[[0, 2]])


def test_cpu_tier_random_numbers_come_from_the_device() -> None:
    routing.pin("aten::binomial", "cpu")
    count, prob = torch.full((50,), 9.0, device=DEVICE), torch.full((50,), 0.5, device=DEVICE)
    state = torch.random.get_rng_state()
    torch.fl.manual_seed_all(5)
    first, second = torch.binomial(count, prob), torch.binomial(count, prob)
    torch.fl.manual_seed_all(5)
    assert torch.equal(torch.binomial(count, prob), first) and not torch.equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_unified_memory_is_not_copied(run_python) -> None:
    run_python(
        """
        import torch
        from torch_fl import routing
        x = torch.arange(12.0).reshape(3, 4)
        on_chip = x.to("fl:1")
        routing.enable("native", False); routing.enable("decompose", False)
        with routing.track() as seen:
            on_chip.t().add_(1)
            out = torch.empty(3, 4, device="fl:1")
            torch.exp(on_chip, out=out)
            out[1:].mul_(2.0)
        assert sum(seen.cpu_fallback.values()) >= 3, seen.calls
        assert seen.bytes_moved == {}, seen.bytes_moved
        want = (x + 1).exp()
        want[1:] *= 2
        torch.testing.assert_close(out.cpu(), want)
        with routing.track() as seen:
            fresh = torch.exp(on_chip)
            values, indices = torch.sort(on_chip, dim=1, descending=True)
            product = on_chip @ on_chip.t()
        torch.testing.assert_close(fresh.cpu(), (x + 1).exp())
        assert torch.equal(values.cpu(), torch.sort(x + 1, dim=1, descending=True).values)
        assert torch.equal(indices.cpu(), torch.sort(x + 1, dim=1, descending=True).indices)
        torch.testing.assert_close(product.cpu(), (x + 1) @ (x + 1).t())
        assert sum(seen.bytes_moved.values()) <= 48 + 48 + 96 + 36, seen.bytes_moved  # results at most
        routing.enable("native", True); routing.enable("decompose", True)
        assert torch.equal((fresh + 1).cpu(), fresh.cpu() + 1)
    """,
        NINGUANG_UNIFIED="1",
    )


def test_unified_memory_is_left_when_an_operator_resizes_its_result(run_python) -> None:
    run_python(
        """
        import warnings, torch
        warnings.simplefilter("ignore")  # PyTorch warns of an out= that is not empty and has another shape
        a = torch.tensor([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 2.0]])
        for like in (torch.empty(0), torch.empty(1), torch.empty(40), torch.empty(3, 3).t()):
            want, out = like.clone(), like.to("fl:1")
            before = out.data_ptr()
            torch.linalg.cholesky(a, out=want)
            torch.linalg.cholesky(a.to("fl:1"), out=out)
            assert out.shape == want.shape and out.device.type == "fl"
            torch.testing.assert_close(out.cpu(), want)
            assert like.numel() != 9 or out.data_ptr() == before
            torch.testing.assert_close((out + 1).cpu(), want + 1)  # the memory is the device's own
    """,
        NINGUANG_UNIFIED="1",
    )


# ----------------------------------------------------------- legalisation


@pytest.fixture(scope="module")
def chips(tmp_path_factory) -> Iterator[dict[str, Chip]]:
    folder = tmp_path_factory.mktemp("adapters")
    yield {
        "plain": Chip(folder, "dense_only"),
        "opaque": Chip(folder, "dense_opaque", "-DOPAQUE", "-DSTRIDED_COPY"),
        "copying": Chip(folder, "dense_copying", "-DSTRIDED_COPY", "-DDECLINE=35"),
        "small": Chip(folder, "dense_small", "-DSTRIDED_COPY", "-DMAX_NUMEL=5000"),
    }
    drop_aliases()


CASES = {
    "dense": lambda t: (t + t) * t,
    "alpha": lambda t: torch.add(t, t, alpha=3),
    "scalar": lambda t: t * 2.5 + 1,
    "zero dim": lambda t: t + t.sum(),
    "transposed": lambda t: t.transpose(0, 2) + t.transpose(0, 2) * 2,
    "mixed layout": lambda t: t.transpose(1, 2).contiguous() + t.transpose(1, 2),
    "row broadcast": lambda t: t + t[0, 0],
    "middle broadcast": lambda t: t * t[:, :1],
    "unaligned": lambda t: t.flatten()[1:] + t.flatten()[:-1],
    "in place": lambda t: t.clone().add_(1).relu_(),
    "in place view": lambda t: [c := t.clone(), c.transpose(0, 1).add_(c.transpose(0, 1)), c[:, 1:].mul_(3)][0],
    "unaligned in place": lambda t: [c := t.clone(), c.flatten()[3:].add_(2)][0],
    "out": lambda t: torch.add(t, t, out=torch.empty_like(t).transpose(0, 1).transpose(0, 1)),
    "mm": lambda t: t[0] @ t[1].t(),
    "mm columns": lambda t: t[0].t() @ t[1],
    "no kernel": lambda t: torch.sigmoid(t[:, 1:]),
    "other type": lambda t: (t.double() + 1).float(),
    "copy strided": lambda t: t.permute(2, 0, 1).contiguous(),
    "empty": lambda t: t[:0] + t[:0],
    "one element": lambda t: t[0, 0, 0] + t[1, 1, 1],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["plain", "opaque", "copying", "small"])
def test_legalised_results_equal_the_cpu(chips: dict[str, Chip], kind: str, case: str) -> None:
    chip = chips[kind]
    t = torch.randn(5, 6, 7, generator=torch.Generator().manual_seed(0))
    result = CASES[case](t.to(chip.device))
    assert result.device == chip.device
    torch.testing.assert_close(result.cpu(), CASES[case](t))
    assert chip.violations == 0


def test_legalised_calls_stay_on_the_chip(chips: dict[str, Chip]) -> None:
    chip = chips["copying"]
    t = torch.randn(5, 6, 7).to(chip.device)
    with routing.no_cpu_fallback():
        for case in ("alpha", "scalar", "transposed", "row broadcast", "middle broadcast", "unaligned", "mm columns"):
            before = chip.launches
            CASES[case](t)
            assert chip.launches > before, case


def test_large_operands_are_split(chips: dict[str, Chip]) -> None:
    chip = chips["small"]
    t = torch.randn(3, 70, 90)
    on_chip = t.to(chip.device)
    before = chip.launches
    with routing.no_cpu_fallback():
        torch.testing.assert_close((on_chip * on_chip.transpose(0, 0)).cpu(), t * t)
        assert chip.launches - before == -(-t.numel() // 4096)
        on_chip.mul_(on_chip)
    torch.testing.assert_close(on_chip.cpu(), t * t)
    assert chip.violations == 0


def test_a_declined_call_takes_the_next_tier(chips: dict[str, Chip]) -> None:
    chip = chips["copying"]
    for shape, tier in (((5, 7), "cpu"), ((5, 8), "native"), ((7, 5), "cpu")):
        t = torch.randn(shape)
        on_chip = t.to(chip.device)
        with routing.track() as seen:
            torch.testing.assert_close((on_chip * on_chip).cpu(), t * t)
        assert any(name.startswith("aten::mul") for name in seen[tier]), (shape, seen)


@pytest.mark.parametrize("flags", ["", "-DOPAQUE -DSTRIDED_COPY", "-DSTRIDED_COPY"])
def test_a_model_learns_on_a_constrained_chip(run_python, tmp_path, flags: str) -> None:
    # In a process of its own: autograd serves the devices that are there at its first backward.
    run_python(f"""
        import pathlib, torch
        from constrained_chip import Chip
        chip = Chip(pathlib.Path({str(tmp_path)!r}), "learner", *{flags!r}.split())

        def losses(device):
            torch.manual_seed(0)
            nn = torch.nn
            model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3)).to(device)
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            x, y = torch.randn(4, 1, 8, 8).to(device), torch.tensor([0, 1, 2, 0]).to(device)
            found = []
            for _ in range(3):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
            return torch.tensor(found)

        torch.testing.assert_close(losses(chip.device), losses("cpu"), rtol=1e-4, atol=1e-5)
        assert chip.violations == 0 and chip.launches > 0
    """)


# ------------------------------------------------------- kernel libraries


def solve_with_scipy(name: str):
    """A provider over a real kernel library: LAPACK's symmetric eigenvalue solver, through SciPy."""
    if name != "aten::_linalg_eigh":
        return None
    import scipy.linalg

    def eigh(a: torch.Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        if a.dim() != 2:
            raise NotImplementedError("one matrix at a time")
        values, vectors = scipy.linalg.lapack.ssyevd(a.cpu().numpy(), compute_v=int(compute_v), lower=int(UPLO == "L"))[
            :2
        ]
        solve_with_scipy.devices.append(torch.fl.current_device())
        return (
            torch.from_numpy(values).to(a.device),
            torch.from_numpy(np.ascontiguousarray(vectors if compute_v else np.empty(0, np.float32))).to(a.device),
        )

    return eigh


solve_with_scipy.devices = []


def check_eigh() -> routing.RoutingStats:
    a = torch.randn(6, 6, generator=torch.Generator().manual_seed(2))
    a = a + a.t()
    with routing.track() as seen:
        values, vectors = torch.linalg.eigh(a.to(DEVICE))
    assert values.device == torch.device(DEVICE) == vectors.device
    torch.testing.assert_close(values.cpu(), torch.linalg.eigvalsh(a), atol=1e-4, rtol=1e-4)
    rebuilt = vectors.cpu() @ torch.diag(values.cpu()) @ vectors.cpu().t()
    torch.testing.assert_close(rebuilt, a, atol=1e-4, rtol=1e-4)
    return seen


def test_a_kernel_library_serves_what_the_chip_has_not() -> None:
    pytest.importorskip("scipy")
    routing.enable("decompose", False)
    libraries.register("lapack", solve_with_scipy)
    try:
        with routing.no_cpu_fallback():
            seen = check_eigh()
        assert "aten::_linalg_eigh.eigenvalues" in seen.library and not seen.cpu_fallback
        assert "library=1" in str(seen)
        assert solve_with_scipy.devices[-1] == 1  # the operand's device was current
        assert routing.explain("aten::_linalg_eigh", torch.float32, DEVICE).tier == "library"
        with routing.track() as seen:  # a declined call goes on to the CPU
            torch.linalg.eigh(torch.ones(2, 3, 3, device=DEVICE))
        assert "aten::_linalg_eigh.eigenvalues" in seen.cpu_fallback
        routing.enable("library", False)
        assert "aten::_linalg_eigh.eigenvalues" in check_eigh().cpu_fallback
    finally:
        libraries.unregister("lapack")
    routing.enable("library", True)
    assert "aten::_linalg_eigh.eigenvalues" in check_eigh().cpu_fallback


def test_an_error_of_a_library_reaches_the_user() -> None:
    routing.enable("decompose", False)

    def resolve(name: str):
        def fail(*_: object, **__: object) -> None:
            raise ArithmeticError("the library says no")

        return fail if name == "aten::_linalg_eigh" else None

    libraries.register("failing", resolve)
    try:
        with pytest.raises(ArithmeticError, match="says no"):
            torch.linalg.eigh(torch.ones(2, 2, device=DEVICE))
    finally:
        libraries.unregister("failing")


def test_a_kernel_library_is_found_by_its_entry_point(tmp_path, monkeypatch) -> None:
    pytest.importorskip("scipy")
    routing.enable("decompose", False)
    info = tmp_path / "lapack_for_fl-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lapack-for-fl\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[torch_fl.kernel_libraries]\nlapack = test_routing:solve_with_scipy\nbroken = no_such_module:resolve\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "test_routing", sys.modules[__name__])
    importlib.invalidate_caches()
    monkeypatch.setattr(libraries, "_loaded", False)
    torch_fl._C.reset_routes()
    try:
        assert "lapack" in libraries.providers() and "broken" not in libraries.providers()
        assert "aten::_linalg_eigh.eigenvalues" in check_eigh().library
    finally:
        libraries.unregister("lapack")
