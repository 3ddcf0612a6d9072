"""Cases from public problem reports on PyTorch devices: random numbers, files, printing, autocast, processes.

Each states the right value by assert, with the CPU as the reference. "Source" names the report, "Kind" the fault: the
same fault usually sits in every sibling operator. FL_TEST_DEVICE chooses the device (fl:1).
"""

# ruff: noqa: E501, E731
from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from device_under_test import DEVICE, INF, NAN, dev, run_py, same
from torch import nn

import torch_fl

# ----------------------------------------------------------------------------------- random


def test_generator_state_round_trip():
    """
    Source: pytorch/pytorch#130613 -- set_state on a fresh generator restarts the stream instead of resuming it
    Kind: rng-state (offset missing from the state)
    """
    gen = torch.Generator(device=DEVICE).manual_seed(42)
    torch.empty(33, device=DEVICE).exponential_(1, generator=gen)
    torch.rand(5, device=DEVICE, generator=gen)
    state = gen.get_state()
    c = torch.empty(9, device=DEVICE).exponential_(1, generator=gen)
    gen2 = torch.Generator(device=DEVICE)
    gen2.set_state(state)
    d = torch.empty(9, device=DEVICE).exponential_(1, generator=gen2)
    assert torch.equal(c, d)
    assert gen2.initial_seed() == 42


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.randn(64, device=DEVICE),
        lambda: torch.normal(0.0, 1.0, (64,), device=DEVICE),
        lambda: torch.rand(64, device=DEVICE),
        lambda: torch.empty(64, device=DEVICE).bernoulli_(0.5),
        lambda: torch.randperm(64, device=DEVICE),
        lambda: torch.randint(0, 1000, (64,), device=DEVICE),
        lambda: F.dropout(torch.ones(64, device=DEVICE)),
        lambda: torch.multinomial(torch.ones(64, device=DEVICE), 32),
    ],
    ids=["randn", "normal", "rand", "bernoulli", "randperm", "randint", "dropout", "multinomial"],
)
def test_seed_reproduces_and_stream_advances(draw):
    """
    Source: pytorch/pytorch#78009 -- normal() returns the same tensor at each call
    Source: pytorch/pytorch#78110 -- randn repeats while rand does not
    Source: pytorch/pytorch#84288 -- manual_seed has no effect on randn
    Kind: rng-state (seed not wired to the op, or stream not advanced)
    """
    torch.manual_seed(7)
    a, b = draw(), draw()
    torch.manual_seed(7)
    a2, b2 = draw(), draw()
    assert torch.equal(a, a2) and torch.equal(b, b2)
    assert not torch.equal(a, b)
    assert a.device.type == DEVICE.type


def test_generator_index_matches_default_device():
    """
    Source: pytorch/pytorch#106117 -- a generator made for "dev" is refused by an op on "dev:0"
    Source: pytorch/pytorch#110820 -- shuffle=True fails when the default device is the accelerator
    Kind: device-index (None and 0 not treated as the same device)
    """
    gen = torch.Generator(device=DEVICE).manual_seed(1)
    dev0 = torch.device(DEVICE.type, 0)
    p = torch.randperm(10, device=dev0, generator=gen)
    assert sorted(p.tolist()) == list(range(10))
    gen0 = torch.Generator(device=dev0).manual_seed(1)
    assert torch.equal(torch.randperm(10, device=DEVICE, generator=gen0), p)
    with torch.device(DEVICE):
        assert torch.ones(2).device.type == DEVICE.type
        assert torch.randperm(4, generator=torch.Generator(device=DEVICE).manual_seed(0)).device.type == DEVICE.type


