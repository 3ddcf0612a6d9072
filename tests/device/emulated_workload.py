"""Runs in a process of its own: models and a spread of OpInfo entries on an emulated chip, against the CPU.

Arguments: a folder and the profile's fields as JSON. Prints one line of JSON: what was launched undeclared, what was
not right, the tiers, and calls of waits.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "ops"))

OPS = (
    "add", "mul", "div.no_rounding_mode", "nn.functional.relu", "nn.functional.gelu", "softmax", "log_softmax",
    "sum", "mean", "var", "argmax", "cumsum", "sort", "topk", "where", "gather", "scatter_add", "index_select",
    "index_put", "masked_fill", "cat", "permute", "matmul", "addmm", "bmm", "nn.functional.linear",
    "nn.functional.conv2d", "nn.functional.max_pool2d", "nn.functional.layer_norm", "nn.functional.batch_norm",
    "nn.functional.embedding", "nn.functional.cross_entropy", "nn.functional.scaled_dot_product_attention",
    "nn.functional.interpolate.bilinear", "clamp", "pow", "atan2", "eq", "isnan", "tril", "linalg.solve",
    "nonzero", "norm",
)  # fmt: skip


def networks() -> list:
    """Small networks of the usual parts, each with a batch."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    convolutional = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                                  nn.Flatten(), nn.Linear(8 * 4 * 4, 5))
    attentive = nn.Sequential(nn.Embedding(11, 16), nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True),
                              nn.Flatten(), nn.Linear(16 * 6, 5))
    return [(convolutional, torch.randn(4, 3, 8, 8)), (attentive, torch.randint(0, 11, (4, 6)))]


def train(model, batch, device: str) -> tuple[list[float], list]:  # noqa: ANN001
    import torch

    model = copy.deepcopy(model).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)  # Adam would amplify rounding
    labels = torch.arange(4, device=device)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch.to(device)), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()]


def main() -> None:
    folder, fields = Path(sys.argv[1]), json.loads(sys.argv[2])
    os.environ.update(FL_TEST_DEVICE="fl:1", FL_OPINFO_SAMPLES="2")
    import torch
    from emulated_chip import EmulatedChip

    chip = EmulatedChip(folder, **fields)  # before PyTorch's tests, whose import opens devices
    assert [str(d) for d in chip.devices] == ["fl:0", "fl:1"], chip.devices
    from opinfo_cases import OPS as ENTRIES
    from opinfo_cases import OpCheck, quiet

    from torch_fl import routing

    torch.set_num_threads(1)
    wrong = {}
    with routing.track() as routes:
        for model, batch in networks():
            for got, want in zip(train(model, batch, "fl:1"), train(model, batch, "cpu"), strict=True):
                try:
                    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
                except AssertionError as error:
                    wrong[type(model[0]).__name__] = str(error)
        for name in OPS:
            with quiet():
                report = OpCheck(ENTRIES[name]).run()
            if report.failures or not report.checks:
                wrong[name] = report.failures or "nothing checked"
        side = torch.fl.Stream(1)  # waits between streams, by what the profile declares
        with torch.fl.stream(side):
            squares = torch.arange(100.0, device="fl:1") * 2
        torch.fl.current_stream(1).wait_event(side.record_event())
        if not torch.equal((squares + 1).cpu(), torch.arange(100.0) * 2 + 1):
            wrong["streams"] = "a wait was lost"
        torch.fl.synchronize(1)
    told = routing.explain("aten::mm", device="fl:1").tier
    launched = sorted({record.uniop.decode() for record in chip.records})
    print(json.dumps({"undeclared": chip.undeclared(), "wrong": wrong, "uniops": launched, "native": routes.native,
                      "cpu": routes.cpu_fallback, "events": chip.event_calls,
                      "streams": chip.stream_calls, "mm": told, "memory": torch.fl.mem_get_info(1)[1],
                      "routing": str(routes)}))


if __name__ == "__main__":
    main()
