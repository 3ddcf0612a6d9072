"""Worker of test_concurrent_chips.py: runs entries of PyTorch's operator database on two devices of one process at the
same time, then on each alone, and prints where the results differ in a single bit.

    python concurrent_worker.py fl:0 fl:2 add,mm,…

Two threads, one device each, the same entries in the same order: both meet each operator for the first time together.
Then the order of one is reversed, so that different operators meet too. The last line of the output is JSON.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import traceback
from typing import Any

import torch
from opinfo_cases import OPS, UNINITIALIZED, OpInfo, _clone, _Draws, dtype_of, op_name, quiet
from torch.utils._pytree import tree_flatten, tree_map

SAMPLES = 3

# torch.manual_seed() seeds every device: entries that draw random numbers, and may seed, run one at a time.
SEEDS = threading.Lock()


class Entry:
    """One operator, with samples on the CPU."""

    def __init__(self, op: OpInfo) -> None:
        self.op, self.name, dtype = op, op_name(op), dtype_of(op)
        self.grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        torch.manual_seed(0)
        found = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=self.grad), 60))
        last = len(found) - 1
        self.samples = [found[i] for i in sorted({0, last // 2, last})][:SAMPLES] if found else []
        with _Draws() as draws:
            for sample in self.samples:
                with _ignored():
                    op(*_clone((sample.input,)), *_clone(tuple(sample.args)), **_clone(dict(sample.kwargs)))
        self.random = draws.seen

    def run(self, device: torch.device) -> list[Any]:
        """Forward and gradients of each sample, as bytes; in place of a result, the error's type and first words."""
        if self.random:
            with SEEDS:
                torch.manual_seed(1)
                return [self._sample(sample, device) for sample in self.samples]
        return [self._sample(sample, device) for sample in self.samples]

    def _sample(self, sample: Any, device: torch.device) -> Any:
        try:
            x, args, kwargs = tree_map(lambda leaf: _move(leaf, device),
                                       _clone((sample.input, tuple(sample.args), dict(sample.kwargs))))  # fmt: skip
            leaves = [t for t in tree_flatten((x, args, kwargs))[0] if isinstance(t, torch.Tensor) and t.requires_grad]
            with device:  # for factories
                result = self.op(x, *args, **kwargs)
            tensors = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor)]
            answer = [_bits(t, self.name) for t in tensors]
            outputs = [t for t in tree_flatten(sample.output_process_fn_grad(result))[0]
                       if isinstance(t, torch.Tensor) and t.requires_grad]  # fmt: skip
            if self.grad and outputs and leaves:
                grads = torch.autograd.grad(outputs, leaves, [torch.ones_like(o) for o in outputs], allow_unused=True)
                answer += [_bits(g, self.name) for g in grads if g is not None]
            return answer
        except Exception as error:  # noqa: BLE001 - an error alone must be the same error beside another chip
            return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


class _ignored:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> bool:
        return error[0] is None or issubclass(error[0], Exception)


def _move(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
        return leaf.detach().to(device).requires_grad_(leaf.requires_grad)
    return device if isinstance(leaf, torch.device) else leaf


def _bits(t: torch.Tensor, name: str) -> tuple:
    t = t.detach()
    if t.layout != torch.strided:
        t = t.to_dense()
    where = (str(t.device), str(t.dtype), tuple(t.shape))
    return where if name in UNINITIALIZED else (*where, t.cpu().resolve_conj().resolve_neg().contiguous().view(-1)
                                                .view(torch.uint8).numpy().tobytes())  # fmt: skip


def run_all(entries: list[Entry], device: torch.device, into: dict[str, Any], start: threading.Barrier | None) -> None:
    """Run entries on one device; each entry's results go into `into`."""
    torch.fl.set_device(device)
    if start is not None:
        start.wait()
    for entry in entries:
        into[entry.name] = entry.run(device)
    torch.fl.synchronize(device)


def together(entries: list[Entry], devices: list[torch.device], reverse: bool) -> list[dict[str, Any]]:
    """Run entries on both devices at the same time."""
    results: list[dict[str, Any]] = [{}, {}]
    failures: list[str] = []
    start = threading.Barrier(2)

    def serve(i: int) -> None:
        try:
            run_all(entries[::-1] if reverse and i else entries, devices[i], results[i], start)
        except BaseException:  # noqa: BLE001 - told by the main thread
            failures.append(f"{devices[i]}: {traceback.format_exc()}")

    threads = [threading.Thread(target=serve, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError("\n".join(failures))
    return results


def main() -> None:
    devices = [torch.device(name) for name in sys.argv[1:3]]
    torch.set_num_threads(1)
    torch.fl.init()
    with quiet():
        entries = [Entry(OPS[name]) for name in sys.argv[3].split(",")]
        mixed = {"together": together(entries, devices, False), "together, one in reverse":
                 together(entries, devices, True)}  # fmt: skip
        alone: list[dict[str, Any]] = [{}, {}]
        for i in range(2):
            run_all(entries, devices[i], alone[i], None)
    different = [f"{entry.name} on {devices[i]}, {way}: sample {at}" + _errors(one, other)
                 for way, results in mixed.items() for i in range(2) for entry in entries
                 for at, (one, other) in enumerate(zip(results[i][entry.name], alone[i][entry.name], strict=True))
                 if one != other]  # fmt: skip
    answered = sum(isinstance(r, list) for i in range(2) for e in entries for r in alone[i][e.name])
    refused = sum(isinstance(r, str) for i in range(2) for e in entries for r in alone[i][e.name])
    print(json.dumps({"different": different, "results": answered, "errors": refused}))


def _errors(one: Any, other: Any) -> str:
    return "".join(f"; {what}: {r}" for what, r in (("then", one), ("alone", other)) if isinstance(r, str))


if __name__ == "__main__":
    main()
