"""The OpenCL chip against PyTorch on the CPU, on each runtime that is here: time / CPU time, lower is better.

    python benchmarks/opencl.py [--device pocl --device intel-cpu] [--figure mm] [--json]

CPU and device take turns in one process with the same number of threads; a sample lasts at least --seconds, and the
median of the samples counts. A sample during which other processes used the machine is left out as long as three quiet
ones remain; figures without them are marked "~". There are two baselines, each in a process of its own: PyTorch with
glibc's default allocator, and with one that keeps large blocks, which makes its CPU kernels faster (as resnet50.py).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from resnet50 import BASELINES, LARGE, make_step

DEVICES = ("pocl", "intel-cpu", "opencl-gpu")
OTHERS_MAY_USE = 0.08  # of one core
ROOT = Path(__file__).resolve().parent.parent
Step = Callable[[], None]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", action="append", help=f"a chip; default: what is here of {', '.join(DEVICES)}")
    parser.add_argument("--figure", action="append", help="only figures whose name starts so; default: all")
    parser.add_argument("--baseline", action="append", choices=tuple(BASELINES), help="default: both")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of both sides")
    parser.add_argument("--repeats", type=int, default=9, help="samples of each side")
    parser.add_argument("--seconds", type=float, default=0.15, help="least length of a sample")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


# ---------------------------------------------------------------- what is measured


def figures(device: object, arguments: argparse.Namespace) -> Iterator[tuple[str, Callable[[object], Step]]]:
    """Name, and what makes a step on a device: the step queues the work once, without waiting for it."""
    import torch
    from torch.nn import functional as F

    def on(*shapes: tuple[int, ...], run: Callable[..., object]) -> Callable[[object], Step]:
        def make(where: object) -> Step:
            generator = torch.Generator().manual_seed(0)
            operands = [torch.randn(shape, generator=generator).to(where) for shape in shapes]
            return lambda: run(*operands)

        return make

    yield "mm 1024", on((1024, 1024), (1024, 1024), run=torch.mm)
    yield "mm 2048", on((2048, 2048), (2048, 2048), run=torch.mm)
    yield "conv 3x3 64ch 56x56 b8", on((8, 64, 56, 56), (64, 64, 3, 3), run=lambda x, w: F.conv2d(x, w, padding=1))
    yield "softmax 4096x1024", on((4096, 1024), run=lambda x: torch.softmax(x, 1))
    yield "layer norm 4096x1024", on((4096, 1024), (1024,), (1024,), run=lambda x, w, b: F.layer_norm(x, (1024,), w, b))
    yield "sum(1) 4096x1024", on((4096, 1024), run=lambda x: x.sum(1))
    yield "add 1 element", on((1,), (1,), run=torch.add)
    sizes = argparse.Namespace(batch_size=4, image_size=224, channels_last=False)
    yield "ResNet-50 b4 forward", lambda where: make_step("inference", where, sizes)
    yield "ResNet-50 b4 train step", lambda where: make_step("training", where, sizes)


# ---------------------------------------------------------------- how


def busy_seconds() -> float:
    """Return the processor time that this machine has spent so far, in all processes."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:8])) / os.sysconf("SC_CLK_TCK")


def sample(step: Step, wait: Step, calls: int) -> tuple[float, float, bool]:
    """Return seconds per call when all is done, until the last call returned, and whether nobody else computed."""
    busy, own, start = busy_seconds(), time.process_time(), time.perf_counter()
    for _ in range(calls):
        step()
    submitted = time.perf_counter() - start
    wait()
    done = time.perf_counter() - start
    others = (busy_seconds() - busy) - (time.process_time() - own)
    return done / calls, submitted / calls, others < OTHERS_MAY_USE * done + 0.02  # the clock of /proc/stat is coarse


def calls_for(step: Step, wait: Step, seconds: float) -> int:
    """Warm up, and return how often to call for a sample of this length."""
    for _ in range(3):
        step()
    wait()
    calls = 1
    while (took := sample(step, wait, calls)[0] * calls) < seconds and calls < 1 << 16:
        calls = max(calls + 1, min(calls * 8, round(calls * seconds / max(took, 1e-6) * 1.1)))
    return calls


def median_of(samples: list[tuple[float, float, bool]]) -> tuple[float, float, bool]:
    quiet = [s for s in samples if s[2]]
    used = quiet if len(quiet) >= 3 else samples
    return statistics.median(s[0] for s in used), statistics.median(s[1] for s in used), used is quiet


