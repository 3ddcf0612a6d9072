"""How much memory the caching allocator reserves for what training really allocates.

    python benchmarks/memory_traces.py [--json]             replay the traces in benchmarks/traces
    python benchmarks/memory_traces.py record resnet50      record one anew, on the reference chip; also gpt2, bert

A trace is the order and the sizes of all allocations and frees of some training steps (AdamW, float32), from the first
parameter on, with a batch or sequence length of its own in each step: ResNet-50, and GPT-2 (124M) and BERT-base from
their configurations in Transformers, with random weights. The replay makes the same allocations through torch.empty in
a process of its own, with expandable segments and without. The figure is the peak of the bytes reserved to the peak of
the bytes allocated, both since the start; the bar is 1.10.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

TRACES = Path(__file__).with_name("traces")
# (rows, pixels or tokens) of each step
IMAGES = [(4, 128), (2, 160), (6, 96), (3, 128), (4, 160), (1, 224), (5, 96), (2, 128), (6, 128), (3, 96), (4, 96),
          (1, 160)]  # fmt: skip
TOKENS = [(2, 64), (1, 128), (3, 32), (2, 96), (1, 192), (2, 48), (4, 32), (1, 160), (2, 80), (3, 64), (1, 96),
          (2, 112)]  # fmt: skip


def resnet50(rows: int, pixels: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(rows, 3, pixels, pixels), "labels": torch.randint(0, 1000, (rows,))}


def gpt2(rows: int, tokens: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 50257, (rows, tokens))
    return {"input_ids": ids, "labels": ids}


def bert(rows: int, tokens: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 30522, (rows, tokens))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.randint(0, 2, (rows,))}


def make_model(name: str) -> torch.nn.Module:
    import transformers as t

    if name == "resnet50":
        return t.ResNetForImageClassification(t.ResNetConfig(num_labels=1000))
    if name == "gpt2":
        return t.GPT2LMHeadModel(t.GPT2Config())
    return t.BertForSequenceClassification(t.BertConfig())


BATCHES: dict[str, tuple[Callable[..., dict[str, torch.Tensor]], list[tuple[int, int]]]] = {
    "resnet50": (resnet50, IMAGES), "gpt2": (gpt2, TOKENS), "bert": (bert, TOKENS),
}  # fmt: skip


def train(name: str, device: torch.device) -> None:
    """Make the model on the device and train one step for each shape."""
    torch.manual_seed(0)
    make_batch, shapes = BATCHES[name]
    model = make_model(name).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step, shape in enumerate(shapes):
        batch = {key: value.to(device) for key, value in make_batch(*shape).items()}
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        print(f"{name} step {step + 1} of {len(shapes)}, {shape[0]} x {shape[1]}: loss {loss.item():.3f}", flush=True)


def record(name: str) -> None:
    """Write the trace: for each event the size of an allocation, or minus the number of the one that is freed."""
    import torch_fl

    device = torch_fl.device("ninguang")
    torch.empty(1, device=device)
    torch.fl.empty_cache()
    torch.fl.memory._record_memory_history(context=None)
    train(name, device)
    events = torch.fl.memory._snapshot(device)["device_traces"][0]
    numbers: dict[int, int] = {}
    trace: list[int] = []
    allocations = 0
    for event in events:
        if event["action"] == "alloc":
            allocations += 1
            numbers[event["addr"]] = allocations
            trace.append(event["size"])
        elif event["action"] == "free_completed" and event["addr"] in numbers:
            trace.append(-numbers.pop(event["addr"]))
    TRACES.mkdir(exist_ok=True)
    np.savez_compressed(TRACES / f"{name}.npz", events=np.array(trace, dtype=np.int64))
    print(f"{TRACES / name}.npz: {len(trace)} events, {allocations} allocations")


def replay(name: str) -> dict[str, float]:
    """Make the trace's allocations on fl:0 of a fresh process."""
    events = np.load(TRACES / f"{name}.npz")["events"].tolist()
    device = torch.device("fl", 0)
    live: dict[int, torch.Tensor] = {}
    allocations = 0
    for event in events:
        if event > 0:
            allocations += 1
            live[allocations] = torch.empty(event, dtype=torch.uint8, device=device)
        else:
            del live[-event]
    stats = torch.accelerator.memory_stats(device)
    allocated, reserved = stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"]
    return {"allocations": allocations, "allocated_mib": allocated / 2**20, "reserved_mib": reserved / 2**20,
            "ratio": reserved / allocated, "device_allocs": stats["num_device_alloc"]}


def replay_all(as_json: bool) -> int:
    rows = []
    for name in sorted(path.stem for path in TRACES.glob("*.npz")):
        for expandable in ("1", "0"):
            environment = {"TORCH_FL_ALLOC_EXPANDABLE_SEGMENTS": expandable, "NINGUANG_MEMORY_MB": "65536"}
            answer = subprocess.run([sys.executable, __file__, "replay", name], env={**os.environ, **environment},
                                    check=True, stdout=subprocess.PIPE, text=True).stdout
            rows.append({"trace": name, "expandable": expandable == "1", **json.loads(answer.splitlines()[-1])})
    if as_json:
        print(json.dumps(rows))
        return 0
    print(f"{'trace':12}{'expandable':>11}{'allocations':>13}{'allocated MiB':>15}{'reserved MiB':>14}{'ratio':>7}")
    for row in rows:
        print(f"{row['trace']:12}{'yes' if row['expandable'] else 'no':>11}{row['allocations']:>13}"
              f"{row['allocated_mib']:>15.0f}{row['reserved_mib']:>14.0f}{row['ratio']:>7.3f}")
    worst = max(row["ratio"] for row in rows if row["expandable"])
    print(f"largest ratio with expandable segments: {worst:.3f} (bar: 1.10)")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", nargs="?", choices=("record", "replay"))
    parser.add_argument("trace", nargs="?", choices=tuple(BATCHES))
    parser.add_argument("--json", action="store_true", help="print JSON only")
    arguments = parser.parse_args()
    if arguments.command is None:
        return replay_all(arguments.json)
    if arguments.trace is None:
        parser.error(f"{arguments.command} needs a trace: {', '.join(BATCHES)}")
    if arguments.command == "record":
        record(arguments.trace)
    else:
        print(json.dumps(replay(arguments.trace)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
