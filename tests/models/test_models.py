"""Tiny Transformers models on fl:1 against the CPU, with the CPU tier off: forward, backward, AdamW, generation."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_models import CASES, DEVICE, make
from torch import nn

import torch_fl

pytest.importorskip("transformers")

TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}


def on_device(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: value.to(DEVICE) for key, value in batch.items()}


def assert_same_state(actual: nn.Module, expected: nn.Module, what: str) -> None:
    """Parameters and buffers agree and live on the device."""
    theirs = dict(expected.state_dict())
    for name, tensor in actual.state_dict().items():
        assert tensor.device == torch.device(DEVICE), name
        torch.testing.assert_close(tensor.cpu(), theirs[name], **TOLERANCE, msg=lambda m, n=name: f"{what} {n}: {m}")


def assert_same_gradients(actual: nn.Module, expected: nn.Module) -> None:
    theirs = dict(expected.named_parameters())
    for name, parameter in actual.named_parameters():
        other = theirs[name].grad
        assert (parameter.grad is None) == (other is None), name
        if other is not None:
            assert parameter.grad.device == torch.device(DEVICE), name
            torch.testing.assert_close(parameter.grad.cpu(), other, **TOLERANCE,
                                       msg=lambda m, n=name: f"gradient {n}: {m}")  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_forward(name: str) -> None:
    expected, batch = make(name).eval(), CASES[name].batch()
    actual = copy.deepcopy(expected).to(DEVICE)
    with torch.no_grad():
        wanted = expected(**batch)
        with torch_fl.routing.no_cpu_fallback():
            got = actual(**on_device(batch))
    torch.testing.assert_close(got.logits.cpu(), wanted.logits, **TOLERANCE)
    torch.testing.assert_close(got.loss.cpu(), wanted.loss, **TOLERANCE)


# AdamW's first step is lr * sign(gradient) where the gradient is not tiny: eps keeps rounding from deciding it.
@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"fused": True}], ids=["default", "single", "fused"])
@pytest.mark.parametrize("name", CASES)
def test_training_step(name: str, options: dict[str, bool]) -> None:
    expected, batch = make(name).train(), CASES[name].batch()
    actual = copy.deepcopy(expected).to(DEVICE)
    wanted = expected(**batch).loss
    wanted.backward()
    torch.optim.AdamW(expected.parameters(), lr=1e-2, eps=1e-3).step()
    optimizer = torch.optim.AdamW(actual.parameters(), lr=1e-2, eps=1e-3, **options)
    with torch_fl.routing.no_cpu_fallback(), torch_fl.routing.track() as routes:
        got = actual(**on_device(batch)).loss
        got.backward()
        optimizer.step()
    torch.testing.assert_close(got.detach().cpu(), wanted.detach(), **TOLERANCE)
    assert_same_gradients(actual, expected)
    assert_same_state(actual, expected, "after the step")
    assert not routes.cpu_fallback


@pytest.mark.parametrize("name", CASES)
def test_training_stays_on_the_cpus_path(name: str) -> None:
    """Five steps: an error that one step hides adds up."""
    expected, batch = make(name).train(), CASES[name].batch()
    actual, there = copy.deepcopy(expected).to(DEVICE), on_device(batch)
    losses = []
    for model, operands in ((expected, batch), (actual, there)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)
        seen = []
        with torch_fl.routing.no_cpu_fallback():
            for _ in range(5):
                loss = model(**operands).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                seen.append(loss.item())
        losses.append(seen)
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("use_cache", [True, False], ids=["cache", "no_cache"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generate_greedy(name: str, use_cache: bool) -> None:
    expected = make(name).eval()
    actual = copy.deepcopy(expected).to(DEVICE)
    prompt = torch.tensor([[5, 17, 3, 88], [9, 2, 41, 7]])
    options = {"max_new_tokens": 12, "do_sample": False, "use_cache": use_cache, "pad_token_id": 0}
    with torch.no_grad():
        wanted = expected.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
        with torch_fl.routing.no_cpu_fallback():
            there = prompt.to(DEVICE)
            got = actual.generate(there, attention_mask=torch.ones_like(there), **options)
    assert got.device == torch.device(DEVICE)
    assert got.tolist() == wanted.tolist()


def test_generate_with_padding() -> None:
    """Left padding and an attention mask: the mask path of attention with a cache."""
    expected = make("llama").eval()
    actual = copy.deepcopy(expected).to(DEVICE)
    prompt = torch.tensor([[0, 0, 3, 88], [9, 2, 41, 7]])
    mask = (prompt != 0).long()
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        wanted = expected.generate(prompt, attention_mask=mask, **options)
        with torch_fl.routing.no_cpu_fallback():
            got = actual.generate(prompt.to(DEVICE), attention_mask=mask.to(DEVICE), **options)
    assert got.tolist() == wanted.tolist()


def test_generate_sampling_repeats_with_its_seed() -> None:
    model = make("gpt2").eval().to(DEVICE)
    prompt = torch.tensor([[5, 17, 3, 88]], device=DEVICE)
    seen = []
    for _ in range(2):
        torch.manual_seed(11)
        seen.append(model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=20, top_p=0.9,
                                   max_new_tokens=10, pad_token_id=0).tolist())  # fmt: skip
    assert seen[0] == seen[1]