def test_bernoulli_extremes():
    """
    Source: pytorch/pytorch#85611 -- bernoulli of all-ones probabilities returns zeros
    Kind: rng-distribution (boundary probabilities)
    """
    assert bool((torch.bernoulli(torch.ones(100, device=DEVICE)) == 1).all())
    assert bool((torch.bernoulli(torch.zeros(100, device=DEVICE)) == 0).all())
    x = torch.rand(20000, device=DEVICE)
    assert float(x.min()) >= 0.0 and float(x.max()) < 1.0
    kept = float((F.dropout(torch.ones(20000, device=DEVICE), 0.25) > 0).float().mean())
    assert abs(kept - 0.75) < 0.03


# ------------------------------------------------------------------------------ serialization


def test_save_load_map_location():
    """
    Source: pytorch/pytorch#79384 -- torch.load does not know how to restore the device's storage tag
    Source: pytorch/pytorch#77874 -- map_location=device fails
    Source: pytorch/pytorch#85230 -- weights loaded straight to the device are zero
    Source: pytorch/pytorch#87504 -- a checkpoint saved on the device cannot be opened elsewhere
    Kind: serialization (location tag and restore function)
    """
    m = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    ref = {k: v.clone() for k, v in m.state_dict().items()}
    for src in (m.state_dict(), dev(copy.deepcopy(m)).state_dict()):
        for loc in (None, "cpu", DEVICE, str(DEVICE), lambda storage, tag: storage, {str(DEVICE): "cpu"}):
            buf = io.BytesIO()
            torch.save(src, buf)
            buf.seek(0)
            sd = torch.load(buf, map_location=loc)
            for k, v in sd.items():
                assert torch.equal(v.cpu(), ref[k]), (k, loc)
                if loc in ("cpu",):
                    assert v.device.type == "cpu"
                if loc in (DEVICE, str(DEVICE)):
                    assert v.device.type == DEVICE.type


def test_pickle_of_device_state_dict():
    """
    Source: pytorch/pytorch#87839 -- pickling a device state_dict fails (multiprocessing, ray)
    Kind: serialization (plain pickle path)
    """
    sd = dev(nn.Linear(4, 4)).state_dict()
    back = pickle.loads(pickle.dumps(sd))
    for k in sd:
        assert back[k].device.type == DEVICE.type and torch.equal(back[k], sd[k])
    t = torch.arange(10, device=DEVICE)
    a, b = pickle.loads(pickle.dumps((t[2:5], t[4:])))
    assert a.tolist() == [2, 3, 4] and b.tolist() == [4, 5, 6, 7, 8, 9]


def test_deepcopy_keeps_device_sharing_and_gradients():
    """
    Source: pytorch/pytorch#65409 -- deepcopy of a device tensor goes through unsupported storage calls
    Source: pytorch/pytorch#89129 -- the same on another backend: storage access instead of clone
    Source: intel/intel-extension-for-pytorch#51 -- deepcopy fails its storage-type check
    Kind: serialization (deepcopy)
    """
    m = dev(nn.Linear(3, 3))
    m.tied = m.weight
    c = copy.deepcopy(m)
    assert c.weight.device == m.weight.device and c.tied is c.weight
    assert torch.equal(c.weight, m.weight) and c.weight.data_ptr() != m.weight.data_ptr()
    leaf = torch.ones(2, device=DEVICE, requires_grad=True)
    (leaf * 3).sum().backward()
    twin = copy.deepcopy(leaf)
    assert twin.requires_grad and twin.grad.tolist() == [3.0, 3.0] and twin.grad.device == leaf.device
    t = torch.arange(6.0, device=DEVICE)
    u, v = copy.deepcopy((t, t[3:]))
    u[4] = -1
    assert v.tolist() == [3.0, -1.0, 5.0]


# ---------------------------------------------------------------------------------- printing


