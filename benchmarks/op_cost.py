"""What one eager operator costs the host, as a ratio to the same operator on the CPU in the same process.

    python benchmarks/op_cost.py [--device ninguang] [--json]

One thread calls. The CPU and the device take turns, batch by batch; a batch is `--calls` calls. Two figures for each
operator, each the median over `--repeats` batches: "submit" stops the clock when the last call has returned, "done"
after a synchronize. The ratio is that of the "done" medians, so work that a chip only postpones is counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

import torch_fl

OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "add": torch.add,
    "mul": torch.mul,
    "relu": lambda a, b: torch.relu(a),
    "mm": torch.mm,
    "view": lambda a, b: a.view(-1),
    "empty": lambda a, b: torch.empty(8, 8, device=a.device),
}
SIDES = {1: 1, 16: 4, 64: 8}  # elements -> side of a square matrix


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="ninguang")
    parser.add_argument("--calls", type=int, default=200, help="calls in a batch")
    parser.add_argument("--repeats", type=int, default=41, help="batches of each kind")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    return parser.parse_args()


def batch(function: Callable[..., object], a: torch.Tensor, b: torch.Tensor, calls: int) -> tuple[float, float]:
    """Return the microseconds per call until the last call returned, and until all work was done."""
    wait = torch.accelerator.synchronize if a.device.type != "cpu" else None
    start = time.perf_counter()
    for _ in range(calls):
        function(a, b)
    submitted = time.perf_counter()
    if wait:
        wait(a.device)
    done = time.perf_counter()
    return (submitted - start) / calls * 1e6, (done - start) / calls * 1e6


def measure(name: str, elements: int, device: torch.device, arguments: argparse.Namespace) -> dict[str, object]:
    side = SIDES[elements]
    operands = {where: [torch.rand(side, side).to(where) for _ in "ab"] for where in ("cpu", device)}
    function = OPERATORS[name]
    times: dict[object, list[tuple[float, float]]] = {"cpu": [], device: []}
    for repeat in range(arguments.repeats + 2):
        for where, (a, b) in operands.items():
            found = batch(function, a, b, arguments.calls)
            if repeat >= 2:  # the first two warm up
                times[where].append(found)
    cpu = statistics.median(done for _, done in times["cpu"])
    done = statistics.median(done for _, done in times[device])
    submit = statistics.median(submit for submit, _ in times[device])
    return {
        "op": name,
        "elements": elements,
        "cpu_us": cpu,
        "submit_us": submit,
        "done_us": done,
        "ratio": done / cpu,
        "submit_ratio": submit / cpu,
    }


def main() -> int:
    arguments = parse_arguments()
    # A device, not its alias: the mode behind "ninguang" would cost each call a microsecond.
    first = torch_fl.list_devices()
    device = next((torch.device(d["device"]) for d in first if arguments.device in (d["chip"], d["device"])), None)
    if device is None:
        sys.exit(f"no device {arguments.device}; there are {', '.join(d['device'] for d in first) or 'none'}")
    torch.set_num_threads(1)
    rows = []
    with torch.no_grad():
        for name in OPERATORS:
            for elements in SIDES:
                rows.append(measure(name, elements, device, arguments))
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    print(f"{'op':8}{'elements':>9}{'CPU us':>9}{'submit us':>11}{'done us':>9}{'ratio':>8}{'submit ratio':>14}")
    for row in rows:
        print(
            f"{row['op']:8}{row['elements']:>9}{row['cpu_us']:>9.2f}{row['submit_us']:>11.2f}{row['done_us']:>9.2f}"
            f"{row['ratio']:>8.2f}{row['submit_ratio']:>14.2f}"
        )
    print(f"largest ratio: {max(row['ratio'] for row in rows):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
