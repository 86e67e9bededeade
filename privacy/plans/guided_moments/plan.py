"""Plan of the guided_moments recipe: class moments, and a private classifier that moves what they draw.

A classifier that learned private images knows more of what sets classes apart than one that learned what moments draw.
So a share of the budget pays for one, linear on scattering coefficients as in `dp_classifier`. An image is drawn from
the moments and moved, in a few steps of gradient descent, to where the classifier is surer of its class (classifier
guidance: Dhariwal & Nichol 2021, arXiv:2105.05233).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from obscura.wire.budgets import UNITS
from privacy.accounting.filter import Filter
from privacy.errors import InvalidParameter
from privacy.plans.dp_classifier.plan import PRESETS as CLASSIFIERS
from privacy.plans.dp_classifier.plan import SCATTER_SIZE_MIN, DpClassifierConfig
from privacy.plans.moments.defaults import FOLLOWING_OPTIONS, completed
from privacy.plans.moments.options import MomentsConfig
from privacy.plans.moments.plan import (
    LAST_NOTES,
    check_generator,
    check_images,
    moment_notes,
    mu_of,
    smallest_class,
    start_releases,
    unit_notes,
    with_share_above_noise,
)
from privacy.plans.moments.warm_start import warm_start_noise, warm_start_stages
from privacy.plans.plan import Plan, PublicFacts, Recipe
from privacy.plans.private_steps import steps_facts, steps_notes, steps_stage

SIDE_MAX = 64  # pixels: a step of an image of that size takes a second of a processor


class GuidedMomentsConfig(MomentsConfig):
    """Public parameters of class moments and their guide."""

    guide_share: float = Field(
        0.5, ge=0.01, le=0.99, description="Share of the budget for the classifier that guides; moments get the rest."
    )
    guide_steps: int = Field(
        2, ge=1, le=10, description="Steps of gradient descent by which each drawn image is moved."
    )
    guide_logit: float = Field(
        60.0,
        ge=0,
        le=1000,
        description="How far above the others the classifier's logit of an image's class is to be. Private images of "
        "CIFAR-10 have about 12; more makes better pupils, until images are spoilt.",
    )

    @property
    def start_share(self) -> float:
        return 1.0 - self.guide_share

    @property
    def changes_its_start(self) -> bool:
        """Evaluations measure what the moments draw by themselves, too."""
        return True

    @property
    def drawing_seconds(self) -> float:
        return super().drawing_seconds + 3e-3 * self.guide_steps

    @property
    def guide(self) -> DpClassifierConfig:
        """The classifier's parameters: those of the default of `dp_classifier`."""
        return DpClassifierConfig(**CLASSIFIERS["default"])


def plan_from_options(options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    """Turn a budget into the noise of class moments and of a classifier's training.

    Raises:
        InvalidParameter: an option does not fit the dataset or the budget.
    """

    def config_at(mu: float, declared: PublicFacts) -> GuidedMomentsConfig:
        return completed(GuidedMomentsConfig, options, mu, declared)

    config = config_at(mu_of(budget_nano), facts)
    check_images(config, facts)
    check_generator(config, facts)
    _check_size(facts)
    guide_nano = math.floor(config.guide_share * budget_nano)
    noise = warm_start_noise(config, budget_nano - guide_nano)
    stages = warm_start_stages(noise, privacy_filter)
    steps = steps_stage(config.guide, privacy_filter, guide_nano, facts)
    plan = Plan(
        recipe="guided_moments",
        config=config,
        stages=(*stages, steps),
        budget_nano=budget_nano,
        notes=(
            *unit_notes(facts),
            *moment_notes(config, facts),
            f"For {config.guide_share:.0%} of the budget a classifier is trained, which moves each drawn image in "
            f"{config.guide_steps} steps to where it is surer of the image's class. That makes images worth more to "
            "convolutional networks that learn from them, not nicer to look at, and drawing many times slower.",
            *steps_notes(config.guide, steps, facts),
            *LAST_NOTES,
        ),
        facts={"guide_share": config.guide_share, "noise_stddev": noise, **steps_facts(config.guide, steps, facts)},
    )
    return with_share_above_noise(plan, config_at, privacy_filter, facts)


def _check_size(facts: PublicFacts) -> None:
    least, most = min(facts.height, facts.width), max(facts.height, facts.width)
    if least < SCATTER_SIZE_MIN or most > SIDE_MAX:
        raise InvalidParameter(
            "recipe",
            "guided_moments",
            f"its classifier sees images of {SCATTER_SIZE_MIN} to {SIDE_MAX} pixels a side, and these have "
            f"{facts.width} x {facts.height}: train moments without a guide, or declare another size",
        )


RECIPE = Recipe(
    name="guided_moments",
    title="Guided moments",
    publishes="generator",
    releases="A generator of labelled images, and with it the classifier that guides it; drawing from it is free.",
    config=GuidedMomentsConfig,
    plan=plan_from_options,
    units=frozenset(UNITS),
    follows=FOLLOWING_OPTIONS,
    start=start_releases,
    smallest_class=smallest_class,
)