def test_repr_of_device_tensors():
    """
    Source: pytorch/pytorch#78001 -- printing the result of nonzero() crashes
    Source: microsoft/DirectML#242 -- printing a one-element tensor needs a missing operator
    Source: Ascend/pytorch#14 -- printing a tensor dumps core
    Kind: printing (repr drives many small ops)
    """
    for x in (
        torch.ones(2, 3).nonzero(),
        torch.tensor([1.0]),
        torch.tensor([]),
        torch.tensor(3),
        torch.tensor([NAN, INF, 1e10, -0.0]),
        torch.arange(5000.0).view(50, 100),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.zeros(2, 0, 3),
        torch.arange(6.0).view(2, 3).t(),
        torch.tensor([2**62, -5]),
        torch.tensor([0.5], dtype=torch.bfloat16),
    ):
        text = repr(dev(x))
        bare = text.replace(f", device='{dev(x).device}'", "") if DEVICE.type != "cpu" else text
        assert "".join(bare.split()) == "".join(repr(x).split())
        if DEVICE.type != "cpu":
            assert f"device='{dev(x).device}'" in text
    assert "grad_fn" in repr(torch.ones(1, device=DEVICE, requires_grad=True) * 2)
    assert f"{torch.tensor(2.5, device=DEVICE):.2f}" == "2.50"


# ---------------------------------------------------------------------------------- autocast


def test_autocast_casts_matmul_and_keeps_fp32_ops():
    """
    Source: microsoft/DirectML#454 -- autocast refuses or ignores the custom device
    Source: flagos-ai/Torch-FL#127 -- matmul fails under autocast because no cast policy is registered
    Kind: autocast-policy (cast lists missing for the backend)
    """
    a, w = torch.randn(4, 4, device=DEVICE), torch.randn(4, 4, device=DEVICE, requires_grad=True)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        y = torch.mm(a, w)
        assert y.dtype == torch.bfloat16
        assert F.linear(a, w).dtype == torch.bfloat16
        assert torch.einsum("ij,jk->ik", a, w).dtype == torch.bfloat16
        assert (a + a).dtype == torch.float32 and (y + a).dtype == torch.float32
        assert torch.is_autocast_enabled(DEVICE.type) and torch.get_autocast_dtype(DEVICE.type) == torch.bfloat16
        with torch.autocast(DEVICE.type, enabled=False):
            assert torch.mm(a, w).dtype == torch.float32
        loss = F.mse_loss(y, torch.zeros_like(y))
        assert loss.dtype == torch.float32
    loss.backward()
    assert w.grad.dtype == torch.float32 and bool(w.grad.isfinite().all())
    assert torch.mm(a, w).dtype == torch.float32


# ------------------------------------------------------------------- process, devices, imports


def test_import_in_either_order_and_twice():
    """
    Source: torch-spyre/torch-spyre#2925 -- importing the backend first re-enters it through autoload and fails
    Source: pytorch/pytorch#145611 -- a backend loaded by autoload uses a part of torch that is not set up yet
    Kind: import-order (autoload entry point not re-entrant)
    """
    code = """
        import os
        {first}
        {second}
        import importlib
        x = torch.ones(2, device=os.environ.get("FL_TEST_DEVICE", "cpu"))
        assert (x + x).tolist() == [2.0, 2.0]
        print("DONE")
    """
    backend = "import torch_fl" if DEVICE.type != "cpu" else "pass"
    for first, second in ((backend, "import torch"), ("import torch", backend)):
        for autoload in ("1", "0"):
            p = run_py(code.format(first=first, second=second), preamble="", TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)
            assert "DONE" in p.stdout and p.returncode == 0, p.stderr
    p = run_py(
        """
        import os, torch
        x = torch.ones(2, device=os.environ.get("FL_TEST_DEVICE", "cpu"))   # autoload alone
        print("DONE")
    """,
        preamble="",
        TORCH_DEVICE_BACKEND_AUTOLOAD="1",
    )
    assert "DONE" in p.stdout, p.stderr


