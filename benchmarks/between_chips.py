"""Copies between two devices of one process, as a share of what the processor copies in the same run.

    TORCH_FL_CHIPS=ninguang,pocl python benchmarks/between_chips.py [--from fl:0] [--to fl:2] [--mib 64] [--json]

The copy and a copy of as many bytes within the host's memory (one thread) take turns; each figure is the median over
`--repeats` turns. A staged copy moves every byte twice, down and up at the same time; half of the processor's bandwidth
is what it would be without the overlap.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

import torch_fl


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", default="fl:0")
    parser.add_argument("--to", dest="target", default="fl:2")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--json", action="store_true", help="print JSON only")
    return parser.parse_args()


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    devices = {name: torch.device(name) for name in (arguments.source, arguments.target)}
    chips = {d["device"]: d["chip"] for d in torch_fl.list_devices()}
    size = arguments.mib << 20
    here, there = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    source, target = (torch.ones(size, dtype=torch.uint8, device=devices[n])
                      for n in (arguments.source, arguments.target))  # fmt: skip

    def copy() -> None:
        target.copy_(source)
        torch.accelerator.synchronize(target.device)

    copy()
    there.copy_(here)
    turns = [(seconds(lambda: there.copy_(here)), seconds(copy)) for _ in range(arguments.repeats)]
    host, device = (statistics.median(column) for column in zip(*turns, strict=True))
    result = {"from": f"{arguments.source} ({chips[arguments.source]})",
              "to": f"{arguments.target} ({chips[arguments.target]})", "mib": arguments.mib,
              "host_gb_per_s": round(size / host / 1e9, 2), "copy_gb_per_s": round(size / device / 1e9, 2),
              "share": round(host / device, 2)}  # fmt: skip
    if arguments.json:
        print(json.dumps(result))
    else:
        print(f"{result['from']} to {result['to']}, {arguments.mib} MiB: {result['copy_gb_per_s']} GB/s, "
              f"{result['share']} of a copy in the host's memory ({result['host_gb_per_s']} GB/s)")  # fmt: skip


if __name__ == "__main__":
    main()
