"""A tiny GPT-2 with random weights writes the same tokens on a chip as on the CPU.

    python examples/generate_gpt2.py --device ninguang

Nothing is downloaded. Exit code 1 if one token differs.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import torch_fl


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="ninguang", help='a chip, "ninguang" or "ninguang:1", or a device, "fl:0"')
    parser.add_argument("--tokens", type=int, default=32, help="new tokens for each prompt")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-cpu-fallback", action="store_true", help="fail where an operator would run on the CPU")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    try:
        torch_fl.register_device(arguments.device.partition(":")[0])
        device = torch.empty(0, device=arguments.device).device
    except RuntimeError as error:
        sys.exit(f"--device {arguments.device}: {error}")
    torch.manual_seed(arguments.seed)
    config = GPT2Config(
        vocab_size=256, n_positions=128, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=None
    )
    model = GPT2LMHeadModel(config).eval()
    prompts = torch.randint(1, 256, (arguments.batch_size, 8))
    settings = {"max_new_tokens": arguments.tokens, "do_sample": False, "pad_token_id": 0}

    ours = copy.deepcopy(model).to(device)
    if arguments.no_cpu_fallback:
        torch_fl.routing.enable("cpu", False)
    with torch_fl.routing.track() as routes:
        on_device = prompts.to(device)
        start = time.perf_counter()
        written = ours.generate(on_device, attention_mask=torch.ones_like(on_device), **settings).cpu()
        elapsed = time.perf_counter() - start
    expected = model.generate(prompts, attention_mask=torch.ones_like(prompts), **settings)

    print(f"{written[0, 8:].tolist()}")
    print(f"{arguments.batch_size * arguments.tokens / elapsed:.0f} tokens/s on {device}")
    same = torch.equal(written, expected)
    print(f"check against CPU: {'all tokens are equal: ok' if same else 'tokens differ: FAILED'}")
    print(routes)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
