"""Plan of the dpgan recipe: a GAN whose discriminator learns from private records by private steps alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from models.sizes import discriminator_layers
from privacy.accounting.filter import Filter
from privacy.errors import InvalidParameter
from privacy.plans.options import check_values, read_options
from privacy.plans.plan import Plan, PublicFacts, Recipe
from privacy.plans.private_steps import StepsConfig, check_basis, steps_facts, steps_notes, steps_stage
from privacy.units import UNITS


@dataclasses.dataclass(frozen=True)
class DpGanConfig(StepsConfig):
    """Public parameters of one GAN. Of `StepsConfig`, all speaks of the discriminator, but `ema` of the generator.

    Attributes:
        features: channels after the discriminator's first convolution.
        latent: numbers in the generator's latent.
        generator_learning_rate: of its Adam.
        generator_batch: images in one of its steps.
        discriminator_steps: n_D, discriminator steps before each generator step; at the start, where it adapts.
        discriminator_steps_max: up to which n_D may double.
        accuracy_floor: n_D doubles when the discriminator recognises fewer generated images than this share; 0: never.
        patience: generator steps for which n_D stays at least.
        evaluation_samples: images that are drawn to measure how useful they are.
    """

    features: int = 64
    latent: int = 128
    generator_learning_rate: float = 2e-4
    generator_batch: int = 512
    discriminator_steps: int = 1
    discriminator_steps_max: int = 512
    accuracy_floor: float = 0.6
    patience: int = 200
    evaluation_samples: int = 30_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_values(self, integers=_INTEGERS, numbers=_NUMBERS)
        if self.multiplicity != 1:
            raise InvalidParameter("multiplicity", self.multiplicity, "a discriminator sees one view of each record")
        if self.discriminator_steps_max < self.discriminator_steps:
            raise InvalidParameter(
                "discriminator_steps_max",
                self.discriminator_steps_max,
                f"it is at least the {self.discriminator_steps} discriminator_steps of the start",
            )

    @property
    def drawing_seconds(self) -> float:
        """As in every recipe."""
        return 4e-4


_INTEGERS = {
    "features": (4, 512),
    "latent": (1, 1024),
    "generator_batch": (1, 65_536),
    "discriminator_steps": (1, 10_000),
    "discriminator_steps_max": (1, 10_000),
    "patience": (1, 100_000),
    "evaluation_samples": (1, 1_000_000),
}
_NUMBERS = {"generator_learning_rate": (1e-8, 1.0), "accuracy_floor": (0.0, 1.0)}
# Adam, learning rates, batch, clip and adaptation are those of Bie, Kamath & Zhang 2023 (arXiv:2302.02936).
_BIE = {"optimiser": "adam", "learning_rate": 2e-4, "clip": 1.0, "ema": 0.999}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {**_BIE, "expected_batch": 512, "epochs": 200.0, "features": 32, "latent": 64},
    "fashion_mnist": {**_BIE, "expected_batch": 512, "epochs": 1450.0, "features": 64, "latent": 128},
}


def plan_from_options(options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    """Turn a budget into the noise of a discriminator's training.

    Raises:
        InvalidParameter: an option does not fit the dataset or the budget.
    """
    config = read_options(DpGanConfig, options, PRESETS, "dpgan")
    check_basis(config, discriminator_layers(facts.height, facts.width))
    stage = steps_stage(config, privacy_filter, budget_nano, facts)
    notes = (
        *steps_notes(config, stage, facts),
        "Only the discriminator sees private images. The generator learns from the discriminator, whose every step is "
        "noisy, so drawing from it costs nothing.",
        _adaptation(config),
    )
    return Plan(
        recipe="dpgan",
        config=config,
        stages=(stage,),
        budget_nano=budget_nano,
        notes=notes,
        facts={
            "discriminator_steps": config.discriminator_steps,
            "adaptive": config.accuracy_floor > 0,
            **steps_facts(config, stage, facts),
        },
    )


def _adaptation(config: DpGanConfig) -> str:
    start = f"The generator takes a step after every {config.discriminator_steps:,} of the discriminator's"
    if config.accuracy_floor == 0:
        return f"{start}."
    return (
        f"{start} at first, and after twice as many (up to {config.discriminator_steps_max:,}) whenever the "
        f"discriminator recognises fewer than {config.accuracy_floor:.0%} of generated images; no private image has a "
        "part in that."
    )


RECIPE = Recipe(
    name="dpgan",
    title="DP-GAN",
    publishes="generator",
    config=DpGanConfig,
    plan=plan_from_options,
    module="workers.recipes.dpgan",
    units=frozenset(UNITS),
    presets=PRESETS,
)
