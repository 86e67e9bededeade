"""Plan of the dp_classifier recipe: a classifier trained by private gradient steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import Field

from models.sizes import CLASSIFIER_LAYERS
from obscura.wire.budgets import UNITS
from privacy.accounting.filter import Filter
from privacy.plans.options import EXTRACTOR_NAME, USUAL, read_options
from privacy.plans.plan import Plan, PublicFacts, Recipe
from privacy.plans.private_steps import StepsConfig, check_basis, plan_steps

Architecture = Literal["cnn", "resnet20", "wrn16_4", "wrn28_4", "scatter_linear", "scatter_cnn", "pretrained_linear"]
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
SCATTER_SIZE_MIN = 8


class DpClassifierConfig(StepsConfig):
    """Public parameters of one classifier."""

    groups = (("architecture", USUAL),)

    architecture: Architecture = Field(
        "scatter_linear",
        description="A ResNet or small CNN with GroupNorm; logistic regression or a small CNN on scattering "
        "coefficients (a fixed public transform of each image); or logistic regression on features of a public "
        "pretrained network.",
    )
    extractor: str = Field(
        "",
        max_length=64,
        description="Name of a public network that the operator installed; only for pretrained_linear.",
    )

    def check(self) -> None:
        super().check()
        if self.multiplicity != 1:
            raise self.refusal("multiplicity", "a classifier sees one view of each record: set it to 1")
        if self.architecture != "pretrained_linear" and self.extractor != "":
            raise self.refusal("extractor", "only the architecture pretrained_linear uses an extractor")
        if self.architecture == "pretrained_linear" and not EXTRACTOR_NAME.fullmatch(self.extractor):
            raise self.refusal(
                "extractor",
                "pretrained_linear needs the name of an extractor that the operator provides: at most 64 letters, "
                "digits, - and _",
            )


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {
        "architecture": "scatter_linear",
        "expected_batch": 8192,
        "epochs": 40.0,
        "clip": 0.1,
        "learning_rate": 12.0,
        "momentum": 0.9,
    },
    "cnn": {"architecture": "cnn", "expected_batch": 2048, "epochs": 30.0, "clip": 0.1, "learning_rate": 4.0},
    "resnet20": {"architecture": "resnet20", "expected_batch": 1000, "epochs": 50.0, "clip": 1.0, "learning_rate": 1.0},
    "wrn28_4": {"architecture": "wrn28_4", "expected_batch": 1000, "epochs": 50.0, "clip": 1.0, "learning_rate": 1.0},
}


def plan_from_options(options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    """Plan the training of a classifier, with noise that fits the budget."""
    config = read_options(DpClassifierConfig, options, PRESETS)
    size = min(facts.height, facts.width)
    if config.architecture.startswith("scatter") and size < SCATTER_SIZE_MIN:
        raise config.refusal("architecture", f"scattering needs images of at least {SCATTER_SIZE_MIN} pixels a side")
    check_basis(config, CLASSIFIER_LAYERS[config.architecture])
    stage, notes, shown = plan_steps(config, privacy_filter, budget_nano, facts)
    if config.extractor:
        notes.append(
            f"Features of each image come from the extractor {config.extractor}. The guarantee assumes that this "
            "network was trained on public data alone, with no image of this account: the operator vouches for that, "
            "no program can check it."
        )
    return Plan(
        recipe="dp_classifier",
        config=config,
        stages=(stage,),
        budget_nano=budget_nano,
        notes=tuple(notes),
        facts={"architecture": config.architecture, **shown},
    )


RECIPE = Recipe(
    name="dp_classifier",
    title="DP classifier",
    publishes="classifier",
    releases="A classifier's weights.",
    config=DpClassifierConfig,
    plan=plan_from_options,
    units=frozenset(UNITS),
    presets=PRESETS,
)
