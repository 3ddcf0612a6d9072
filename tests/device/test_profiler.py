"""PyTorch's profiler shows the chip's own times, from its timing events."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("index", [0, 1])
def test_device_times_stand_beside_the_hosts(index: int) -> None:
    device = torch.device("fl", index)
    x = torch.rand(300, 300, device=device)
    with torch.accelerator.device_index(index), torch.autograd.profiler.profile(use_device="fl") as seen:
        for _ in range(3):
            torch.relu(x @ x)
    found = {event.key: event for event in seen.key_averages()}
    assert found["aten::mm"].count == 3 and found["aten::relu"].count == 3
    assert found["aten::mm"].device_time_total > 0 and found["aten::relu"].device_time_total > 0
    assert "fl time" in seen.key_averages().table().lower().replace("_", " ")


def test_the_backward_pass_is_timed_too() -> None:
    x = torch.rand(100, 100, device="fl:0", requires_grad=True)
    with torch.autograd.profiler.profile(use_device="fl") as seen:
        (x @ x).sum().backward()
    assert {event.key: event.device_time_total for event in seen.key_averages()}["MmBackward0"] > 0
