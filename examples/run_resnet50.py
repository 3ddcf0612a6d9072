"""ResNet-50 on a chip: throughput, and the same numbers as the CPU.

    python examples/run_resnet50.py --device ninguang --batch-size 64 --iterations 100
    python examples/run_resnet50.py --device ninguang --batch-size 16 --iterations 20 --train

The model is torchvision's if it is installed, else Transformers'; its weights are random, from a seed. Exit code 1 if
the result differs from the CPU's.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from contextlib import nullcontext

import torch
from torch import nn

import torch_fl

# Largest relative difference from float32 on the CPU that counts as the same result.
TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="ninguang", help='a chip, "ninguang" or "ninguang:1", or a device, "fl:0"')
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--iterations", type=int, help="timed batches; default 100, or 20 with --train")
    parser.add_argument("--train", action="store_true", help="train with SGD instead of inference")
    parser.add_argument("--dtype", choices=sorted(TOLERANCE), default="float32", help="of inference; training: float32")
    parser.add_argument("--channels-last", action="store_true", help="keep images and weights in channels-last order")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-cpu-fallback", action="store_true", help="fail where an operator would run on the CPU")
    arguments, unknown = parser.parse_known_args()
    for word in unknown:
        if word.startswith("--fuse"):
            parser.error(f"{word}: operator fusion is not available yet; run without it")
    if unknown:
        parser.error(f"unknown options: {' '.join(unknown)}")
    if arguments.iterations is None:
        arguments.iterations = 20 if arguments.train else 100
    if arguments.batch_size < 1 or arguments.iterations < 1:
        parser.error("--batch-size and --iterations must be at least 1")
    if arguments.image_size < 32:
        parser.error("--image-size must be at least 32")
    if arguments.train and arguments.dtype != "float32":
        parser.error("--train is for float32; use torch.autocast for mixed precision")
    return arguments


def choose_device(name: str) -> torch.device:
    """Return the device of a chip ("ninguang", "ninguang:1") or a device ("fl:1", "cpu"); ends the program if none."""
    if name.partition(":")[0] == "cpu":
        return torch.device(name)
    try:
        torch_fl.register_device(name.partition(":")[0])
        return torch.empty(0, device=name).device
    except RuntimeError as error:
        sys.exit(f"--device {name}: {error}")


class LogitsOnly(nn.Module):
    """Gives Transformers' model the interface of torchvision's."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images).logits


def make_model(seed: int, for_training: bool = False) -> tuple[str, nn.Module]:
    """Return where the model is from and the model.

    For training, each residual branch starts at zero, as usual when ResNets are trained from scratch. Otherwise the
    untrained network amplifies rounding so much that two CPU runs with different kernels differ by 0.1 after 5 steps.
    """
    torch.manual_seed(seed)
    try:
        from torchvision.models import resnet50
    except ImportError:
        from transformers import ResNetConfig, ResNetForImageClassification

        model = ResNetForImageClassification(ResNetConfig(num_labels=1000))
        if for_training:
            for module in model.modules():
                if type(module).__name__ == "ResNetBottleNeckLayer":
                    nn.init.zeros_(module.layer[-1].normalization.weight)
        return "transformers", LogitsOnly(model)
    return "torchvision", resnet50(weights=None, zero_init_residual=for_training)


def infer(model: nn.Module, images: torch.Tensor, iterations: int, device: torch.device) -> tuple[torch.Tensor, float]:
    """Return the logits and the images per second of `iterations` batches after one to warm up."""
    with torch.inference_mode():
        logits = model(images)
        synchronize(device)
        start = time.perf_counter()
        for _ in range(iterations):
            logits = model(images)
        synchronize(device)
    return logits.float().cpu(), len(images) * iterations / (time.perf_counter() - start)


def train(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, steps: int, device: torch.device
) -> tuple[torch.Tensor, float]:
    """Return the loss of each step and the images per second of all steps but the first."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-3, momentum=0.9, weight_decay=1e-4)
    losses = []
    start = time.perf_counter()
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())  # read only at the end, so that nothing waits for the chip
        if step == 0 and steps > 1:
            synchronize(device)
            start = time.perf_counter()
    synchronize(device)
    elapsed = time.perf_counter() - start
    return torch.stack(losses).cpu(), len(images) * max(1, steps - 1) / elapsed


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def report(name: str, difference: float, tolerance: float) -> bool:
    right = difference <= tolerance  # a NaN is not
    verdict = "ok" if right else "FAILED"
    print(f"check against CPU: {name} differs by {difference:.2e} (allowed {tolerance:g}): {verdict}")
    return right


def main() -> int:
    arguments = parse_arguments()
    device = choose_device(arguments.device)
    source, model = make_model(arguments.seed, arguments.train)
    size = arguments.image_size
    images = torch.randn(arguments.batch_size, 3, size, size)
    labels = torch.randint(0, 1000, (arguments.batch_size,))
    dtype = getattr(torch, arguments.dtype)
    layout = torch.channels_last if arguments.channels_last else torch.contiguous_format
    print(
        f"ResNet-50 ({source}, random weights), {arguments.dtype}, batch {arguments.batch_size}, {size}x{size}, "
        f"{'training' if arguments.train else 'inference'} on {arguments.device} ({device})"
    )

    ours = copy.deepcopy(model).to(device=device, dtype=dtype, memory_format=layout)
    batch = images.to(device=device, dtype=dtype, memory_format=layout)
    with (
        torch_fl.routing.track() as routes,
        torch_fl.routing.no_cpu_fallback() if arguments.no_cpu_fallback else nullcontext(),
    ):
        if arguments.train:
            losses, speed = train(ours, batch, labels.to(device), arguments.iterations, device)
        else:
            logits, speed = infer(ours.eval(), batch, arguments.iterations, device)
    print(f"throughput: {speed:.1f} img/s")

    tolerance = TOLERANCE[arguments.dtype]
    if arguments.train:
        expected, cpu_speed = train(model, images, labels, arguments.iterations, torch.device("cpu"))
        print(f"loss: {losses[0]:.4f} -> {losses[-1]:.4f} (CPU: {expected[0]:.4f} -> {expected[-1]:.4f})")
        right = report("loss curve", ((losses - expected).abs() / expected.abs().clamp(min=1)).max().item(), tolerance)
    else:
        expected, cpu_speed = infer(model.eval(), images, 1, torch.device("cpu"))
        right = report("logits", ((logits - expected).abs().max() / expected.abs().max()).item(), tolerance)
    print(f"PyTorch CPU here, for orientation: {cpu_speed:.1f} img/s")
    print(routes)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
