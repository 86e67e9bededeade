"""Plan of the dpgan recipe: a GAN whose discriminator uses private records only in private steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from models.sizes import discriminator_layers
from obscura.wire.budgets import UNITS
from privacy.accounting.filter import Filter
from privacy.plans.options import EvaluationSamples, read_options
from privacy.plans.plan import Plan, PublicFacts, Recipe
from privacy.plans.private_steps import StepsConfig, check_basis, plan_steps


class DpGanConfig(StepsConfig):
    """Public parameters of one GAN. The fields of `StepsConfig` apply to the discriminator, `ema` to the generator."""

    groups = (("features", "Generator"),)
    drawing_cost = 4e-4

    features: int = Field(64, ge=4, le=512, description="Channels after the discriminator's first convolution.")
    latent: int = Field(128, ge=1, le=1024, description="Size of the generator's latent vector.")
    generator_learning_rate: float = Field(
        2e-4, ge=1e-8, le=1, description="Learning rate of the generator's Adam; learning_rate is the discriminator's."
    )
    generator_batch: int = Field(512, ge=1, le=65_536, description="Number of images in a generator step.")
    discriminator_steps: int = Field(
        1, ge=1, le=10_000, description="Initial value of n_D, the discriminator steps before each generator step."
    )
    discriminator_steps_max: int = Field(512, ge=1, le=10_000, description="Upper limit to which n_D can double.")
    accuracy_floor: float = Field(
        0.6,
        ge=0,
        le=1,
        description="n_D doubles when the discriminator recognises a smaller share of generated images; 0: never.",
    )
    patience: int = Field(
        200, ge=1, le=100_000, description="Smallest number of generator steps between two changes of n_D."
    )
    evaluation_samples: EvaluationSamples = 30_000

    def check(self) -> None:
        super().check()
        if self.multiplicity != 1:
            raise self.refusal("multiplicity", "a discriminator sees one view of each record: set it to 1")
        if self.discriminator_steps_max < self.discriminator_steps:
            raise self.refusal(
                "discriminator_steps_max",
                f"it must be at least discriminator_steps, which is {self.discriminator_steps}",
            )


# Adam, learning rates, batch, clip and adaptation are from Bie, Kamath & Zhang 2023 (arXiv:2302.02936).
_BIE = {"optimiser": "adam", "learning_rate": 2e-4, "clip": 1.0, "ema": 0.999}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {**_BIE, "expected_batch": 512, "epochs": 200.0, "features": 32, "latent": 64},
    "fashion_mnist": {**_BIE, "expected_batch": 512, "epochs": 1450.0, "features": 64, "latent": 128},
}


def plan_from_options(options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    """Plan the training of a discriminator, with noise that fits the budget."""
    config = read_options(DpGanConfig, options, PRESETS)
    check_basis(config, discriminator_layers(facts.height, facts.width))
    stage, notes, shown = plan_steps(config, privacy_filter, budget_nano, facts)
    adaptation = f"Discriminator steps before each generator step: {config.discriminator_steps:,}"
    if config.accuracy_floor > 0:
        adaptation += (
            f" at first; the number doubles (up to {config.discriminator_steps_max:,}) whenever the discriminator "
            f"recognises fewer than {config.accuracy_floor:.0%} of generated images. This uses no private image"
        )
    notes += [
        "Only the discriminator sees private images. The generator learns from the discriminator, whose every step is "
        "noisy, so generating images costs nothing.",
        f"{adaptation}.",
    ]
    return Plan(
        recipe="dpgan",
        config=config,
        stages=(stage,),
        budget_nano=budget_nano,
        notes=tuple(notes),
        facts={
            "discriminator_steps": config.discriminator_steps,
            "adaptive": config.accuracy_floor > 0,
            **shown,
        },
    )


RECIPE = Recipe(
    name="dpgan",
    title="DP-GAN",
    publishes="generator",
    releases="A generator of labelled images, a GAN; generating images from it is free.",
    config=DpGanConfig,
    plan=plan_from_options,
    units=frozenset(UNITS),
    presets=PRESETS,
)
