"""Worker process of the OpInfo tests: reads "name<TAB>mode" lines, answers each with one line of JSON.

A process of its own, so that a crash or a hang costs one operator and names it. Mode "all": every tier; "no_cpu":
the CPU tier is off, and an operator that needs it raises NotImplementedError.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TextIO


def main(answers: TextIO) -> None:
    import torch
    from opinfo_cases import DEVICE, OPS, OpCheck, quiet

    import torch_fl

    torch.set_num_threads(1)
    cached: OpCheck | None = None
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        name, mode = line.rstrip("\n").split("\t")
        answer = {"op": name, "mode": mode, "failures": [], "not_covered": [], "strides": [], "checks": 0, "cpu": []}
        try:
            with quiet():
                if cached is None or cached.name != name:
                    cached = OpCheck(OPS[name])
                torch_fl.routing.enable("cpu", mode == "all")
                with torch_fl.routing.track() as routes:
                    report = cached.run()
                    torch.accelerator.synchronize(DEVICE)
            answer.update(vars(report), cpu=sorted(routes.cpu_fallback))
        except Exception as error:  # noqa: BLE001 - a broken sample is reported, the next operator goes on
            answer["failures"].append(("setup", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    # The answers have a channel of their own: operators may print.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main(channel)
