"""Removes each wait of the litmus programs in turn and says which mutants are caught.

    python tests/litmus/mutate.py                     all programs, all waits, and the mutants of our own source
    python tests/litmus/mutate.py key_value_cache     the waits of some programs
    python tests/litmus/mutate.py --source            the mutants of our own source only

Exit code 1: a mutant survived that is not listed in equivalents.yaml.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import litmus  # noqa: E402
import mutants  # noqa: E402
import source_mutants  # noqa: E402
from litmus import FOLDER, Program  # noqa: E402


def remove_waits(chosen: list[Program], verbose: bool) -> Counter:
    """Makes and runs the mutants of the programs; tells of each that survived. Counts outcomes and kinds."""
    mutants.use_forgetful_adapter(FOLDER / "forgetful")
    counts: Counter = Counter()
    for program in chosen:
        waits = mutants.waits_of(program)
        print(f"{program.name}: {len(waits)} waits", flush=True)
        for wait in waits:
            how = mutants.caught(program, wait)
            reason = None if how else mutants.reason_to_survive(program, wait)
            counts["caught" if how else "equivalent" if reason else "survived"] += 1
            counts[wait.kind] += 1
            if how is None or verbose:
                told = how or (f"equivalent: {reason}" if reason else "SURVIVED")
                print(f"  {wait.kind} {wait.nth or 'all'} at {wait.source()}\n    {told}", flush=True)
    return counts


def mutate_source(verbose: bool) -> Counter:
    """Builds and runs the mutants of our own source; tells of each that survived a program."""
    counts: Counter = Counter()
    for number, mutant in enumerate(source_mutants.SOURCE_MUTANTS):
        found = source_mutants.outcomes(mutant, FOLDER / f"source-{number}")
        print(f"{mutant.name} ({mutant.file}): {len(found)} programs", flush=True)
        for name, how in found.items():
            counts["caught" if how else "survived"] += 1
            if how is None or verbose:
                print(f"  {name}\n    {how or 'SURVIVED'}", flush=True)
    return counts


def as_built(folder: Path, chosen: list[Program]) -> None:
    """The libraries are the mutants: runs the programs with all their waits, and prints how each was caught."""
    mutants.use_forgetful_adapter(folder / "forgetful")
    print(json.dumps({program.name: mutants.caught(program, None) for program in chosen}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="names; none: all")
    parser.add_argument("--source", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="also what was caught, and how")
    parser.add_argument("--as-built", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = litmus.programs()
    chosen = [known[name] for name in options.programs] or list(known.values())
    if options.as_built:
        as_built(options.as_built, chosen)
        return 0
    begin = time.monotonic()
    survived = 0
    if not options.source:
        counts = remove_waits(chosen, options.verbose)
        survived += counts["survived"]
        kinds = ", ".join(f"{kind} {counts[kind]}" for kind in mutants.KINDS if counts[kind])
        print(
            f"{sum(counts[kind] for kind in mutants.KINDS)} waits of {len(chosen)} programs removed ({kinds}): "
            f"{counts['caught']} caught, {counts['equivalent']} equivalent, {counts['survived']} survived; "
            f"{time.monotonic() - begin:.0f} s"
        )
    if options.source or not options.programs:
        begin = time.monotonic()
        counts = mutate_source(options.verbose)
        survived += counts["survived"]
        print(
            f"{len(source_mutants.SOURCE_MUTANTS)} mutants of our source in {sum(counts.values())} programs: "
            f"{counts['caught']} caught, {counts['survived']} survived; {time.monotonic() - begin:.0f} s"
        )
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
