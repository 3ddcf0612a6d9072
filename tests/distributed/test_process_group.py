"""The c10d backend "flagos": every collective on fl devices, in two processes, against what torch computes on the CPU.

The mathematics of a collective is done here on the CPU from all ranks' inputs, which every rank knows.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

import pytest
import torch
import torch.distributed as dist
from ranks import WORLD, Ranks
from torch import nn

if torch.fl.device_count() == 0:
    pytest.skip("no fl device", allow_module_level=True)

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
ALL_TYPES = [*FLOATS, *INTEGERS, torch.bool, torch.complex64]
Op = dist.ReduceOp


@pytest.fixture(scope="module")
def ranks():
    group = Ranks()
    yield group
    group.stop()


def value(rank: int, dtype: torch.dtype, shape: tuple[int, ...] = (3, 4)) -> torch.Tensor:
    """The CPU tensor rank `rank` brings, known to every rank."""
    generator = torch.Generator().manual_seed(100 + rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    if dtype.is_complex:
        return torch.complex(torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 50, shape, generator=generator).to(dtype)


def same(got: torch.Tensor, want: torch.Tensor, device: torch.device) -> None:
    assert got.device == device and got.dtype == want.dtype
    torch.testing.assert_close(got.cpu(), want)


def strided(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The same values with gaps between rows and transposed, on the device."""
    room = torch.zeros(tensor.shape[1], 2 * tensor.shape[0], dtype=tensor.dtype, device=device)
    view = room[:, ::2].t()
    view.copy_(tensor)
    assert not view.is_contiguous()
    return view


# ---- data that moves

def broadcast(device, dtype):
    for root in range(WORLD):
        for place in (lambda t: t.to(device), lambda t: strided(t, device)):
            t = place(value(dist.get_rank(), dtype))
            dist.broadcast(t, root)
            same(t, value(root, dtype), device)


def all_gather(device, dtype):
    rank, want = dist.get_rank(), [value(r, dtype) for r in range(WORLD)]
    out = [strided(torch.zeros(3, 4, dtype=dtype), device), torch.zeros(3, 4, dtype=dtype, device=device)]
    dist.all_gather(out, strided(value(rank, dtype), device))
    for got, expected in zip(out, want, strict=True):
        same(got, expected, device)
    out = torch.zeros(6, 4, dtype=dtype, device=device)
    dist.all_gather_into_tensor(out, value(rank, dtype).to(device))
    same(out, torch.cat(want), device)


def all_gather_uneven(device):
    out = [torch.zeros(2, device=device), torch.zeros(5, device=device)]
    dist.all_gather(out, value(dist.get_rank(), torch.float32, (2 + 3 * dist.get_rank(),)).to(device))
    for r in range(WORLD):
        same(out[r], value(r, torch.float32, (2 + 3 * r,)), device)


def gather_and_scatter(device, dtype):
    rank, want = dist.get_rank(), [value(r, dtype) for r in range(WORLD)]
    for root in range(WORLD):
        out = [torch.zeros(3, 4, dtype=dtype, device=device) for _ in range(WORLD)] if rank == root else None
        dist.gather(strided(want[rank], device), out, dst=root)
        for got, expected in zip(out or [], want if out else [], strict=True):
            same(got, expected, device)
        got = strided(torch.zeros(3, 4, dtype=dtype), device)
        dist.scatter(got, [t.to(device) for t in want] if rank == root else None, src=root)
        same(got, want[rank], device)


def all_to_all(device, dtype):
    rank = dist.get_rank()
    want = torch.cat([value(r, dtype, (4, 3)).chunk(WORLD)[rank] for r in range(WORLD)])
    out = strided(torch.zeros(4, 3, dtype=dtype), device)
    dist.all_to_all_single(out, strided(value(rank, dtype, (4, 3)), device))
    same(out, want, device)
    # rank 0 gives rows 1 and 3, rank 1 gives 0 and 2
    give = [1, 3] if rank == 0 else [0, 2]
    take = [1, 0] if rank == 0 else [3, 2]
    sent = [value(r, dtype, (4 if r == 0 else 2, 3)).split([1, 3] if r == 0 else [0, 2]) for r in range(WORLD)]
    out = torch.zeros(sum(take), 3, dtype=dtype, device=device)
    dist.all_to_all_single(out, torch.cat(sent[rank]).to(device), take, give)
    same(out, torch.cat([sent[r][rank] for r in range(WORLD)]), device)
    out = [torch.zeros(rows, 3, dtype=dtype, device=device) for rows in take]
    dist.all_to_all(out, [t.to(device) for t in sent[rank]])
    for r in range(WORLD):
        same(out[r], sent[r][rank], device)


