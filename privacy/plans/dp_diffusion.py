"""Plan of the dp_diffusion recipe: a diffusion model whose every gradient step is private.

A start may be released first, paid from the same budget: class Gaussians (the recipe `moments`), or noisy mean images
of the classes (Gong et al. 2025, DP-FETA). One release of the latter is a Poisson sample's sum of clipped half-size
images, class by class, so a unit moves one sum of the release by at most the clip.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from models.sizes import denoiser_layers
from obscura.wire.budgets import UNITS
from privacy.accounting.filter import Filter
from privacy.plans.moments import MomentsConfig, config_that_follows
from privacy.plans.options import EvaluationSamples, read_options
from privacy.plans.plan import Plan, PublicFacts, Recipe, Stage, mu_of
from privacy.plans.private_steps import StepsConfig, check_basis, poisson_stage, steps_facts, steps_notes, steps_stage
from privacy.plans.warm_start import warm_start_noise, warm_start_stages

CENTRAL = "central_images"


class DpDiffusionConfig(StepsConfig):
    """Public parameters of one diffusion model. `multiplicity` is K, noise levels of each record in a step."""

    features: int = Field(32, ge=4, le=512, description="Channels of the U-Net at full size.")
    blocks: int = Field(2, ge=1, le=8, description="Residual blocks of the U-Net at each size.")
    patch: int = Field(
        1, ge=1, le=8, description="Side of squares of pixels that the U-Net sees as channels; 2 is 3 times as fast."
    )
    label_drop: float = Field(
        0.1, ge=0, le=0.9, description="Share of the rows whose label is left out in training, which guidance needs."
    )
    guidance: float = Field(
        0.0, ge=0, le=10, description="w of classifier-free guidance in drawing, which needs a label_drop; 0: off."
    )
    sampling_steps: int = Field(50, ge=2, le=1000, description="N, steps in which an image is drawn.")
    churn: float = Field(
        10.0, ge=0, le=1000, description="S_churn, fresh noise of the steps of drawing; 0 is deterministic."
    )
    central_images: int = Field(
        0, ge=0, le=100, description="Noisy mean images of each class, released for the warm-up; 0 is no warm-up."
    )
    central_fraction: float = Field(0.1, ge=0, le=0.9, description="Share of the budget that the central images cost.")
    central_batch: int = Field(
        6000, ge=1, le=1_000_000, description="Units expected in the sample of one release of central images."
    )
    central_clip: float = Field(
        0.4, ge=1e-3, le=1, description="Bound on the root mean square of a half-size image's pixels, in [0, 1]."
    )
    central_steps: int = Field(
        2000, ge=1, le=100_000, description="Steps of the denoiser on the released central images, without privacy."
    )
    central_learning_rate: float = Field(
        3e-4, ge=1e-8, le=1, description="Learning rate of Adam on central images, and on those drawn from moments."
    )
    moments_fraction: float = Field(
        0.0,
        ge=0,
        le=0.9,
        description="Budget's share for the recipe `moments` as a start, in place of central images; 0: none.",
    )
    moments_steps: int = Field(
        2000, ge=1, le=1_000_000, description="Steps of the denoiser on images that the moments draw, without privacy."
    )
    moments_batch: int = Field(128, ge=1, le=65_536, description="Images in a step on images that the moments draw.")
    start_sigma: float = Field(
        0.0,
        ge=0,
        le=80,
        description="With moments, drawing begins at an image of its class's Gaussian plus noise of this level (images "
        "in [-1, 1]), and the denoiser learns no higher one; 0: it begins at noise alone.",
    )
    evaluation_samples: EvaluationSamples = 30_000

    def check(self) -> None:
        super().check()
        if self.guidance > 0 and self.label_drop == 0:
            raise self.refusal("guidance", "it compares with images of any class: train with a label_drop such as 0.1")
        if self.central_images and self.central_fraction == 0:
            raise self.refusal("central_fraction", "central images cost a share of the budget: give one above 0")
        if self.moments_fraction and self.central_images:
            raise self.refusal("moments_fraction", "release either moments or central images first")
        if self.start_sigma and not self.moments_fraction:
            raise self.refusal(
                "start_sigma", "without moments there is no image to begin with: give a moments_fraction"
            )

    @property
    def drawing_seconds(self) -> float:
        return 5e-3 * self.sampling_steps

    def moments(self, budget_nano: int, facts: PublicFacts) -> tuple[MomentsConfig, int]:
        """Return the warm start that the moments' share of a budget pays for, and that share in nano-units."""
        share_nano = math.floor(self.moments_fraction * budget_nano)
        return config_that_follows({}, mu_of(share_nano), facts), share_nano

    def half_size(self, facts: PublicFacts) -> tuple[int, int]:
        """Return height and width of a central image."""
        return -(-facts.height // 2), -(-facts.width // 2)

    def central_bound(self, facts: PublicFacts) -> float:
        """Return C, the largest L2 norm of one unit's half-size image: the sensitivity of central images."""
        height, width = self.half_size(facts)
        return self.central_clip * math.sqrt(facts.channels * height * width)


# Adam, its learning rate, clip and average are those of Dockhorn et al. 2023 (arXiv:2210.09929); so are, in
# fashion_mnist, batch, epochs and network. K = 8 gives nearly all that their K = 32 gives, for a quarter of the time.
_DPDM = {"optimiser": "adam", "learning_rate": 3e-4, "clip": 1.0, "ema": 0.999}
_FASHION_MNIST = {**_DPDM, "expected_batch": 4096, "epochs": 300.0, "multiplicity": 8}
_MOMENTS = {"moments_fraction": 0.15, "start_sigma": 1.0}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {**_DPDM, "expected_batch": 1024, "epochs": 50.0, "multiplicity": 4, "features": 16, "blocks": 1},
    "fashion_mnist": _FASHION_MNIST,
    "fashion_mnist_feta": {**_FASHION_MNIST, "central_images": 5},
    "fashion_mnist_moments": {**_FASHION_MNIST, **_MOMENTS, "epochs": 150.0, "moments_steps": 20_000},
}


