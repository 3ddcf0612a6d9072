"""A model over two devices, as torch.nn.parallel and pipelines have it: losses and weights as on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from test_several_chips import has_pocl

pytestmark = pytest.mark.timeout(300)

SPLIT = """
import copy, sys, torch, torch_fl
from torch import nn

def parts():
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return first, nn.Sequential(nn.Linear(64, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))

class Split(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        first, second = parts()
        self.first, self.second, self.a, self.b = first.to(a), second.to(b), a, b
    def forward(self, x):
        return self.second(self.first(x.to(self.a)).to(self.b, non_blocking=True))

def batches(n):
    generator = torch.Generator().manual_seed(5)
    for _ in range(n):
        yield torch.randn(8, 1, 8, 8, generator=generator), torch.randint(4, (8,), generator=generator)

def train(a, b, make, steps=4, micro=1):
    model = Split(a, b)
    optimizer, losses = make(model.parameters()), []
    for x, y in batches(steps):
        optimizer.zero_grad()
        total = 0.0
        for xs, ys in zip(x.chunk(micro), y.chunk(micro)):
            loss = nn.functional.cross_entropy(model(xs), ys.to(b)) / micro
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses, [p.detach().cpu() for p in (*model.parameters(), *model.buffers())]

def pipeline(a, b, make, steps=4, micro=4):
    # Two stages on side streams: all micro-batches go through stage one while stage two works on those before.
    model = Split(a, b)
    optimizer, losses = make(model.parameters()), []
    one, two = torch.Stream(a), torch.Stream(b)
    for x, y in batches(steps):
        optimizer.zero_grad()
        for stream, device in ((one, a), (two, b)):
            stream.wait_stream(torch.accelerator.current_stream(device))
        parts = []
        for xs, ys in zip(x.chunk(micro), y.chunk(micro)):
            with one:
                hidden = model.first(xs.to(a, non_blocking=True))
            two.wait_event(one.record_event())
            with one, two:
                moved = hidden.to(b, non_blocking=True)
            with two:
                parts.append(nn.functional.cross_entropy(model.second(moved), ys.to(b)) / micro)
        with two:
            loss = torch.stack(parts).sum()
        loss.backward()
        for stream, device in ((one, a), (two, b)):
            torch.accelerator.current_stream(device).wait_stream(stream)
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in (*model.parameters(), *model.buffers())]

def same(got, want):
    torch.testing.assert_close(got[0], want[0], rtol=1e-4, atol=1e-5)
    for g, w in zip(got[1], want[1], strict=True):
        torch.testing.assert_close(g, w, rtol=1e-3, atol=2e-5)

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-3),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-3, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-3, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, eps=1e-3),
}
cpu = torch.device("cpu")
"""


@pytest.mark.parametrize("chips", ["ninguang", "ninguang,pocl"])
def test_training_over_two_devices(run_python, chips: str) -> None:
    if "pocl" in chips and not has_pocl():
        pytest.skip("no PoCL here")
    script = SPLIT + """
a, b = torch.device("fl:0"), torch.device("fl", torch.fl.device_count() - 1)
pairs = ((a, b), (b, a))
for i, (name, make) in enumerate(OPTIMIZERS.items()):
    want = train(cpu, cpu, make)
    same(train(*pairs[i % 2], make), want)
    print(name, want[0])
for a, b in pairs:
    make = OPTIMIZERS["SGD"]
    same(train(a, b, make, micro=4), train(cpu, cpu, make, micro=4))
    same(pipeline(a, b, make), train(cpu, cpu, make, micro=4))
"""
    run_python(script, TORCH_FL_CHIPS=chips)


def test_data_parallel_by_hand() -> None:
    """Copies of a model on two devices, run by torch.nn.parallel's threads: the whole batch's gradients in sum."""
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)), torch.randn(8, 6)
    replicas = [copy.deepcopy(model).to(f"fl:{i}") for i in range(2)]
    inputs = [(part.to(f"fl:{i}"),) for i, part in enumerate(x.chunk(2))]
    outputs = torch.nn.parallel.parallel_apply(replicas, inputs, devices=[0, 1])
    assert [o.device.index for o in outputs] == [0, 1]
    torch.cat([o.to("fl:0") for o in outputs]).square().sum().backward()
    model(x).square().sum().backward()
    for whole, first, second in zip(*(m.parameters() for m in (model, *replicas)), strict=True):
        assert (first.grad.device.index, second.grad.device.index) == (0, 1)
        torch.testing.assert_close((first.grad + second.grad.to("fl:0")).cpu(), whole.grad)


def test_data_parallel_of_pytorch_is_built_with_cuda_only() -> None:
    """docs/several-chips.md says so: PyTorch's scatter, gather and broadcast are compiled in CUDA builds alone."""
    if hasattr(torch._C, "_scatter"):
        pytest.skip("this build of PyTorch has them")
    model = torch.nn.DataParallel(torch.nn.Linear(3, 2).to("fl:0"), device_ids=[0, 1])
    with pytest.raises(AttributeError, match="_scatter"):
        model(torch.ones(4, 3, device="fl:0"))