def test_clean_exit_with_live_tensors():
    """
    Source: DeepLink-org/deeplink.framework#888 -- the allocator is destroyed before the last tensors, dumping core at exit
    Kind: teardown-order (static destructors)
    """
    p = run_py("""
        import atexit, threading
        keep = [torch.randn(64, 64, device=device, requires_grad=True) for _ in range(4)]
        loss = sum((k @ k).sum() for k in keep)
        loss.backward()
        class Late:
            t = torch.ones(8, device=device)
            def __del__(self):
                self.t = None
        cycle = Late(); cycle.me = cycle
        atexit.register(lambda: (keep[0] + 1).sum().item())
        threading.Thread(target=lambda: keep[1].sum().item()).start()
        print("DONE")
    """)
    assert p.returncode == 0 and "DONE" in p.stdout, (p.returncode, p.stderr[-800:])
    assert "terminate called" not in p.stderr and "Segmentation" not in p.stderr


def test_first_backward_in_a_fresh_process():
    """
    Source: artyom-beilis/pytorch_dlprim#58 -- the first backward asks for device hooks that were never registered
    Kind: hooks-registration (autograd needs the backend's hooks and device guard)
    """
    p = run_py("""
        m = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 4 * 4, 3)).to(device)
        loss = F.nll_loss(F.log_softmax(m(torch.ones(2, 1, 6, 6).to(device)), 1), torch.tensor([0, 2]).to(device))
        loss.backward()
        assert all(q.grad is not None and bool(q.grad.isfinite().all()) for q in m.parameters())
        print("DONE")
    """)
    assert "DONE" in p.stdout, p.stderr


def test_every_device_computes_the_same():
    """
    Source: pytorch/pytorch#153022 -- inference on device 1 gives NaN while device 0 is right
    Kind: device-index (work issued on the current device, not on the tensor's device)
    """
    # Of one chip: another test of this process may have registered chips too late for backward().
    chip = torch_fl.list_devices()[DEVICE.index or 0]["chip"]
    same_chip = [i for i, device in enumerate(torch_fl.list_devices()) if device["chip"] == chip]
    assert same_chip
    torch.manual_seed(0)
    m, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)), torch.randn(4, 8)
    ref = m(x)
    for i in same_chip:
        d = torch.device(DEVICE.type, i)
        mi, xi = copy.deepcopy(m).to(d), x.to(d)
        y = mi(xi)
        assert y.device.type == DEVICE.type and (y.device.index or 0) == i
        same(y, ref)
        y.sum().backward()
        g = mi[0].weight.grad
        assert (g.device.index or 0) == i and bool(g.isfinite().all())
        same(copy.deepcopy(mi[0].weight.data), m[0].weight.data)


def test_ddp_wraps_a_device_module():
    """
    Source: microsoft/DirectML#474 -- DDP construction fails because broadcast is not implemented for the device
    Kind: distributed-coverage (process group for the device)
    """
    p = run_py("""
        import tempfile, torch.distributed as dist
        path = os.path.join(tempfile.mkdtemp(), "store")
        dist.init_process_group(init_method="file://" + path, rank=0, world_size=1)
        torch.manual_seed(0)
        ref = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))  # a bias here has gradient 0: rounding
        import copy
        m = nn.parallel.DistributedDataParallel(copy.deepcopy(ref).to(device))
        # Against a target: the plain sum of a batch norm's squares is a constant, whose gradient is rounding too.
        x, target = torch.randn(6, 4), torch.randn(6, 4)
        (m(x.to(device)) - target.to(device)).square().sum().backward(); (ref(x) - target).square().sum().backward()
        for a, b in zip(m.parameters(), ref.parameters()):
            torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-5)
        t = torch.ones(3, device=device); dist.broadcast(t, 0); dist.all_reduce(t)
        assert t.tolist() == [1.0] * 3
        import gc
        del m; gc.collect()                                   # nothing may hold the group when it goes
        dist.destroy_process_group()
        print("DONE", flush=True)
    """)
    assert "DONE" in p.stdout and p.returncode == 0, p.stderr[-1500:]
