"""Frozen coordinates of private steps: which ones a step leaves as they are, period by period.

All of it is public: masks are drawn from a public seed, or rank coordinates by what was released in the last period.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from privacy.gradients.estimator import Estimator
from privacy.gradients.freeze import random_mask, ranked_mask
from privacy.plans.private_steps import FreezeSchedule, StepsConfig


@dataclass
class Freezing:
    """The masks of one training.

    Attributes:
        config: whether coordinates are frozen, and how they are chosen.
        schedule: how many of them, and for how many steps.
        estimator: leaves out what is frozen.
        device: of the estimator's gradients.
        released_sum: (d,) sum of what this period has released, on the CPU; None: nothing yet, or nobody ranks it.
    """

    config: StepsConfig
    schedule: FreezeSchedule
    estimator: Estimator
    device: torch.device
    released_sum: Tensor | None = None

    def begin_step(self, step: int) -> None:
        """Choose a mask where a period begins: by public randomness, or by what was released in the last one."""
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
        """Sum what was released for the next period's ranking; frozen coordinates get noise alone, public noise."""
        if self.config.freeze != "ranked":
            return
        flat = torch.cat([value.detach().reshape(-1).cpu() for value in released.values()])
        estimator = self.estimator
        if estimator.active is not None:
            frozen = ~estimator.active.cpu()
            deviation = estimator.noise_multiplier * self.config.clip / estimator.expected_batch
            stream = torch.Generator().manual_seed(self.config.initial_seed * 1_000_003 + 500_009 + step)
            flat[frozen] = torch.randn(int(frozen.sum()), generator=stream) * deviation
        self.released_sum = flat if self.released_sum is None else self.released_sum + flat
