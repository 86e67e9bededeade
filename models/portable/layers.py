"""Parts of networks with separable per-record gradients: GroupNorm instead of BatchNorm, each layer used once."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def groups_of(channels: int, most: int = 16) -> int:
    """Return the largest number of groups, at most `most`, that divides the channels into groups of two or more."""
    return max(count for count in range(1, min(most, max(1, channels // 2)) + 1) if channels % count == 0)


def with_planes(images: Tensor, *numbers: Tensor) -> Tensor:
    """Append a constant plane for each number of a row to its image, for networks with one input.

    Args:
        images: (n, c, h, w).
        numbers: (n,) each; integers below 2^24 are exact.

    Returns:
        (n, c + len(numbers), h, w), for `plane`.
    """
    planes = [number.to(images)[:, None, None, None].expand(-1, 1, *images.shape[2:]) for number in numbers]
    return torch.cat([images, *planes], dim=1)


def plane(packed: Tensor, place: int) -> Tensor:
    """Return (n,) the number that `with_planes` put into one channel."""
    return packed[:, place, 0, 0]


def initialise(model: nn.Module, seed: int) -> nn.Module:
    """Redraw the weights from a public seed, on the CPU, whatever the state of torch's own generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in model.modules():
            reset = getattr(layer, "reset_parameters", None)
            if callable(reset):
                reset()
    return model
