"""A small CNN learns handwritten digits on a chip, as well as on the CPU in double precision.

    python examples/train_mnist.py --device ninguang

The digits are scikit-learn's (1797 images of 8x8), which come with the package. Exit code 1 if the chip's loss curve
differs from the CPU's, or if it learns less than 95 % of the test images.
"""

from __future__ import annotations

import argparse
import copy
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import torch_fl

TOLERANCE = 1e-3  # of an epoch's loss, relative
# Later epochs amplify rounding, and float32 on the CPU drifts too: channels_last moves the third epoch by 1 %. So the
# reference is float64.
COMPARED_EPOCHS = 3
REQUIRED_ACCURACY = 0.95


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="ninguang", help='a chip, "ninguang" or "ninguang:1", or a device, "fl:0"')
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-cpu-fallback", action="store_true", help="fail where an operator would run on the CPU")
    return parser.parse_args()


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def load_data(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return training images and labels, test images and labels: 80 % and 20 %, shuffled."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    images, labels = images[order], labels[order]
    split = len(images) * 4 // 5
    return images[:split], labels[:split], images[split:], labels[split:]


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, arguments: argparse.Namespace) -> torch.Tensor:
    """Train with SGD; returns the mean loss of each epoch. The order of the images depends on the seed alone."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    order = torch.Generator().manual_seed(arguments.seed)
    curve = []
    model.train()
    for _ in range(arguments.epochs):
        losses = []
        for batch in torch.randperm(len(images), generator=order).split(arguments.batch_size):
            batch = batch.to(images.device)
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        curve.append(torch.stack(losses).mean())
    return torch.stack(curve).cpu()


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def main() -> int:
    arguments = parse_arguments()
    try:
        torch_fl.register_device(arguments.device.partition(":")[0])
        device = torch.empty(0, device=arguments.device).device
    except RuntimeError as error:
        sys.exit(f"--device {arguments.device}: {error}")
    torch.manual_seed(arguments.seed)
    model = make_model()
    images, labels, test_images, test_labels = load_data(arguments.seed)

    ours = copy.deepcopy(model).to(device)
    if arguments.no_cpu_fallback:
        torch_fl.routing.enable("cpu", False)
    with torch_fl.routing.track() as routes:
        curve = train(ours, images.to(device), labels.to(device), arguments)
        learnt = accuracy(ours, test_images.to(device), test_labels.to(device))
    expected = train(model.double(), images.double(), labels, arguments)
    cpu_learnt = accuracy(model, test_images.double(), test_labels)

    for epoch, (a, b) in enumerate(zip(curve.tolist(), expected.tolist(), strict=True), 1):
        print(f"epoch {epoch:2}: loss {a:.5f}, CPU in float64 {b:.5f}")
    difference = ((curve - expected).abs() / expected.abs().clamp(min=0.1))[:COMPARED_EPOCHS].max().item()
    right = difference <= TOLERANCE and learnt >= REQUIRED_ACCURACY
    print(f"test accuracy {learnt:.1%} on {device}, {cpu_learnt:.1%} on the CPU (required {REQUIRED_ACCURACY:.0%})")
    print(
        f"check against CPU: loss of {COMPARED_EPOCHS} epochs differs by {difference:.1e} (allowed {TOLERANCE:g}): "
        f"{'ok' if right else 'FAILED'}"
    )
    print(routes)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