def point_to_point(device, dtype):
    rank = dist.get_rank()
    for source in (None, 0):
        t = strided(value(rank, dtype), device)
        if rank == 0:
            dist.send(t, 1)
        else:
            assert dist.recv(t, source) == 0
            same(t, value(0, dtype), device)
    got = torch.zeros(3, 4, dtype=dtype, device=device)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, value(rank, dtype).to(device), 1 - rank),
                                    dist.P2POp(dist.irecv, got, 1 - rank)])
    for work in works:
        work.wait()
    same(got, value(1 - rank, dtype), device)


def point_to_point_polled(device):
    """Completion seen by polling and by a future, without wait(), while another message goes the other way."""
    rank = dist.get_rank()
    if rank == 0:
        dist.recv(torch.zeros(1, device=device), 1, tag=9)
        dist.send(torch.full((2,), 1.0, device=device), 1, tag=1)
        return
    first = torch.zeros(2, device=device)
    late = dist.irecv(first, 0, tag=1)
    assert not late.is_completed()
    future = late.get_future()
    dist.send(torch.zeros(1, device=device), 0, tag=9)
    assert future.wait()[0] is not None
    deadline = time.monotonic() + 30
    while not late.is_completed():
        assert time.monotonic() < deadline
    same(first, torch.ones(2), device)


MOVING = [broadcast, all_gather, gather_and_scatter, all_to_all, point_to_point]


@pytest.mark.parametrize("dtype", [*ALL_TYPES, torch.float8_e4m3fn, torch.uint16], ids=str)
@pytest.mark.parametrize("body", MOVING, ids=lambda f: f.__name__)
def test_moving(ranks, body, dtype):
    ranks.run(_moving, body, dtype)


def _moving(device, body, dtype):
    if dtype in (torch.float8_e4m3fn, torch.uint16):  # few kernels: as bits of a type that can be compared
        return _moving_bits(device, dtype)
    return body(device, dtype)


