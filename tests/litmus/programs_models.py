"""Programs as people write them: prefetching loaders, threads with one model, autograd and optimizers on streams."""

from __future__ import annotations

import threading

import torch
from litmus import ONE, Run, litmus
from programs_order import SMALL
from torch.utils.data import DataLoader, TensorDataset

# An optimizer's first step imports much of PyTorch: once, before processes are forked.
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0).step()


def whole_weights(run: Run, *shape: int) -> torch.Tensor:
    return run.values(*shape, high=4) - 2


@litmus(together=True)
def loader_prefetches_on_a_side_stream(run: Run) -> None:
    """A real DataLoader, with a worker and a thread that pins; the next batch travels while the model works."""
    data = run.values(24, 256, high=8)
    weight = whole_weights(run, 256, 32)
    loader = DataLoader(TensorDataset(data), batch_size=4, num_workers=1, pin_memory=True)
    compute, side = torch.fl.Stream(ONE), torch.fl.Stream(ONE)
    w = run.on(compute, weight)

    def fetch(batches: iter) -> torch.Tensor | None:
        (batch,) = next(batches, (None,))
        if batch is None:
            return None
        assert batch.is_pinned()
        with torch.fl.stream(side):
            return batch.to(ONE, non_blocking=True)

    results = []
    batches = iter(loader)
    following = fetch(batches)
    while following is not None:
        compute.wait_stream(side)
        batch = following
        batch.record_stream(compute)
        following = fetch(batches)
        with torch.fl.stream(compute):
            results.append((batch @ w).sum(1))
        del batch
    with torch.fl.stream(compute):
        run.check(torch.cat(results).cpu(), (data @ weight).sum(1), "all batches")


@litmus(together=True)
def two_threads_with_one_model(run: Run) -> None:
    """Forward and backward at the same time, each thread on its own stream, with the same parameters."""
    weights = [whole_weights(run, 64, 64), whole_weights(run, 64, 8)]
    inputs = [[run.values(16, 64, high=4) for _ in range(2)] for _ in range(2)]
    main = torch.fl.Stream(ONE)
    params = [run.on(main, w).requires_grad_() for w in weights]
    results: list[list[torch.Tensor]] = [[], []]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            stream = torch.fl.Stream(ONE)
            stream.wait_stream(main)
            with torch.fl.stream(stream):
                for batch in inputs[number]:
                    x = run.on(stream, batch)
                    loss = (torch.relu(x @ params[0]) @ params[1]).sum()
                    grads = torch.autograd.grad(loss, params)
                    for grad in grads:
                        results[number].append(grad.cpu())
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    twins = [w.clone().requires_grad_() for w in weights]
    for number in range(2):
        wanted = []
        for batch in inputs[number]:
            wanted += torch.autograd.grad((torch.relu(batch @ twins[0]) @ twins[1]).sum(), twins)
        for got, want in zip(results[number], wanted, strict=True):
            run.check(got, want, f"gradients of thread {number}")


@litmus()
def autograd_over_two_streams(run: Run) -> None:
    """Backward runs on the streams of forward and orders them; the gradients are there for the stream that asked."""
    main, side = torch.fl.Stream(ONE), torch.fl.Stream(ONE)
    v, w = whole_weights(run, 32, 32), whole_weights(run, 32, 32)
    with torch.fl.stream(main):
        x = run.on(main, v).requires_grad_()
        y = run.on(main, w).requires_grad_()
        side.wait_stream(main)
        with torch.fl.stream(side):
            left = (x @ y) * 2
        right = (x + y) * 3
        main.wait_stream(side)
        left.record_stream(main)
        loss = (left * right).sum()
        loss.backward()
        a, b = v.clone().requires_grad_(), w.clone().requires_grad_()
        (((a @ b) * 2) * ((a + b) * 3)).sum().backward()
        run.check(x.grad.cpu(), a.grad, "first gradient")
        run.check(y.grad.cpu(), b.grad, "second gradient")


@litmus()
def gradients_accumulate_from_two_streams(run: Run) -> None:
    main, streams = torch.fl.Stream(ONE), [torch.fl.Stream(ONE) for _ in range(2)]
    v = whole_weights(run, 64, 16)
    inputs = [run.values(8, 64, high=8) for _ in streams]
    w = run.on(main, v).requires_grad_()
    for stream, batch in zip(streams, inputs, strict=True):
        stream.wait_stream(main)
        x = run.on(stream, batch)
        with torch.fl.stream(stream):
            ((x @ w) ** 2).sum().backward()
        main.wait_stream(stream)
    with torch.fl.stream(main):
        got = w.grad.cpu()
    twin = v.clone().requires_grad_()
    for batch in inputs:
        ((batch @ twin) ** 2).sum().backward()
    run.check(got, twin.grad, "both batches")


@litmus()
def optimizer_on_a_side_stream(run: Run) -> None:
    """The step waits for backward, and the next forward for the step."""
    main, side = torch.fl.Stream(ONE), torch.fl.Stream(ONE)
    v = whole_weights(run, 64, 8)
    inputs = [run.values(4, 64, high=4) for _ in range(3)]
    with torch.fl.stream(main):
        w = run.on(main, v).requires_grad_()
        optimizer = torch.optim.SGD([w], lr=0.5, momentum=0.5)
        for batch in inputs:
            (run.on(main, batch) @ w).sum().backward()
            side.wait_stream(main)
            with torch.fl.stream(side):
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
            main.wait_stream(side)
        got = w.detach().cpu()
    twin = v.clone().requires_grad_()
    optimizer = torch.optim.SGD([twin], lr=0.5, momentum=0.5)
    for batch in inputs:
        (batch @ twin).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    run.check(got, twin.detach(), "weights")


@litmus()
def checkpoint_while_training(run: Run) -> None:
    """Weights go to pinned memory on a side stream while training goes on; the event says when they are whole."""
    main, side = torch.fl.Stream(ONE), torch.fl.Stream(ONE)
    v, step = run.values(SMALL), run.values(SMALL, high=4)
    w, s = run.on(main, v), run.on(main, step)
    host = torch.empty(SMALL, pin_memory=True)
    with torch.fl.stream(main):
        w.add_(s)
        snapshot = w.clone()
        side.wait_stream(main)
        w.add_(s)
    with torch.fl.stream(side):
        host.copy_(snapshot, non_blocking=True)
        saved = side.record_event()
    snapshot.record_stream(side)
    del snapshot
    with torch.fl.stream(main):
        w.mul_(2)
        scratch = torch.full((SMALL,), -3.0, device=ONE)
        got = w.cpu()
    saved.synchronize()
    run.check(host.clone(), v + step, "the checkpoint")
    run.check(got, (v + 2 * step) * 2, "the weights")
    run.check(scratch.cpu(), torch.full((SMALL,), -3.0), "memory of the main stream")
