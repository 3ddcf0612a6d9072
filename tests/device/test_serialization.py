"""save and load, map_location, pickle, deepcopy, state dicts, DLPack, sharing between storages."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

DEVICE = "fl:1"
pytestmark = pytest.mark.timeout(120)


def saved(value: object) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str)
def test_save_and_load(dtype: torch.dtype) -> None:
    x = torch.arange(6).reshape(2, 3).to(dtype)
    on_chip = x.to(DEVICE)
    back = torch.load(saved(on_chip))
    assert back.device == torch.device(DEVICE) and torch.equal(back.cpu(), x)
    for target in ("cpu", "fl:0", "fl", torch.device("fl:1"), lambda storage, place: storage):
        moved = torch.load(saved(on_chip), map_location=target)
        assert torch.equal(moved.cpu(), x)
    assert torch.load(saved(on_chip), map_location="fl:0").device == torch.device("fl:0")
    assert torch.load(saved(on_chip), map_location={"fl:1": "fl:0"}).device == torch.device("fl:0")
    assert torch.load(saved(x), map_location=DEVICE).device == torch.device(DEVICE)


def test_views_share_their_storage_after_loading() -> None:
    base = torch.arange(10.0, device=DEVICE)
    loaded = torch.load(saved([base, base[2:5], base.view(2, 5).t()]))
    loaded[0][2] = 99
    assert loaded[1][0].item() == 99 and loaded[2][2, 0].item() == 99
    assert loaded[2].stride() == (1, 5)


def test_a_device_that_is_not_here_is_told() -> None:
    buffer = saved(torch.ones(2, device=DEVICE))
    data = buffer.getvalue().replace(b"fl:1", b"fl:9")
    with pytest.raises(RuntimeError, match="map_location|does not exist|fl:9"):
        torch.load(io.BytesIO(data))
    assert torch.load(io.BytesIO(data), map_location="cpu").tolist() == [1, 1]


def test_pickle_and_deepcopy() -> None:
    x = torch.arange(6.0, device=DEVICE).view(2, 3).t()
    for again in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), copy.copy(x)):
        assert again.device == x.device and torch.equal(again.cpu(), x.cpu()) and again.stride() == x.stride()
    assert copy.deepcopy(x).data_ptr() != x.data_ptr()
    parameter = torch.nn.Parameter(torch.ones(3, device=DEVICE))
    twin = copy.deepcopy(parameter)
    assert isinstance(twin, torch.nn.Parameter) and twin.device == parameter.device and twin.requires_grad
    assert torch.load(saved(parameter), weights_only=False).requires_grad


def test_a_model_and_its_optimizer_continue_where_they_were() -> None:
    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
        loss = model(torch.ones(2, 4, device=DEVICE)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer)
    state = torch.load(saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()}), map_location="cpu")
    wanted = [step(model, optimizer), step(model, optimizer)]
    other = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to(DEVICE)
    other.load_state_dict(state["model"])
    resumed = torch.optim.AdamW(other.parameters(), lr=0.1)
    resumed.load_state_dict(state["optimizer"])
    assert [step(other, resumed), step(other, resumed)] == wanted


def test_whole_module_and_mmap(tmp_path) -> None:
    model = torch.nn.Linear(3, 2).to(DEVICE)
    path = tmp_path / "model.pt"
    torch.save(model, path)
    again = torch.load(path, weights_only=False)
    assert again.weight.device == torch.device(DEVICE) and torch.equal(again.weight.cpu(), model.weight.cpu())
    torch.save(model.state_dict(), path)
    loaded = torch.load(path, map_location=DEVICE, mmap=True)
    assert loaded["weight"].device == torch.device(DEVICE) and torch.equal(loaded["weight"].cpu(), model.weight.cpu())


def test_the_parameter_stays_the_same_object_when_moved() -> None:
    model = torch.nn.Linear(2, 2)
    weight = model.weight
    optimizer = torch.optim.SGD(model.parameters(), 1.0)  # made before .to(), as Accelerate does
    model.to(DEVICE)
    assert model.weight is weight and weight.device == torch.device(DEVICE)
    before = weight.detach().clone()
    model(torch.ones(1, 2, device=DEVICE)).sum().backward()
    optimizer.step()
    assert not torch.equal(before.cpu(), weight.detach().cpu())


def test_storages() -> None:
    x = torch.arange(4.0, device=DEVICE)
    storage = x.untyped_storage()
    assert storage.device == torch.device(DEVICE) and storage.nbytes() == 16
    assert storage.cpu().nbytes() == 16 and storage.clone().device == torch.device(DEVICE)
    y = torch.empty(0, device=DEVICE).set_(storage, 1, (2,), (1,))
    assert y.tolist() == [1, 2]
    assert torch.zeros(4, device=DEVICE).untyped_storage().copy_(storage).tolist() == storage.cpu().tolist()
