"""Random and ranked freeze ("Differentially Private SGD with Sparse Gradients", 2022, Algorithms 1 and 2).

One mask for each epoch, or for each step; a frozen coordinate has no gradient before clipping and no noise after.
Gradual cooling (`privacy.plans.private_steps`) raises the share of frozen coordinates from 0 to its end over the first
epochs. In the posterior variant, the paper's ablation, frozen coordinates still count towards the clip.

Privacy: a random mask is drawn from public randomness, a ranked one from released gradients. Neither looks at private
data, so a step's event is that of the estimator on the active coordinates.
"""

from __future__ import annotations

import torch


def random_mask(coordinates: int, rate: float, generator: torch.Generator) -> torch.Tensor:
    """Return (d,) bool with round(rate d) frozen (False) places, at least one active, from public randomness."""
    frozen = min(round(rate * coordinates), coordinates - 1)
    mask = torch.ones(coordinates, dtype=torch.bool)
    mask[torch.randperm(coordinates, generator=generator)[:frozen]] = False
    return mask


def ranked_mask(released_mean: torch.Tensor, rate: float) -> torch.Tensor:
    """Return (d,) bool that freezes the coordinates whose mean released gradient over the last epoch was smallest.

    Args:
        released_mean: (d,) mean of the noisy gradients, noise on frozen coordinates included. Released, so public.
        rate: share of frozen coordinates, in [0, 1).
    """
    coordinates = released_mean.numel()
    frozen = min(round(rate * coordinates), coordinates - 1)
    mask = torch.ones(coordinates, dtype=torch.bool, device=released_mean.device)
    mask[torch.argsort(released_mean.abs(), stable=True)[:frozen]] = False
    return mask
