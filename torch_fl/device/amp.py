"""What torch.autocast asks of a device."""

from __future__ import annotations

import torch


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes autocast may compute in."""
    return [torch.float16, torch.bfloat16]
