"""Copies: every direction, type, layout and lazy bit against the CPU."""

from __future__ import annotations

import itertools

import pytest
import torch

DEVICE, OTHER = "fl:1", "fl:0"
TYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]
pytestmark = pytest.mark.timeout(120)


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    base = torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 3
    return base.abs().to(dtype) if dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64) else base.to(dtype)


LAYOUTS = {
    "dense": lambda t: t,
    "transposed": lambda t: t.transpose(0, 2),
    "sliced": lambda t: t[:, 1:4:2],
    "offset": lambda t: t[1:],
    "expanded": lambda t: t[:, :1].expand(-1, 5, -1),
    "permuted": lambda t: t.permute(1, 2, 0),
    "scalar": lambda t: t[0, 0, 0],
    "channels last": lambda t: t.unsqueeze(0).contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_round_trip(dtype: torch.dtype) -> None:
    x = values(dtype, 4, 5)
    on_chip = x.to(DEVICE)
    assert on_chip.dtype == dtype and torch.equal(on_chip.cpu(), x)
    assert torch.equal(on_chip.to(OTHER).cpu(), x)
    assert torch.equal(on_chip.t().cpu(), x.t())
    assert torch.equal(on_chip.clone().cpu(), x)


@pytest.mark.parametrize(
    "source, target", itertools.product(TYPES[:12], TYPES[:12]), ids=lambda t: str(t).removeprefix("torch.")
)
def test_conversion(source: torch.dtype, target: torch.dtype) -> None:
    if source.is_complex and not target.is_complex:
        pytest.skip("warns that the imaginary part is dropped; see test_complex_to_real")
    x = values(source, 3, 7)
    if target == torch.uint8 and source != torch.uint8:
        x = x.abs() if source != torch.bool else x  # negative to unsigned is undefined in C
    on_chip = x.to(DEVICE)
    assert torch.equal(on_chip.to(target).cpu(), x.to(target))
    assert torch.equal(on_chip.t().to(target).cpu(), x.t().to(target))
    assert torch.equal(torch.empty(3, 7, dtype=target, device=DEVICE).copy_(x).cpu(), x.to(target))
    assert torch.equal(torch.empty(3, 7, dtype=target).copy_(on_chip), x.to(target))
    assert torch.equal(torch.empty(3, 7, dtype=target, device=OTHER).copy_(on_chip).cpu(), x.to(target))


@pytest.mark.filterwarnings("ignore:Casting complex")
def test_complex_to_real() -> None:
    x = values(torch.complex64, 3)
    assert torch.equal(x.to(DEVICE).to(torch.float32).cpu(), x.real)
    assert torch.equal(torch.empty(3).copy_(x.to(DEVICE)), x.real)


@pytest.mark.parametrize("into", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, into: str) -> None:
    if into == "expanded":
        pytest.skip("an expanded target overlaps itself")
    x = values(torch.float32, 4, 5, 3)
    source = LAYOUTS[layout](x)
    on_chip = LAYOUTS[layout](x.to(DEVICE))
    assert torch.equal(on_chip.cpu(), source)
    target = LAYOUTS[into](torch.zeros(4, 5, 3))
    if source.shape != target.shape:
        source, on_chip = source.flatten()[:1], on_chip.flatten()[:1]
        if target.dim() == 0:
            source, on_chip = source[0], on_chip[0]
    base = torch.zeros(4, 5, 3)
    on_device, on_other = base.to(DEVICE), base.to(OTHER)
    LAYOUTS[into](base).copy_(source)
    LAYOUTS[into](on_device).copy_(on_chip)
    LAYOUTS[into](on_other).copy_(on_chip)
    from_host = torch.zeros(4, 5, 3).to(DEVICE)
    LAYOUTS[into](from_host).copy_(source)
    to_host = torch.zeros(4, 5, 3)
    LAYOUTS[into](to_host).copy_(on_chip)
    for result in (on_device, on_other, from_host, to_host):
        assert torch.equal(result.cpu(), base)


@pytest.mark.parametrize("lazy", ["conj", "neg", "both"])
def test_lazy_bits(lazy: str) -> None:
    x = values(torch.complex64, 3, 4)

    def view(t: torch.Tensor) -> torch.Tensor:
        if lazy == "conj":
            return t.conj()
        return t.conj().imag if lazy == "neg" else torch._neg_view(t.conj())

    want = view(x).clone()
    on_chip = view(x.to(DEVICE))
    assert on_chip.is_neg() or on_chip.is_conj()
    assert torch.equal(on_chip.cpu().resolve_conj().resolve_neg(), want)
    assert torch.equal(on_chip.to(OTHER).cpu().resolve_conj().resolve_neg(), want)
    assert torch.equal(on_chip.clone().cpu().resolve_conj().resolve_neg(), want)
    assert on_chip[1, 2].item() == want.resolve_conj().resolve_neg()[1, 2].item()
    target, twin = torch.zeros_like(x, device=DEVICE), torch.zeros_like(x)
    view(target).copy_(want.to(DEVICE))
    view(twin).copy_(want)
    assert torch.equal(target.cpu(), twin)
    view(target).copy_(want * 2)
    view(twin).copy_(want * 2)
    assert torch.equal(target.cpu(), twin)


def test_copy_onto_itself() -> None:
    """Two tensors over the same place: nothing to do. Over a part of it: refused, as on the CPU."""
    x = torch.arange(10.0, device=DEVICE)
    x.view(2, 5).copy_(x.detach().view(2, 5))
    assert x.tolist() == list(range(10))
    with pytest.raises(RuntimeError, match="single memory location|overlap"):
        x[1:].copy_(x[:-1])


def test_broadcast_and_overlap() -> None:
    x = torch.zeros(3, 4, device=DEVICE)
    x.copy_(torch.arange(4.0))
    assert torch.equal(x.cpu(), torch.arange(4.0).expand(3, 4))
    x.copy_(torch.arange(3.0, device=OTHER).unsqueeze(1))
    assert torch.equal(x.cpu(), torch.arange(3.0).unsqueeze(1).expand(3, 4))
    with pytest.raises(RuntimeError):
        x.copy_(torch.ones(5))
    with pytest.raises(RuntimeError, match="single memory location|overlap"):
        torch.zeros(1, device=DEVICE).expand(3).copy_(torch.ones(3))
    x.copy_(x)
    assert x[2, 0].item() == 2


def test_only_the_copied_elements_change() -> None:
    x = torch.full((6,), 7.0, device=DEVICE)
    x[1:5:2].copy_(torch.tensor([1.0, 2.0]))
    x[:1].copy_(torch.tensor([3.0], device=OTHER))
    assert x.tolist() == [3, 1, 7, 2, 7, 7]


def test_blocking_copies_are_done_when_they_return() -> None:
    for _ in range(20):
        pinned = torch.full((5000,), 1.0).pin_memory()
        on_chip = pinned.to(DEVICE)
        pinned.fill_(9)
        assert on_chip.sum().item() == 5000
        host = torch.empty(5000, pin_memory=True)
        host.copy_(on_chip * 2)
        assert host.sum().item() == 10000
        plain = torch.full((5000,), 4.0)
        on_chip = plain.to(DEVICE, non_blocking=True)  # pageable: has been read
        plain.fill_(0)
        assert on_chip.sum().item() == 20000
        host = on_chip.to("cpu", non_blocking=True)  # pinned, so not waited for
        torch.fl.synchronize(DEVICE)
        assert host.sum().item() == 20000


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_item(dtype: torch.dtype) -> None:
    x = values(dtype, 5)
    assert [v.item() for v in x.to(DEVICE)] == [v.item() for v in x]
    with pytest.raises(RuntimeError):
        x.to(DEVICE).item()