def _moving_bits(device, dtype):
    bits = {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
    t = value(dist.get_rank(), bits).to(device)
    dist.broadcast(t.view(dtype), 1)
    same(t, value(1, bits), device)


def test_all_gather_of_different_sizes(ranks):
    ranks.run(all_gather_uneven)


def test_point_to_point_polled(ranks):
    ranks.run(point_to_point_polled)


# ---- reductions

def reduced(op, dtype: torch.dtype, shape: tuple[int, ...] = (3, 4)) -> torch.Tensor:
    """The reduction of all ranks' values, computed in a wide type and rounded once."""
    wide = torch.int64 if not dtype.is_floating_point and not dtype.is_complex else \
        torch.complex128 if dtype.is_complex else torch.float64
    if dtype == torch.bool:
        wide = torch.int64
    stack = torch.stack([value(r, dtype, shape) for r in range(WORLD)]).to(wide)
    if op == Op.SUM:
        result = stack.sum(0)
    elif op == Op.AVG:
        result = stack.sum(0)
        result = result / WORLD if wide != torch.int64 else result.div(WORLD, rounding_mode="trunc")
    elif op == Op.PRODUCT:
        result = stack.prod(0)
    elif op == Op.MIN:
        result = stack.amin(0)
    elif op == Op.MAX:
        result = stack.amax(0)
    elif op == Op.BAND:
        result = stack[0] & stack[1]
    elif op == Op.BOR:
        result = stack[0] | stack[1]
    else:
        result = stack[0] ^ stack[1]
    return result.to(dtype)


def all_reduce(device, op, dtype):
    for place in (lambda t: t.to(device), lambda t: strided(t, device)):
        t = place(value(dist.get_rank(), dtype))
        dist.all_reduce(t, op)
        same(t, reduced(op, dtype), device)


def reduce(device, op, dtype):
    rank = dist.get_rank()
    for root in range(WORLD):
        t = value(rank, dtype).to(device)
        dist.reduce(t, root, op)
        same(t, reduced(op, dtype) if rank == root else value(rank, dtype), device)


def reduce_scatter(device, op, dtype):
    rank = dist.get_rank()
    want = reduced(op, dtype, (4, 3)).chunk(WORLD)[rank]
    out = strided(torch.zeros(2, 3, dtype=dtype), device)
    dist.reduce_scatter_tensor(out, strided(value(rank, dtype, (4, 3)), device), op)
    same(out, want, device)
    out = torch.zeros(2, 3, dtype=dtype, device=device)
    dist.reduce_scatter(out, [t.to(device) for t in value(rank, dtype, (4, 3)).chunk(WORLD)], op)
    same(out, want, device)


REDUCTIONS = [(op, dtype) for op in (Op.SUM, Op.AVG, Op.PRODUCT, Op.MIN, Op.MAX) for dtype in [*FLOATS, *INTEGERS]]
REDUCTIONS += [(op, dtype) for op in (Op.BAND, Op.BOR, Op.BXOR) for dtype in [*INTEGERS, torch.bool]]
REDUCTIONS += [(op, torch.bool) for op in (Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX)]
REDUCTIONS += [(Op.SUM, torch.complex64), (Op.AVG, torch.complex64)]


@pytest.mark.parametrize("op, dtype", REDUCTIONS, ids=lambda v: str(v).split(".")[-1])
def test_reducing(ranks, op, dtype):
    ranks.run(_reducing, op.name, dtype)


def _reducing(device, op_name, dtype):
    for body in (all_reduce, reduce, reduce_scatter):
        if dtype.is_complex and body is not all_reduce:  # torch itself makes only some of these real
            continue
        body(device, getattr(Op, op_name), dtype)


def _premul_sum(device):
    rank = dist.get_rank()
    want = sum((0.5 + r) * value(r, torch.float32) for r in range(WORLD))
    for factor in (0.5 + rank, torch.tensor([0.5 + rank], device=device)):
        t = value(rank, torch.float32).to(device)
        dist.all_reduce(t, dist._make_nccl_premul_sum(factor))
        same(t, want, device)


def test_premul_sum_scales_before_the_sum(ranks):
    ranks.run(_premul_sum)


def _refused(device):
    cases = [(Op.BXOR, torch.float32, "BXOR"), (Op.AVG, torch.bool, "AVG")]
    for op, dtype, text in cases:
        with pytest.raises(NotImplementedError, match=text) as error:
            dist.all_reduce(torch.ones(2, device=device).to(dtype), op)
        assert {torch.float32: "Float", torch.bool: "Bool"}[dtype] in str(error.value)
    one = torch.ones(1, device=device)
    with pytest.raises(ValueError, match="2 ranks"):
        dist.distributed_c10d._get_default_group().allgather([[one]], [one])


def test_what_is_missing_is_said(ranks):
    ranks.run(_refused)


def _empty_and_scalar(device):
    t = torch.zeros(0, 3, device=device)
    dist.all_reduce(t)
    dist.broadcast(t, 0)
    dist.all_gather_into_tensor(torch.zeros(0, device=device), torch.zeros(0, device=device))
    t = torch.tensor(2.0, device=device)
    dist.all_reduce(t)
    assert t.item() == 2.0 * WORLD


def test_empty_tensors_and_scalars(ranks):
    ranks.run(_empty_and_scalar)


def _coalesced(device):
    rank = dist.get_rank()
    group = dist.distributed_c10d._get_default_group()
    shapes = [(3, 4), (0,), (5,)]
    for op in (Op.SUM, Op.AVG):
        tensors = [value(rank, torch.bfloat16, shape).to(device) for shape in shapes]
        dist.all_reduce_coalesced(tensors, op)
        for t, shape in zip(tensors, shapes, strict=True):
            same(t, reduced(op, t.dtype, shape), device)
    inputs = [value(rank, torch.float32).to(device), value(rank, torch.int32).to(device)]
    outputs = [torch.zeros(6, 4, dtype=t.dtype, device=device) for t in inputs]
    group.allgather_into_tensor_coalesced(outputs, inputs).wait()
    for t in outputs:
        same(t, torch.cat([value(r, t.dtype) for r in range(WORLD)]), device)
    back = [torch.zeros_like(t) for t in inputs]
    group.reduce_scatter_tensor_coalesced(back, outputs).wait()
    for t in back:
        same(t, WORLD * value(rank, t.dtype), device)


def test_coalesced(ranks):
    ranks.run(_coalesced)


# ---- order, futures, mixtures

def _ordered(device):
    """No synchronisation by the test: what was queued before is seen, what is queued after sees the result."""
    side = torch.Stream(device)
    for step in range(20):
        t = torch.zeros(1 << 16, device=device)
        with side:
            u = torch.zeros(1 << 16, device=device)
            u += dist.get_rank() + step
            dist.all_reduce(u)
            u *= 2
        t += dist.get_rank() + step
        work = dist.all_reduce(t, async_op=True)
        work.wait()
        t *= 2
        side.synchronize()
        want = 2.0 * sum(r + step for r in range(WORLD))
        assert t.unique().tolist() == [want] and u.unique().tolist() == [want]


def test_collectives_follow_the_current_stream(ranks):
    ranks.run(_ordered)


def _futures(device):
    t = torch.ones(4, device=device)
    work = dist.all_reduce(t, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    same(doubled.wait(), torch.full((4,), 2.0 * WORLD), device)
    assert work.wait() and work.is_completed() and work.is_success()
    t *= 3
    work.wait()  # a second wait must not copy the result once more
    same(t, torch.full((4,), 3.0 * WORLD), device)
    assert work.get_future().done() and work.result()[0].data_ptr() == t.data_ptr()


def test_work_and_future(ranks):
    ranks.run(_futures)


def _mixed(device):
    rank = dist.get_rank()
    t = torch.full((3,), rank + 1.0)
    dist.all_reduce(t)
    assert t.tolist() == [3.0] * 3
    dist.all_reduce(t, Op.AVG)
    assert t.tolist() == [3.0] * 3
    objects = [None] * WORLD
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(WORLD)]
    # one rank on the CPU, the other on a chip
    for dtype in (torch.float32, torch.bfloat16):
        t = value(rank, dtype).to(device if rank else "cpu")
        dist.all_reduce(t)
        same(t, reduced(Op.SUM, dtype), t.device)
        dist.broadcast(t, 0)
    dist.barrier()
    parameter = nn.Parameter(torch.full((2,), float(rank), device=device))
    dist.broadcast(parameter.detach(), 1)
    assert parameter.tolist() == [1.0, 1.0]


def test_cpu_tensors_in_the_same_group(ranks):
    ranks.run(_mixed)


def _subgroups(device):
    rank = dist.get_rank()
    alone = [dist.new_group([r]) for r in range(WORLD)]
    t = torch.full((2,), float(rank), device=device)
    dist.all_reduce(t, group=alone[rank])
    assert t.tolist() == [float(rank)] * 2
    both = dist.new_group(backend="flagos")
    for where in (device, "cpu"):
        t = torch.ones(2, device=where)
        dist.all_reduce(t, group=both)
        assert t.tolist() == [float(WORLD)] * 2
    for group in [*alone[rank:rank + 1], both]:
        dist.destroy_process_group(group)


def test_subgroups(ranks):
    ranks.run(_subgroups)


# ---- DistributedDataParallel

def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def _ddp(device, options):
    rank = dist.get_rank()
    whole, parallel = _model(), nn.parallel.DistributedDataParallel(_model().to(device), **options)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (whole, parallel)]
    data = torch.randn(4, 2 * WORLD, 8)
    for batch in data:
        for optimizer in optimizers:
            optimizer.zero_grad()
        whole(batch).square().mean().backward()
        parallel(batch.chunk(WORLD)[rank].to(device)).square().mean().backward()
        for a, b in zip(parallel.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-5)
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(parallel.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True},
                                     {"bucket_cap_mb": 1e-4, "gradient_as_bucket_view": True},
                                     {"find_unused_parameters": True}, {"static_graph": True}], ids=str)
