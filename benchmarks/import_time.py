"""How much longer `import torch` takes with the plugin installed: autoload on and off, in turn, in fresh processes.

python benchmarks/import_time.py [--repeats 7]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

CODE = "import time; start = time.perf_counter(); import torch; print(time.perf_counter() - start)"


def import_seconds(autoload: bool) -> float:
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "1" if autoload else "0"}
    answer = subprocess.run([sys.executable, "-c", CODE], env=environment, stdout=subprocess.PIPE, check=True)
    return float(answer.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    times: dict[bool, list[float]] = {False: [], True: []}
    for repeat in range(repeats + 1):
        for autoload in times:
            seconds = import_seconds(autoload)
            if repeat:  # the first reads the files into memory
                times[autoload].append(seconds)
    without, with_plugin = statistics.median(times[False]), statistics.median(times[True])
    print(
        f"import torch: {without * 1e3:.0f} ms without, {with_plugin * 1e3:.0f} ms with the plugin: "
        f"{(with_plugin - without) * 1e3:+.0f} ms (medians of {repeats})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
