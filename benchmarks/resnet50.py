"""ResNet-50 on a chip against PyTorch on the CPU: throughput and its ratio, inference and training.

    python benchmarks/resnet50.py [--device ninguang] [--batch-size 16] [--threads 2]

CPU and device alternate in one process and use the same number of threads. There are two baselines, each in a process
of its own: PyTorch with glibc's default allocator, and with one that keeps large blocks (MALLOC_MMAP_THRESHOLD_ and
MALLOC_TRIM_THRESHOLD_), which makes PyTorch's CPU kernels much faster; the second is the one to beat.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

LARGE = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_TOP_PAD_": "268435456"}
BASELINES = {"default allocator": {}, "large malloc thresholds": LARGE}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="ninguang")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of both sides")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each side; the median counts")
    parser.add_argument("--mode", choices=("inference", "training"), action="append", help="default: both")
    parser.add_argument("--channels-last", action="store_true", help="both sides keep channels-last order")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.mode = arguments.mode or ["inference", "training"]
    return arguments


def make_step(mode: str, device: object, arguments: argparse.Namespace) -> Callable[[], None]:
    """Return a function that does one batch and waits for it."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    layout = torch.channels_last if arguments.channels_last else torch.contiguous_format
    model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).to(device=device, memory_format=layout)
    size = arguments.image_size
    images = torch.randn(arguments.batch_size, 3, size, size).to(device=device, memory_format=layout)
    labels = torch.randint(0, 1000, (arguments.batch_size,)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    model.train(mode == "training")

    def step() -> None:
        if mode == "training":
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(images).logits, labels).backward()
            optimizer.step()
        else:
            with torch.inference_mode():
                model(images)
        if images.device.type != "cpu":
            torch.accelerator.synchronize(images.device)

    return step


def child(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure against the CPU of this process; returns mode -> images per second of both sides, and their ratio."""
    import torch

    import torch_fl

    torch.set_num_threads(arguments.threads)
    found = torch_fl.list_devices()
    device = next((d["device"] for d in found if arguments.device in (d["chip"], d["device"])), None)
    if device is None:
        sys.exit(f"no device {arguments.device}; there are {', '.join(d['device'] for d in found) or 'none'}")
    answer = {}
    for mode in arguments.mode:
        steps = {"cpu": make_step(mode, "cpu", arguments), "device": make_step(mode, device, arguments)}
        times: dict[str, list[float]] = {"cpu": [], "device": []}
        for repeat in range(arguments.repeats + 1):
            for where, step in steps.items():
                start = time.perf_counter()
                step()
                if repeat:  # the first one warms up
                    times[where].append(time.perf_counter() - start)
        speeds = {where: arguments.batch_size / statistics.median(values) for where, values in times.items()}
        answer[mode] = {**speeds, "ratio": speeds["device"] / speeds["cpu"]}
    return answer


def main() -> int:
    arguments = parse_arguments()
    if arguments.child:
        print(json.dumps(child(arguments)))
        return 0
    results = {}
    for name, variables in BASELINES.items():
        environment = {k: v for k, v in os.environ.items() if k not in LARGE}
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "NINGUANG_THREADS"), str(arguments.threads)) | variables
        answer = subprocess.run(
            [sys.executable, __file__, "--child", *sys.argv[1:]], env=environment, stdout=subprocess.PIPE, text=True
        )
        if answer.returncode != 0:
            return answer.returncode
        results[name] = json.loads(answer.stdout)
    if arguments.json:
        print(json.dumps(results, indent=2))
        return 0
    print(f"ResNet-50, float32, batch {arguments.batch_size}, {arguments.threads} threads; images per second, medians")
    print(f"{'mode':12}{'PyTorch CPU baseline':26}{'CPU':>8}{arguments.device:>12}{'ratio':>8}")
    for name, by_mode in results.items():
        for mode, found in by_mode.items():
            print(f"{mode:12}{name:26}{found['cpu']:>8.1f}{found['device']:>12.1f}{found['ratio']:>8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