def test_ddp_equals_one_process_on_the_whole_batch(ranks, options):
    ranks.run(_ddp, options)


def _ddp_hook(device):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
        model = nn.parallel.DistributedDataParallel(_model().to(device))
        model.register_comm_hook(None, hook)
        model(torch.ones(2, 8, device=device) * (dist.get_rank() + 1)).sum().backward()
        gathered = [None] * WORLD
        dist.all_gather_object(gathered, [p.grad.cpu() for p in model.parameters()])
        for a, b in zip(*gathered, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_ddp_hooks(ranks):
    ranks.run(_ddp_hook)



def test_fully_sharded_training_equals_one_process(ranks):
    ranks.run(_fsdp)


def _fsdp(device):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    whole, sharded = _model(), _model().to(device)
    fully_shard(sharded, mesh=init_device_mesh(device.type, (WORLD,)))
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (whole, sharded)]
    for batch in torch.randn(3, 2 * WORLD, 8):
        whole(batch).square().mean().backward()
        sharded(batch.chunk(WORLD)[dist.get_rank()].to(device)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(sharded.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(a.full_tensor().cpu(), b.detach(), rtol=1e-4, atol=1e-5)


# ---- whole processes

def _spawn(body: str, store: str, world: int = WORLD, awaited: int = WORLD) -> list[subprocess.CompletedProcess]:
    """Run `body` in `world` processes; it knows rank, world and device. The first `awaited` ones have to end."""
    script = textwrap.dedent("""
        import sys, os, datetime, time
        import torch, torch.distributed as dist
        rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
        device = torch.device("fl", rank % torch.fl.device_count())
        def init(backend=None, timeout=60, **more):
            dist.init_process_group(backend, init_method=store, rank=rank, world_size=world,
                                    timeout=datetime.timedelta(seconds=timeout), **more)
    """) + textwrap.dedent(body)
    started = [subprocess.Popen([sys.executable, "-c", script, str(r), str(world), store], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True) for r in range(world)]
    done = []
    try:
        for process in started[:awaited]:
            out, err = process.communicate(timeout=120)
            done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    finally:
        for process in started:
            process.kill()
            process.wait()
    return done


@pytest.mark.parametrize("backend", [None, "flagos", "cpu:gloo,fl:flagos"])
def test_life_and_clean_exit(tmp_path, backend):
    done = _spawn(f"""
        init({backend!r})
        for where in (device, "cpu"):
            t = torch.ones(3, device=where)
            dist.all_reduce(t)
            assert t.tolist() == [world] * 3
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).to(device))
        model(torch.ones(1, 2, device=device)).sum().backward()
        dist.barrier()
        dist.destroy_process_group()
        print("left", flush=True)
    """, f"file://{tmp_path}/store")
    for process in done:
        assert process.returncode == 0 and process.stdout == "left\n", process.stderr
        assert "terminate" not in process.stderr
    told = [process.stderr.count("staged through host memory") for process in done]
    assert told == [1, 0]


def test_a_device_id_and_split_group(tmp_path):
    done = _spawn("""
        init(device_id=device)
        part = dist.split_group(split_ranks=[[0], [1]])
        t = torch.ones(2, device=device)
        dist.all_reduce(t, group=part)
        assert t.tolist() == [1.0, 1.0] and part.size() == 1
        dist.all_reduce(t)
        assert t.tolist() == [2.0, 2.0]
        dist.destroy_process_group()
    """, f"file://{tmp_path}/store")
    for process in done:
        assert process.returncode == 0, process.stderr


def test_debug_detail_wraps_the_backend(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    done = _spawn("""
        init()
        t = torch.ones(2, device=device)
        dist.all_reduce(t)
        assert t.tolist() == [2.0, 2.0]
        dist.destroy_process_group()
    """, f"file://{tmp_path}/store")
    for process in done:
        assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSTOP"])
def test_a_lost_rank_is_an_error_for_the_others(tmp_path, signal):
    done = _spawn(f"""
        import signal
        init(timeout=8)
        t = torch.ones(1000, device=device)
        dist.all_reduce(t)
        if rank == 1:
            os.kill(os.getpid(), signal.{signal})
        before = time.monotonic()
        try:
            for _ in range(3):
                dist.all_reduce(t)
        except dist.DistBackendError as error:
            assert "all_reduce failed on rank 0" in str(error), error
            print("error after", time.monotonic() - before, flush=True)
        dist.destroy_process_group()
    """, f"file://{tmp_path}/store", awaited=1)
    assert done[0].returncode == 0 and done[0].stdout.startswith("error after"), done[0].stderr
    assert float(done[0].stdout.split()[-1]) < 12
