"""Runs cases in this process and tells each result as one line of JSON.

    python -m torch_fl.conformance.worker     reads {"spec": …, "index": n, "tags": […], "skip": {case: why}} from stdin

The command starts this file as a child, since a broken adapter may crash or hang. Each case is announced before it
starts, so that the parent knows what a crash interrupted.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

__all__ = ["work"]


def work(order: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    """Open the chip and run its cases; `tell` receives what happens.

    Messages: {"cases": [[name, doc], …]}, {"start": name}, {"case": name, "outcome": "pass|fail|n/a", "detail": text,
    "seconds": x}, {"failed": reason} or {"done": true}.
    """
    try:
        import torch

        from torch_fl.conformance.case import declared

        context = open_context(order["spec"], order["index"])
        import torch_fl.conformance.memory  # noqa: F401 - importing declares the cases
        from torch_fl.conformance import error, event, stream  # noqa: F401
        from torch_fl.conformance.kernel import kernel_cases

        cases = [case for case in (*declared(), *kernel_cases(context)) if case.tag in order["tags"]]
        tell({"cases": [[case.name, case.doc] for case in cases], "device": context.info["name"]})
        torch.set_num_threads(max(1, min(4, os.cpu_count() or 1)))
        for case in cases:
            if case.name in order["skip"]:
                continue
            tell({"start": case.name})
            tell(run_one(case, context))
        tell({"done": True})
    except Exception as error:  # whatever it is, it is why the suite could not go on
        tell({"failed": str(error) or type(error).__name__})


def open_context(spec: dict[str, Any], index: int) -> Any:
    """Open the chip of `spec`, and nothing else; returns what the cases get."""
    import torch

    from torch_fl import _C as core
    from torch_fl.conformance.case import Context

    core.set_discover(lambda: [])
    indices = core.add_adapter(spec)
    if not 0 <= index < len(indices):
        raise RuntimeError(f"the chip has no device {index}; there are {len(indices)}")
    name = torch._C._get_privateuse1_backend_name()
    flat = indices[index]
    info = core.device_info(flat)
    kernels = tuple(
        tuple(kernel)
        for kernel in core.adapter_kernels(spec["path"], info.get("ordinal", 0))
        if core.has_kernel(flat, *kernel)
    )
    others = tuple(torch.device(name, other) for other in indices if other != flat)
    return Context(torch.device(name, flat), others, info, kernels)


def run_one(case: Any, context: Any) -> dict[str, Any]:
    """Run a case; returns the message that tells its outcome."""
    from torch_fl.conformance.case import Failed, NotApplicable

    start = time.perf_counter()
    try:
        case.run(context)
        outcome, detail = "pass", ""
    except NotApplicable as error:
        outcome, detail = "n/a", str(error)
    except Failed as error:
        outcome, detail = "fail", str(error)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        outcome = "fail"
        detail = (
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''} ({place.name}:{place.lineno})"
        )
    return {"case": case.name, "outcome": outcome, "detail": detail, "seconds": time.perf_counter() - start}


def main() -> int:
    """Work on the order on standard input; answers go to standard output, an adapter's chatter does not."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(message: dict[str, Any]) -> None:
        print(json.dumps(message, default=str), file=stream, flush=True)

    work(json.load(sys.stdin), tell)
    stream.flush()
    os._exit(0)  # an adapter that crashes when the process ends has answered all the same


if __name__ == "__main__":
    sys.exit(main())
