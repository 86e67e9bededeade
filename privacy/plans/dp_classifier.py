"""Plan of the dp_classifier recipe: a classifier whose every gradient step is private."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from privacy.accounting.filters import Filter
from privacy.errors import InvalidParameter
from privacy.plans.options import check_values, read_options
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.private_steps import StepsConfig, steps_facts, steps_notes, steps_stage

ARCHITECTURES = ("cnn", "resnet20", "wrn16_4", "wrn28_4", "scatter_linear", "scatter_cnn")
SCATTER_SIZE_MIN = 8


@dataclasses.dataclass(frozen=True)
class DpClassifierConfig(StepsConfig):
    """Public parameters of one classifier.

    Attributes:
        architecture: a small CNN, a ResNet or wide ResNet with GroupNorm, or logistic regression or a small CNN on
            scattering coefficients, which are a fixed public transform of each image.
        initial_seed: public seed of the initial weights.
    """

    architecture: str = "scatter_linear"
    initial_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_values(self, integers={"initial_seed": (0, 2**31 - 1)}, numbers={}, choices=_CHOICES)
        if self.multiplicity != 1:
            raise InvalidParameter("multiplicity", self.multiplicity, "a classifier sees one view of each record")


_CHOICES = {"architecture": ARCHITECTURES}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {
        "architecture": "scatter_linear",
        "expected_batch": 8192,
        "epochs": 40.0,
        "clip": 0.1,
        "learning_rate": 4.0,
        "momentum": 0.9,
    },
    "cnn": {"architecture": "cnn", "expected_batch": 2048, "epochs": 30.0, "clip": 0.1, "learning_rate": 4.0},
    "resnet20": {"architecture": "resnet20", "expected_batch": 1000, "epochs": 50.0, "clip": 1.0, "learning_rate": 1.0},
    "wrn28_4": {"architecture": "wrn28_4", "expected_batch": 1000, "epochs": 50.0, "clip": 1.0, "learning_rate": 1.0},
}


def plan_from_options(options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    """Turn a budget into the noise of a classifier's training.

    Raises:
        InvalidParameter: an option does not fit the dataset or the budget.
        EventRefused: the account's filter does not price Poisson-sampled steps.
    """
    config = read_options(DpClassifierConfig, options, PRESETS, "dp_classifier")
    size = min(facts.height, facts.width)
    if config.architecture.startswith("scatter") and size < SCATTER_SIZE_MIN:
        raise InvalidParameter(
            "architecture", config.architecture, f"scattering needs images of at least {SCATTER_SIZE_MIN} pixels a side"
        )
    stage = steps_stage(config, privacy_filter, budget_nano, facts)
    return Plan(
        recipe="dp_classifier",
        config=dataclasses.asdict(config),
        stages=(stage,),
        price_nano=stage.price_nano,
        budget_nano=budget_nano,
        notes=steps_notes(config, stage, facts),
        facts={"architecture": config.architecture, **steps_facts(config, stage, facts)},
    )
