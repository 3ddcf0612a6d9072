"""A kernel in C, called from Python, becomes an operator of a chip and trains as on the CPU.

    python examples/python_kernel.py --device ninguang

The operator is RMSNorm with its gradient, fused; the system's compiler makes its kernels. They read and write the
device's memory in place, so the chip's memory must be visible to the host: the reference chip is put in that mode. On
the CPU the operator is its decomposition. Exit code 1 if the kernels are not right, or if training differs from the
CPU.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("NINGUANG_UNIFIED", "1")  # before the chip is opened

import torch
from torch import Tensor, nn

import torch_fl

TOLERANCE = 1e-3  # of a loss, relative

SOURCE = r"""
#include <math.h>
#include <stdint.h>

void forward(const float* x, const float* weight, float eps, float* out, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r, x += n, out += n) {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
    const float scale = 1 / sqrtf(sum / n + eps);
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
  }
}

void backward(const float* grad, const float* x, const float* weight, float eps, float* grad_x, float* grad_weight,
              int64_t rows, int64_t n) {
  for (int64_t i = 0; i < n; ++i) grad_weight[i] = 0;
  for (int64_t r = 0; r < rows; ++r, grad += n, x += n, grad_x += n) {
    float sum = 0, dot = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
    for (int64_t i = 0; i < n; ++i) dot += grad[i] * weight[i] * x[i];
    const float scale = 1 / sqrtf(sum / n + eps), back = dot * scale * scale * scale / n;
    for (int64_t i = 0; i < n; ++i) {
      grad_x[i] = grad[i] * weight[i] * scale - x[i] * back;
      grad_weight[i] += grad[i] * x[i] * scale;
    }
  }
}
"""


def compile_kernels() -> ctypes.CDLL:
    """Compile SOURCE with the system's compiler."""
    folder = Path(tempfile.mkdtemp())
    (folder / "kernels.c").write_text(SOURCE)
    subprocess.run([os.environ.get("CC", "cc"), "-O3", "-shared", "-fPIC", folder / "kernels.c", "-o",
                    folder / "kernels.so", "-lm"], check=True)
    return ctypes.CDLL(str(folder / "kernels.so"))


def decomposition(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def decomposition_of_backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    back = (grad * weight * x).mean(-1, keepdim=True) * scale.pow(3)
    return grad * weight * scale - x * back, (grad * x * scale).flatten(0, -2).sum(0)


def add_kernels(device: torch.device) -> list:
    """Make the operators examples::rms_norm and examples::rms_norm_backward, with kernels on one device."""
    library = compile_kernels()

    def pointers(*tensors: Tensor) -> list[ctypes.c_void_p]:
        return [ctypes.c_void_p(t.data_ptr()) for t in tensors]

    def forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if x.dtype != torch.float32:
            return NotImplemented  # the decomposition then
        x, weight, out = x.contiguous(), weight.contiguous(), torch.empty(x.shape, device=x.device)
        torch.accelerator.current_stream(x.device).synchronize()  # what the C function reads has been computed
        library.forward(*pointers(x, weight), ctypes.c_float(eps), *pointers(out), ctypes.c_int64(x[..., 0].numel()),
                        ctypes.c_int64(x.shape[-1]))
        return out

    def backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        if x.dtype != torch.float32:
            return NotImplemented
        grad, x, weight = grad.contiguous(), x.contiguous(), weight.contiguous()
        grad_x, grad_weight = torch.empty_like(x), torch.empty_like(weight)
        torch.accelerator.current_stream(x.device).synchronize()
        library.backward(*pointers(grad, x, weight), ctypes.c_float(eps), *pointers(grad_x, grad_weight),
                         ctypes.c_int64(x[..., 0].numel()), ctypes.c_int64(x.shape[-1]))
        return grad_x, grad_weight

    def setup_context(ctx, inputs, output) -> None:  # noqa: ANN001
        ctx.save_for_backward(*inputs[:2])
        ctx.eps = inputs[2]

    def gradient(ctx, grad: Tensor) -> tuple:  # noqa: ANN001
        return *torch.ops.examples.rms_norm_backward(grad, *ctx.saved_tensors, ctx.eps), None

    return [
        torch_fl.kernel("examples::rms_norm_backward", backward, device=device,
                        decomposition=decomposition_of_backward),
        torch_fl.kernel("examples::rms_norm", forward, device=device, decomposition=decomposition, backward=gradient,
                        setup_context=setup_context),
    ]


class RMSNorm(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.examples.rms_norm(x, self.weight, 1e-6)


def train(model: nn.Module, tokens: Tensor, labels: Tensor, steps: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="ninguang", help='a chip, "ninguang" or "ninguang:1", or a device, "fl:0"')
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    device = torch_fl.device(arguments.device)
    info = next(d for d in torch_fl.list_devices() if d["index"] == (device.index or 0))
    if "host_visible" not in info["capabilities"]:
        sys.exit(f"the memory of {arguments.device} is not visible to the host: these kernels cannot reach it")

    torch.manual_seed(0)
    kernels = add_kernels(device)
    x, weight = torch.randn(4, 6, 64), torch.randn(64)
    for kernel, sample in zip(kernels, [(torch.randn(4, 6, 64), x, weight, 1e-6), (x, weight, 1e-6)], strict=True):
        if not kernel.check([sample], raises=False).ok:
            return 1

    model = nn.Sequential(nn.Embedding(32, 64), RMSNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64),
                          RMSNorm(64), nn.Linear(64, 32))
    tokens = torch.randint(0, 32, (8, 16))
    labels = tokens.roll(1, dims=1)
    ours = copy.deepcopy(model).to(device)
    with torch_fl.routing.track() as routes:
        losses = train(ours, tokens.to(device), labels.to(device), arguments.steps)
    expected = train(model, tokens, labels, arguments.steps)
    difference = max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))
    print(f"loss: {losses[0]:.3f} to {losses[-1]:.3f} in {arguments.steps} steps; kernels: {routes.library}")
    right = difference <= TOLERANCE and len(routes.library) == 2
    verdict = "ok" if right else "FAILED"
    print(f"check against CPU: loss curve differs by {difference:.1e} (allowed {TOLERANCE}): {verdict}")
    print(routes)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
