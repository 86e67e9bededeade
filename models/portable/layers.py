"""Parts of networks with a gradient for each record: GroupNorm replaces BatchNorm, and each layer is used once."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def groups_of(channels: int, most: int = 16) -> int:
    """Return the largest number of equal groups, at most `most`, that have at least two channels each."""
    return max(count for count in range(1, min(most, max(1, channels // 2)) + 1) if channels % count == 0)


def with_planes(images: Tensor, *numbers: Tensor) -> Tensor:
    """Append numbers to images as constant planes, for networks that accept a single tensor.

    Args:
        images: (n, c, h, w).
        numbers: (n,) each, one number per image; integers below 2^24 are exact.

    Returns:
        (n, c + len(numbers), h, w), from which `plane` reads the numbers.
    """
    planes = [number.to(images)[:, None, None, None].expand(-1, 1, *images.shape[2:]) for number in numbers]
    return torch.cat([images, *planes], dim=1)


def plane(packed: Tensor, place: int) -> Tensor:
    """Return the numbers (n,), one per image, that `with_planes` stored in the channel `place`."""
    return packed[:, place, 0, 0]


def initialise(model: nn.Module, seed: int) -> nn.Module:
    """Redraw the weights from a public seed, on the CPU, independently of torch's global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in model.modules():
            reset = getattr(layer, "reset_parameters", None)
            if callable(reset):
                reset()
    return model
