"""The generators of the devices: seeds, states, forks, independence; the same numbers on every device."""

from __future__ import annotations

import pytest
import torch

DEVICE, OTHER = "fl:1", "fl:0"
pytestmark = pytest.mark.timeout(120)


def draw(device: str = DEVICE, generator: torch.Generator | None = None) -> list[float]:
    return torch.rand(5, device=device, generator=generator).tolist()


def test_manual_seed_reaches_all_devices() -> None:
    torch.manual_seed(3)
    first = draw(DEVICE), draw(OTHER)
    torch.manual_seed(3)
    assert (draw(DEVICE), draw(OTHER)) == first
    assert first[0] == first[1]  # one seed, the same numbers on every device
    assert torch.fl.initial_seed() == 3


def test_state_round_trip() -> None:
    torch.fl.manual_seed_all(1)
    draw()
    state = torch.fl.get_rng_state(DEVICE)
    assert state.dtype == torch.uint8 and state.device.type == "cpu"
    first = draw()
    second = draw()
    torch.fl.set_rng_state(state, DEVICE)
    assert draw() == first and draw() == second
    states = torch.fl.get_rng_state_all()
    assert len(states) == torch.fl.device_count()
    first = draw(DEVICE), draw(OTHER)
    torch.fl.set_rng_state_all(states)
    assert (draw(DEVICE), draw(OTHER)) == first
    for wrong in (
        torch.zeros(3, dtype=torch.uint8),
        torch.zeros(16),
        torch.zeros(16, dtype=torch.uint8, device=DEVICE),
    ):
        with pytest.raises((TypeError, RuntimeError)):
            torch.fl.set_rng_state(wrong, DEVICE)


def test_devices_are_independent() -> None:
    torch.fl.manual_seed_all(1)
    alone = [draw(DEVICE), draw(DEVICE)]
    torch.fl.manual_seed_all(1)
    mixed = [draw(DEVICE), draw(OTHER), draw(DEVICE)]
    assert [mixed[0], mixed[2]] == alone
    with torch.fl.device(1):
        torch.fl.manual_seed(9)
    assert torch.fl.initial_seed() == 1
    cpu = torch.get_rng_state()
    draw()
    assert torch.equal(torch.get_rng_state(), cpu)


def test_generators_of_ones_own() -> None:
    one, two = torch.Generator(DEVICE).manual_seed(5), torch.Generator(DEVICE).manual_seed(5)
    assert one.device == torch.device(DEVICE) and one.initial_seed() == 5
    first = draw(generator=one)
    assert draw(generator=two) == first and draw(generator=one) != first
    state = one.get_state()
    third = draw(generator=one)
    two.set_state(state)
    assert draw(generator=two) == third
    clone = one.clone_state() if hasattr(one, "clone_state") else one
    assert clone.device == one.device
    with pytest.raises(RuntimeError):
        draw(generator=torch.Generator("cpu"))
    assert isinstance(one.seed(), int)


def test_fork_rng() -> None:
    torch.fl.manual_seed_all(2)
    first = draw()
    torch.fl.manual_seed_all(2)
    with torch.random.fork_rng(devices=[0, 1], device_type="fl"):
        torch.fl.manual_seed_all(77)
        draw()
    assert draw() == first


def test_a_seed_given_before_the_chips_are_opened(run_python) -> None:
    run_python("""
        import torch, torch_fl
        torch.manual_seed(11)
        assert not torch.fl.is_initialized()          # seeding opens nothing
        first = torch.rand(4, device="fl:1").tolist()
        torch.manual_seed(11)
        assert torch.rand(4, device="fl:1").tolist() == first
        torch.manual_seed(12)
        assert torch.rand(4, device="fl:1").tolist() != first
    """)


def test_dropout_in_checkpointed_code_is_the_same_twice() -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(64, device=DEVICE, requires_grad=True)
    with torch.fl.device(1):
        for reentrant in (False, True):
            x.grad = None
            out = checkpoint(lambda t: torch.nn.functional.dropout(t * t, 0.5), x, use_reentrant=reentrant)
            draw()  # other numbers in between
            out.sum().backward()
            assert torch.equal(x.grad, 2 * out.detach())
