"""Random and ranked freeze ("Differentially Private SGD with Sparse Gradients", 2022, Algorithms 1 and 2).

Each epoch, or each step, has one mask. A frozen coordinate has no gradient before clipping and no noise afterwards.
Gradual cooling (`privacy.plans.private_steps`) raises the share of frozen coordinates from 0 to its final value over
the first epochs. In the posterior variant, the paper's ablation, frozen coordinates still count towards the clip.

Privacy: a random mask is drawn from public randomness, a ranked one from released gradients. No mask looks at private
data, so a step's event is that of the estimator on the active coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from privacy.gradients.estimator import Estimator
    from privacy.plans.private_steps import FreezeSchedule, StepsConfig


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


@dataclass
class Freezing:
    """The masks of one training, period by period. Public.

    Attributes:
        config: the rule for freezing coordinates, if any.
        schedule: number of frozen coordinates, and number of steps per mask.
        estimator: its coordinates are frozen.
        device: of the estimator's gradients.
        released_sum: (d,) sum of this period's releases, on the CPU; None before the first one, or if not ranked.
    """

    config: StepsConfig
    schedule: FreezeSchedule
    estimator: Estimator
    device: torch.device
    released_sum: Tensor | None = None

    def begin_step(self, step: int) -> None:
        """Choose a mask at the start of a period, at random or from the last period's releases."""
        if self.config.freeze == "none" or (step % self.schedule.period and self.estimator.active is not None):
            return
        rate, d, period = self.schedule.at(step), self.estimator.coordinates, step // self.schedule.period
        if self.config.freeze != "ranked" or self.released_sum is None:
            mask = random_mask(d, rate, torch.Generator().manual_seed(self.config.initial_seed * 1_000_003 + period))
        else:
            mask = ranked_mask(self.released_sum, rate).cpu()
        self.estimator.freeze(mask.to(self.device))
        self.released_sum = None

    def remember(self, released: Mapping[str, Tensor], step: int) -> None:
        """Add a release to the next period's ranking; frozen coordinates get only public noise."""
        if self.config.freeze != "ranked":
            return
        flat = torch.cat([value.detach().reshape(-1).cpu() for value in released.values()])
        estimator = self.estimator
        if estimator.active is not None:
            frozen = ~estimator.active.cpu()
            deviation = estimator.noise_multiplier * self.config.clip / estimator.expected_batch
            generator = torch.Generator().manual_seed(self.config.initial_seed * 1_000_003 + 500_009 + step)
            flat[frozen] = torch.randn(int(frozen.sum()), generator=generator) * deviation
        self.released_sum = flat if self.released_sum is None else self.released_sum + flat
