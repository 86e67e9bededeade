"""Rounds of votes on moments: what linear teachers on public features release, and what it costs.

A linear discriminator over a public feature map, one gradient step from zero, points from the student's mean feature
to its shard's. Voting on that direction needs one release per class and round instead of one per image, because it
is the same for every image of a class. Three maps follow one another, each centred and scaled by what the rounds
before it released: coefficients (means), their absolute deviations (scales), products of pairs (correlations).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Literal

from privacy.accounting.calibration import stddev_for
from privacy.accounting.events import GaussianEvent
from privacy.aggregation.topagg_config import TEACHERS_MAX, TopAggConfig
from privacy.errors import InvalidParameter

Moment = Literal["means", "scales", "class_scales", "products", "class_products"]

# (clip of one teacher's direction in units of the feature's public scale, part of the moment's share, damping).
# The first pass is wide enough to find the place, the later ones narrow enough to spend votes well; a last pass that
# repeats its predecessor's clip is averaged with it. Chosen on 50,000 training images of Fashion-MNIST against
# 10,000 others of the same file.
PASSES: dict[Moment, tuple[tuple[float, float, float], ...]] = {
    "means": ((4.0, 0.15, 1.0), (2.0, 0.25, 1.0), (1.2, 0.6, 1.0)),
    "scales": ((0.5, 1 / 3, 1.0), (0.5, 1 / 3, 1.0), (0.5, 1 / 3, 1.0)),
    "class_scales": ((0.8, 0.4, 1.0), (0.8, 0.6, 0.7)),
    "products": ((0.6, 0.5, 1.0), (0.6, 0.5, 0.5)),
    "class_products": ((1.0, 0.5, 1.0), (1.0, 0.5, 0.5)),
}
COEFFICIENTS_MAX = 512
MEANS_ROUNDS = "votes_means_"  # how the names of the rounds on the means begin


@dataclasses.dataclass(frozen=True)
class MomentVotesConfig:
    """Public parameters of the moment rounds.

    Attributes:
        teachers: N.
        coefficients: F, lowest two-dimensional cosine frequencies that describe an image.
        class_coefficients: leading coefficients whose correlations are also voted on for each class; 0 for none.
        means_share: share of the budget for the class means.
        scales_share: for the spread of each coefficient around its class mean, pooled over classes.
        class_scales_share: for the same per class.
        products_share: for pooled correlations.
        class_products_share: for each class's own; 0 exactly when `class_coefficients` is 0.
        stochastic_sign: ablation switch of TopAgg.
    """

    teachers: int = 4000
    coefficients: int = 64
    class_coefficients: int = 0
    means_share: float = 0.4
    scales_share: float = 0.03
    class_scales_share: float = 0.2
    products_share: float = 0.37
    class_products_share: float = 0.0
    stochastic_sign: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.teachers <= TEACHERS_MAX:
            raise InvalidParameter("teachers", self.teachers, f"between 1 and {TEACHERS_MAX}")
        if not 2 <= self.coefficients <= COEFFICIENTS_MAX:
            raise InvalidParameter("coefficients", self.coefficients, f"between 2 and {COEFFICIENTS_MAX}")
        if self.class_coefficients != 0 and not 2 <= self.class_coefficients <= self.coefficients:
            raise InvalidParameter("class_coefficients", self.class_coefficients, "0, or between 2 and coefficients")
        for moment in ("means", "scales", "class_scales", "products"):
            if not 0 < self.share(moment) < 1:
                raise InvalidParameter(f"{moment}_share", self.share(moment), "a share is strictly between 0 and 1")
        if (self.class_products_share > 0) != (self.class_coefficients > 0) or self.class_products_share < 0:
            raise InvalidParameter(
                "class_products_share", self.class_products_share, "positive exactly when class_coefficients is"
            )
        if not math.isclose(sum(self.share(moment) for moment in PASSES), 1.0, abs_tol=1e-9):
            raise InvalidParameter("means_share", self.means_share, "the shares must add up to 1")

    def share(self, moment: Moment) -> float:
        """Return the share of one moment."""
        return float(getattr(self, f"{moment}_share"))


# Little noise pays for more detail. Measured beside `MomentVotesConfig`'s defaults, which are for epsilon near 1.
DETAILED = MomentVotesConfig(
    coefficients=100,
    class_coefficients=36,
    means_share=0.2,
    scales_share=0.02,
    class_scales_share=0.15,
    products_share=0.25,
    class_products_share=0.38,
)


@dataclasses.dataclass(frozen=True)
class MomentRound:
    """One pass over one moment: `images` releases, one for each class or one for all.

    Attributes:
        moment: what is voted on.
        index: which pass, from 0.
        images: releases.
        clip: public scale of the votes: a teacher whose direction reaches it votes for sure.
        damping: how much of the estimated step is taken.
        aggregation: TopAgg's parameters.
    """

    moment: Moment
    index: int
    images: int
    clip: float
    damping: float
    aggregation: TopAggConfig

    @property
    def name(self) -> str:
        """Name of the plan's stage."""
        return f"votes_{self.moment}_{self.index}"

    @property
    def event(self) -> GaussianEvent:
        """What the round costs."""
        return self.aggregation.event(self.images)


def moment_rounds(config: MomentVotesConfig, budget_nano: int, classes: int) -> tuple[MomentRound, ...]:
    """Divide a budget among the rounds: each one's noise follows from its share.

    Args:
        config: public parameters.
        budget_nano: what all rounds may cost together.
        classes: number of declared classes.

    Raises:
        InvalidParameter: the budget is too small for its shares.
    """
    noise = {}
    for draft in _rounds(config, classes, None):
        nano = int(budget_nano * config.share(draft.moment) * PASSES[draft.moment][draft.index][1])
        noise[draft.name] = stddev_for(draft.aggregation.sensitivity, nano, draft.images, discrete=True)
    return planned_rounds(config, classes, noise)


def planned_rounds(config: MomentVotesConfig, classes: int, noise: Mapping[str, float]) -> tuple[MomentRound, ...]:
    """Rebuild the rounds of a plan from the noise it stored, by stage name."""
    return tuple(_rounds(config, classes, noise))


def _rounds(config: MomentVotesConfig, classes: int, noise: Mapping[str, float] | None) -> Iterator[MomentRound]:
    for moment, passes in PASSES.items():
        dimension = _dimension(config, moment)
        if dimension == 0:
            continue
        images = 1 if moment in ("scales", "products") else classes
        for index, (clip, _, damping) in enumerate(passes):
            name = f"votes_{moment}_{index}"
            aggregation = TopAggConfig(
                k=dimension,
                c=clip,
                stddev=1e6 if noise is None else noise[name],
                beta=1.0,
                teachers=config.teachers,
                dimension=dimension,
                stochastic_sign=config.stochastic_sign,
                threshold=False,
            )
            yield MomentRound(moment, index, images, clip, damping, aggregation)


def _dimension(config: MomentVotesConfig, moment: Moment) -> int:
    if moment == "products":
        return config.coefficients * (config.coefficients - 1) // 2
    if moment == "class_products":
        return config.class_coefficients * (config.class_coefficients - 1) // 2
    return config.coefficients
