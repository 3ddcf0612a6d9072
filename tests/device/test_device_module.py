"""torch.fl: the names that PyTorch and frameworks look up, with CUDA's signatures; import order; a lean import."""

from __future__ import annotations

import inspect
import os
import statistics
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.timeout(600)

NAMES = [
    "_is_in_bad_fork",
    "manual_seed_all",
    "get_rng_state",
    "set_rng_state",
    "is_available",
    "device_count",
    "current_device",
    "set_device",
    "device",
    "synchronize",
    "empty_cache",
    "mem_get_info",
    "get_amp_supported_dtype",
    "is_bf16_supported",
    "get_device_name",
    "get_device_properties",
    "Stream",
    "Event",
    "stream",
    "current_stream",
    "_lazy_init",
    "_initialized",
]
MORE = [
    "manual_seed",
    "seed",
    "seed_all",
    "initial_seed",
    "get_rng_state_all",
    "set_rng_state_all",
    "default_stream",
    "set_stream",
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_peak_memory_stats",
    "reset_accumulated_memory_stats",
    "device_of",
    "get_device_capability",
    "get_arch_list",
    "init",
    "is_initialized",
    "ipc_collect",
]


@pytest.mark.parametrize("name", NAMES + MORE)
def test_name_and_signature(name: str) -> None:
    ours = getattr(torch.fl, name)
    if not callable(ours):
        assert type(ours) is type(getattr(torch.cuda, name))
        return
    assert ours.__doc__ or name.startswith("_")
    theirs = getattr(torch.cuda, name, None)
    if theirs is None or name in ("Stream", "Event"):
        return

    def shape(function: object) -> list[tuple[str, object]]:
        target = function.__init__ if inspect.isclass(function) else function
        return [(p.name, p.default) for p in inspect.signature(target).parameters.values() if p.name != "self"]

    wanted, found = shape(theirs), shape(ours)
    assert [n for n, _ in found][: len(wanted)] == [n for n, _ in wanted], (found, wanted)
    for (_, default), (parameter, theirs_default) in zip(found, wanted, strict=False):
        required = theirs_default is inspect.Parameter.empty
        assert required or default is not inspect.Parameter.empty, parameter
    assert all(default is not inspect.Parameter.empty for _, default in found[len(wanted) :])


def test_stream_and_event_take_what_cuda_takes() -> None:
    torch.fl.Stream()
    torch.fl.Stream(device="fl:1", priority=0)
    event = torch.fl.Event(enable_timing=True, blocking=True, interprocess=False)
    assert isinstance(event, torch.fl.Event) and isinstance(event, torch.Event)
    assert not isinstance(3, torch.fl.Event)


def test_generated_methods() -> None:
    x = torch.ones(2)
    assert x.fl().device == torch.device("fl:0") and x.fl(1).is_fl and not x.is_fl
    assert torch.nn.Linear(2, 2).fl(1).weight.device == torch.device("fl:1")
    assert torch.get_device_module("fl") is torch.fl
    assert torch.accelerator.current_accelerator().type == "fl" and torch.accelerator.is_available()
    assert torch.accelerator.device_count() == torch.fl.device_count()


def test_device_arguments() -> None:
    for argument in (1, "fl:1", torch.device("fl:1")):
        assert torch.fl.get_device_properties(argument).index == 1
        with torch.fl.device(argument):
            assert torch.fl.current_device() == 1 and torch.empty(1, device="fl").device.index == 1
        assert torch.fl.current_device() == 0
    with torch.fl.device(None), torch.fl.device(-1):
        assert torch.fl.current_device() == 0
    torch.fl.set_device(-1)
    with torch.fl.device_of(torch.ones(1, device="fl:1")):
        assert torch.fl.current_device() == 1
    with torch.fl.device_of(torch.ones(1)):
        assert torch.fl.current_device() == 0
    for wrong in ("cpu", "cuda:0", "nonsense"):
        with pytest.raises((ValueError, RuntimeError)):
            torch.fl.synchronize(wrong)
    with torch.device("fl:1"):
        assert torch.ones(2).device == torch.device("fl:1")
    torch.set_default_device("fl:1")
    try:
        assert torch.zeros(2).device == torch.device("fl:1")
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize(
    "order",
    [
        "import torch, torch_fl",
        "import torch_fl, torch",
        "import torch",
        "import torch_fl.routing",
        "from torch_fl import register_device",
        "import torch_fl.profile",
        "import numpy, torch",
        "import torch_fl.cli",
    ],
)
def test_import_order(run_python, order: str) -> None:
    run_python(f"""
        {order}
        import torch
        assert not torch.fl.is_initialized()   # importing opens nothing
        assert torch.ones(2, device="fl:1").sum().item() == 2
    """)


def test_without_autoload(run_python) -> None:
    run_python(
        """
        import torch
        assert not hasattr(torch, "fl")
        import torch_fl
        assert torch.ones(2, device="fl").sum().item() == 2
    """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_another_name(run_python) -> None:
    run_python(
        """
        import io, torch
        x = torch.ones(2, device="ninguang:1")
        assert str(x.device) == "ninguang:1" and torch.ninguang.device_count() == 2 and x.is_ninguang
        buffer = io.BytesIO()
        torch.save(x, buffer)
        buffer.seek(0)
        assert torch.load(buffer).device == x.device
    """,
        TORCH_FL_DEVICE_NAME="ninguang",
    )


def test_the_import_is_lean(run_python) -> None:
    done = run_python("""
        import sys, torch
        heavy = [m for m in ("triton", "torch_fl.cli", "typer", "rich", "yaml", "msgspec", "torch_fl.profile.loader",
                             "torch_fl.ops.decompositions", "torch._dynamo", "torch._inductor", "torch._decomp",
                             "sympy")
                 if m in sys.modules]
        print(heavy)
        assert not any("libninguang" in line for line in open("/proc/self/maps"))
    """)
    plain = run_python(
        "import sys, torch; print([m for m in ('sympy', 'torch._dynamo', 'torch._decomp', 'typer', 'rich', 'yaml') "
        "if m in sys.modules])",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert set(eval(done.stdout)) <= set(eval(plain.stdout))


def test_import_time() -> None:
    def seconds(autoload: str) -> float:
        env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
        before = os.times()
        subprocess.run([sys.executable, "-c", "import torch"], env=env, check=True, timeout=120)
        after = os.times()  # the processor's time: a busy machine does not count
        return after.children_user + after.children_system - before.children_user - before.children_system

    seconds("1"), seconds("0")  # files into memory
    pairs = [(seconds("1"), seconds("0")) for _ in range(5)]
    with_plugin, without = (statistics.median(column) for column in zip(*pairs, strict=True))
    added = with_plugin - without
    assert added < 0.150 or added < 0.15 * without, f"{added * 1000:.0f} ms more than {without * 1000:.0f} ms"
    print(f"import torch: {without * 1000:.0f} ms, with the plugin {added * 1000:.0f} ms more")
