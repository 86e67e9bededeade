"""Build the gradient estimator that a plan names, and the masks of coordinates that its steps freeze.

Random and ranked freeze ("Differentially Private SGD with Sparse Gradients", 2022, Algorithms 1 and 2): each epoch, or
each step, has one mask. A frozen coordinate has no gradient before clipping and no noise afterwards. Gradual cooling
(`privacy.plans.private_steps`) raises the share of frozen coordinates from 0 to its limit over the first epochs. In the
posterior variant, the paper's ablation, frozen coordinates still count towards the clip.

Privacy: a random mask is drawn from public randomness, a ranked one from released gradients. No mask looks at private
data, so a step's event is that of the estimator on the active coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privacy.errors import InvalidParameter
from privacy.gradients.dpsgd import DpSgd
from privacy.gradients.estimator import Common, Curator, Estimator, shapes_of
from privacy.gradients.gep import AnchorTraces, Gep
from privacy.gradients.per_sample import check_model
from privacy.gradients.rgp import Rgp
from privacy.gradients.topagg import TopAggSgd
from privacy.plans.private_steps import FreezeSchedule, StepsConfig


def build_estimator(
    config: StepsConfig,
    model: nn.Module,
    *,
    noise_multiplier: float,
    expected_batch: float,
    steps: int,
    anchors: AnchorTraces | None,
    curator: Curator | None = None,
) -> Estimator:
    """Build the estimator that a plan names.

    Args:
        model: the one network that sees private records.
        expected_batch: q n, the expected number of sampled units.
        anchors: public anchors, needed by GEP and B-GEP only.
        curator: adds the noise, if several processes share the steps.

    Raises:
        InvalidParameter: a layer has no per-record gradients, GEP has no anchors, or a size does not fit.
    """
    check_model(model)
    shapes = shapes_of(model)
    common: Common = {"noise_multiplier": noise_multiplier, "expected_batch": expected_batch, "curator": curator}
    if config.estimator == "dpsgd":
        return DpSgd(shapes, clip=config.clip, freeze_after_clipping=config.freeze == "posterior", **common)
    if config.estimator == "topagg":
        return TopAggSgd(shapes, clip=config.clip, keep=config.keep, **common)
    if config.estimator in ("gep", "bgep"):
        if anchors is None:
            raise InvalidParameter("estimator", config.estimator, "it needs public anchor images, and there are none")
        return Gep(
            shapes,
            anchors,
            basis_size=config.basis_size,
            clip=config.clip,
            clip_residual=config.residual_bound if config.estimator == "gep" else None,
            seed=config.initial_seed,
            iterations=config.power_iterations,
            groups=config.basis_groups,
            **common,
        )
    return Rgp(
        model,
        shapes,
        rank=config.rank,
        rank_fraction=config.rank_fraction,
        iterations=config.power_iterations,
        clip=config.clip,
        warm_up_steps=round(config.warm_up_fraction * steps),
        random=config.estimator == "rgp_random",
        seed=config.initial_seed,
        **common,
    )


def random_mask(coordinates: int, rate: float, generator: torch.Generator) -> torch.Tensor:
    """Return a mask (d,) bool from public randomness: round(rate d) are False (frozen), but at least one is True."""
    frozen = min(round(rate * coordinates), coordinates - 1)
    mask = torch.ones(coordinates, dtype=torch.bool)
    mask[torch.randperm(coordinates, generator=generator)[:frozen]] = False
    return mask


def ranked_mask(released_mean: torch.Tensor, rate: float) -> torch.Tensor:
    """Return a mask (d,) bool, False (frozen) where the mean released gradient of the last epoch was smallest.

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
    """The masks of one training, one for each period of steps. Public.

    Attributes:
        schedule: share of frozen coordinates, and number of steps in a period.
        released_sum: (d,) sum of this period's releases, on the CPU; None before its first release, and if
            masks are not ranked.
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
        """Add a release to the next period's ranking, with public noise in place of its frozen coordinates."""
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
