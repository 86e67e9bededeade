"""Where bfloat16 arithmetic helps: Hopper-class GPUs and CPUs with native bfloat16 instructions."""

from __future__ import annotations

from functools import cache

import torch


@cache
def bfloat16_is_fast(device_type: str) -> bool:
    """Return whether `device_type` ("cpu" or "cuda") multiplies bfloat16 natively rather than by emulation."""
    if device_type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(supported is not None and supported())


def mixed_precision(device: torch.device | str) -> torch.autocast:
    """Return an autocast context that uses bfloat16 where it is fast and does nothing elsewhere."""
    device_type = torch.device(device).type
    return torch.autocast(device_type, torch.bfloat16, enabled=bfloat16_is_fast(device_type))