def measure(make: Callable[[object], Step], device: object, arguments: argparse.Namespace) -> dict[str, object]:
    import torch

    sides = {"cpu": (make("cpu"), lambda: None),
             "device": (make(device), lambda: torch.accelerator.synchronize(device))}  # fmt: skip
    calls = {name: calls_for(step, wait, arguments.seconds) for name, (step, wait) in sides.items()}
    samples: dict[str, list[tuple[float, float, bool]]] = {name: [] for name in sides}
    for _ in range(arguments.repeats):
        for name, (step, wait) in sides.items():
            samples[name].append(sample(step, wait, calls[name]))
    (cpu, _, quiet), (own, submit, own_quiet) = median_of(samples["cpu"]), median_of(samples["device"])
    return {"cpu_us": cpu * 1e6, "device_us": own * 1e6, "submit_us": submit * 1e6, "ratio": own / cpu,
            "submit_ratio": submit / cpu, "quiet": quiet and own_quiet}  # fmt: skip


def child(arguments: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Measure on the one chip that this process opens."""
    import torch

    import torch_fl

    torch.set_num_threads(arguments.threads)
    device = torch.device(torch_fl.list_devices()[0]["device"])
    answer = {}
    for name, make in figures(device, arguments):
        if arguments.figure and not any(name.lower().startswith(wanted.lower()) for wanted in arguments.figure):
            continue
        grad = torch.enable_grad if "train" in name else torch.no_grad
        try:
            with grad():
                answer[name] = measure(make, device, arguments)
        except Exception as error:  # noqa: BLE001 - the other figures go on, and the table says why
            answer[name] = {"error": " ".join(str(error).split())[:200]}
    return answer


# ---------------------------------------------------------------- all


def present(wanted: list[str] | None) -> list[str]:
    """Return the chips to measure: those asked for, else those that have a device here."""
    if wanted:
        return wanted
    code = "import torch_fl, json; print(json.dumps([d['arch'] for d in torch_fl.list_devices()]))"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TORCH_FL_CHIPS": "opencl"},
                          capture_output=True, text=True)  # fmt: skip
    archs = json.loads(done.stdout.strip().splitlines()[-1]) if done.returncode == 0 and done.stdout.strip() else []
    kinds = {"pocl": lambda a: a.startswith("pocl"), "intel-cpu": lambda a: a == "intel-cpu",
             "opencl-gpu": lambda a: a.endswith("-gpu")}  # fmt: skip
    return [chip for chip in DEVICES if any(kinds[chip](arch) for arch in archs)]


def main() -> int:
    arguments = parse_arguments()
    if arguments.child:
        print(json.dumps(child(arguments)))
        return 0
    chips = present(arguments.device)
    if not chips:
        print("there is no OpenCL device: `flagos-torch-fl diagnose opencl` says why", file=sys.stderr)
        return 0
    results: dict[str, dict[str, dict[str, dict[str, object]]]] = {}
    for chip in chips:
        for name in arguments.baseline or BASELINES:
            environment = {k: v for k, v in os.environ.items() if k not in LARGE} | BASELINES[name]
            environment |= {"OMP_NUM_THREADS": str(arguments.threads), "TORCH_FL_CHIPS": chip}
            found = subprocess.run([sys.executable, __file__, "--child", *sys.argv[1:]], env=environment,
                                   stdout=subprocess.PIPE, text=True)  # fmt: skip
            if found.returncode != 0:
                return found.returncode
            results.setdefault(chip, {})[name] = json.loads(found.stdout.strip().splitlines()[-1])
    print(json.dumps(results, indent=2) if arguments.json else table(results, arguments.threads))
    return 0


def table(results: dict[str, dict[str, dict[str, dict[str, object]]]], threads: int) -> str:
    lines = [f"time / PyTorch CPU time, float32, {threads} threads, medians; ~: other processes were computing"]
    for chip, baselines in results.items():
        for baseline, rows in baselines.items():
            lines += ["", f"{chip}, PyTorch with {baseline}",
                      f"{'':26}{'CPU us':>12}{'device us':>12}{'ratio':>8}{'submit us':>12}{'ratio':>8}"]  # fmt: skip
            for name, row in rows.items():
                if "error" in row:
                    lines.append(f"{name:26}{row['error']}")
                    continue
                mark = "" if row["quiet"] else " ~"
                lines.append(f"{name:26}{row['cpu_us']:>12.1f}{row['device_us']:>12.1f}{row['ratio']:>8.2f}"
                             f"{row['submit_us']:>12.1f}{row['submit_ratio']:>8.2f}{mark}")  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
