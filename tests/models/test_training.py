"""How people train: optimizer made before .to(), autocast, copies and files of models, threads, a second device."""

from __future__ import annotations

import copy
import io
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from tiny_models import DEVICE
from torch import nn

import torch_fl


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 4))


def cnn() -> nn.Module:
    torch.manual_seed(0)
    features = (nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3))
    return nn.Sequential(*features, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))


def vectors() -> tuple[torch.Tensor, torch.Tensor]:
    """Four clusters that a small network separates."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 4, (128,), generator=generator)
    centers = torch.randn(4, 16, generator=generator)
    return centers[labels] + 0.3 * torch.randn(128, 16, generator=generator), labels


def pictures() -> tuple[torch.Tensor, torch.Tensor]:
    """A bright quarter: which one is the label."""
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(0, 4, (64,), generator=generator)
    x = 0.1 * torch.randn(64, 1, 12, 12, generator=generator)
    for i, label in enumerate(labels.tolist()):
        # a bar whose direction and width tell the class: an average over the picture alone does not
        width = 1 + label % 2
        if label < 2:
            x[i, 0, 4 : 4 + width, :] += 1
        else:
            x[i, 0, :, 4 : 4 + width] += 1
    return x, labels


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: tuple, steps: int, **autocast: object
) -> list[float]:
    x, y = (t.to(DEVICE) for t in data)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("fl", enabled=bool(autocast), **autocast):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [v.item() for v in losses]


def accuracy(model: nn.Module, data: tuple) -> float:
    model.eval()
    with torch.no_grad():
        return (model(data[0].to(DEVICE)).argmax(1) == data[1].to(DEVICE)).float().mean().item()


@pytest.mark.parametrize("make_optimizer", [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: torch.optim.Adam(p, lr=1e-2),
    lambda p: torch.optim.AdamW(p, lr=1e-2, fused=False),
    lambda p: torch.optim.RMSprop(p, lr=3e-3),
], ids=["sgd", "adam", "adamw", "rmsprop"])  # fmt: skip
def test_optimizer_made_before_the_move(make_optimizer: object) -> None:
    """`.to()` must keep the Parameter objects, or the optimizer trains tensors that nobody uses."""
    model = mlp()
    optimizer = make_optimizer(model.parameters())
    model.to(DEVICE)
    with torch_fl.routing.no_cpu_fallback():
        losses = train(model, optimizer, vectors(), 40)
    assert losses[-1] < 0.2 * losses[0]
    assert accuracy(model, vectors()) > 0.95


def test_cnn_learns_and_its_running_statistics_move() -> None:
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.to(DEVICE)
    with torch_fl.routing.no_cpu_fallback():
        losses = train(model, optimizer, pictures(), 60)
    assert losses[-1] < 0.3 * losses[0]
    assert model[1].num_batches_tracked.item() == 60
    assert not torch.equal(model[1].running_var.cpu(), torch.ones(8))
    assert accuracy(model, pictures()) > 0.9


def test_cnn_losses_equal_the_cpus() -> None:
    expected = cnn()
    actual = copy.deepcopy(expected).to(DEVICE)
    x, y = pictures()
    ours = train(actual, torch.optim.SGD(actual.parameters(), lr=0.05, momentum=0.9), (x, y), 10)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.05, momentum=0.9)
    theirs = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = F.cross_entropy(expected(x), y)
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-3, atol=1e-4)


def test_autocast_bfloat16_trains() -> None:
    model = mlp().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with torch.autocast("fl", dtype=torch.bfloat16):
        assert model[0](vectors()[0].to(DEVICE)).dtype == torch.bfloat16
    losses = train(model, optimizer, vectors(), 40, dtype=torch.bfloat16)
    assert losses[-1] < 0.2 * losses[0]
    assert all(p.dtype == torch.float32 == p.grad.dtype for p in model.parameters())


def test_deepcopy_and_pickle() -> None:
    model = mlp().eval().to(DEVICE)
    x = vectors()[0].to(DEVICE)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(p.device == torch.device(DEVICE) for p in twin.parameters())
        assert torch.equal(twin(x), model(x))
        with torch.no_grad():
            twin[0].weight.zero_()
        assert model[0].weight.abs().sum().item() > 0


@pytest.mark.parametrize("where", [None, "cpu", "fl:0", DEVICE])
def test_save_and_load(where: str | None) -> None:
    model = cnn().to(DEVICE)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    state = torch.load(file, map_location=where)
    assert {t.device for t in state.values()} == {torch.device(where or DEVICE)}
    fresh = cnn()
    with torch.no_grad():
        for p in fresh.parameters():
            p.zero_()
    fresh.load_state_dict(state)
    for name, tensor in fresh.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name].cpu()), name


def test_checkpoint_resumes_exactly() -> None:
    def start() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = mlp()[:3].to(DEVICE)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    data = (vectors()[0], vectors()[1])
    model, optimizer = start()
    train(model, optimizer, data, 3)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    straight = train(model, optimizer, data, 3)
    file.seek(0)
    saved = torch.load(file)
    model, optimizer = start()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert train(model, optimizer, data, 3) == straight


def test_two_threads_on_two_devices() -> None:
    """Each thread trains on its own device; both get what one alone gets."""
    results: dict[str, list[float]] = {}

    def work(device: str) -> None:
        torch.accelerator.set_device_index(torch.device(device).index)
        model = models[device]
        x, y = (t.to(device) for t in vectors())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        results[device] = losses

    models = {device: mlp().eval().to(device) for device in ("fl:0", DEVICE)}
    threads = [threading.Thread(target=work, args=(device,)) for device in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results["fl:0"] == results[DEVICE]
    assert results["fl:0"][-1] < results["fl:0"][0]


def test_device_one_while_zero_is_current() -> None:
    with torch.accelerator.device_index(0):
        model = cnn().to(DEVICE)
        losses = train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), pictures(), 5)
        assert torch.accelerator.current_device_index() == 0
        assert all(p.device == p.grad.device == torch.device(DEVICE) for p in model.parameters())
        y = model(pictures()[0].to(DEVICE))
        assert y.device == torch.device(DEVICE)
        assert y.untyped_storage().device == torch.device(DEVICE)
    assert losses[-1] < losses[0]