def plan_from_options(options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    """Turn a budget into the noise of the central images, where there are any, and of the denoiser's training.

    Raises:
        InvalidParameter: an option does not fit the dataset or the budget.
    """
    config = read_options(DpDiffusionConfig, options, PRESETS)
    height, width = -(-facts.height // config.patch), -(-facts.width // config.patch)  # of the U-Net's input
    check_basis(config, denoiser_layers(height, width, config.blocks))
    first: list[Stage] = []
    if config.central_images:
        probability = min(1.0, config.central_batch / facts.units_declared)
        share_nano = math.floor(config.central_fraction * budget_nano)
        first = [poisson_stage(CENTRAL, probability, config.central_images, privacy_filter, share_nano)]
    if config.moments_fraction:
        first = warm_start_stages(warm_start_noise(*config.moments(budget_nano, facts)), privacy_filter)
    paid_nano = sum(stage.cost_nano for stage in first)
    steps = steps_stage(config, privacy_filter, budget_nano - paid_nano, facts)
    notes = [*steps_notes(config, steps, facts)]
    if config.multiplicity > 1:
        notes.append(
            f"Each record is seen at {config.multiplicity} noise levels, and the gradient of their mean loss is "
            "clipped; that costs time and no budget."
        )
    if config.moments_fraction:
        notes.append(
            f"Before that, noisy means and covariances of the classes are released for {paid_nano / budget_nano:.0%} "
            "of the budget, and the denoiser learns from images that they draw."
        )
    if config.central_images:
        height, width = config.half_size(facts)
        notes.append(
            f"Before that, {config.central_images} noisy mean images of {height} x {width} pixels are released of each "
            f"class, for {paid_nano / budget_nano:.0%} of the budget, and the denoiser learns to draw them. Their "
            "brightness is right where classes are about equally frequent."
        )
    return Plan(
        recipe="dp_diffusion",
        config=config,
        stages=(*first, steps),
        budget_nano=budget_nano,
        notes=tuple(notes),
        facts={
            "noise_levels_per_record": config.multiplicity,
            **({"central_images": config.central_images} if config.central_images else {}),
            **(
                {"noise_stddev": {stage.name: stage.noise_stddev for stage in first}} if config.moments_fraction else {}
            ),
            **steps_facts(config, steps, facts),
        },
    )


RECIPE = Recipe(
    name="dp_diffusion",
    title="DP diffusion",
    publishes="generator",
    releases="A generator of labelled images, a diffusion model; drawing from it is free.",
    config=DpDiffusionConfig,
    plan=plan_from_options,
    units=frozenset(UNITS),
    presets=PRESETS,
)
