"""Runs the litmus programs many times, each time with other delays and in another order.

    python tests/litmus/run.py --runs 1000
    python tests/litmus/run.py --seed 417 key_value_cache    one run again

Exit code 1: a program was wrong in some run; each is told with its seed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import litmus  # noqa: E402
import mutants  # noqa: E402
from litmus import Program  # noqa: E402


def run_all(chosen: list[Program], runs: int, seed: int) -> list[str]:
    """Runs the programs in this process. Returns a line for each failure."""
    delays = mutants.prepare(chosen[0])
    failures = []
    for current in range(seed, seed + runs):
        order = sorted(chosen, key=lambda p: p.name)
        random.Random(current).shuffle(order)
        for program in order:
            try:
                litmus.run(program, delays, current)
            except Exception as error:
                failures.append(f"{program.name}, seed {current}: {type(error).__name__}: {error}")
                print(failures[-1], flush=True)
        if (current - seed + 1) % 100 == 0:
            print(f"{current - seed + 1} runs, {len(failures)} failures", flush=True)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="names; none: all")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the first run; each run has its own")
    options = parser.parse_args()
    known = litmus.programs()
    chosen = [known[name] for name in options.programs] or list(known.values())
    begin = time.monotonic()
    failures = 0
    for unified in (False, True):  # the chip decides once in a process
        group = [program for program in chosen if program.unified == unified]
        if group:
            work = partial(run_all, group, options.runs, options.seed)
            failures += len(mutants.in_child(work, limit=None))
    print(
        f"{options.runs} runs of {len(chosen)} programs, seeds {options.seed} to {options.seed + options.runs - 1}: "
        f"{failures} failures; {time.monotonic() - begin:.0f} s"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
