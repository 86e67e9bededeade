"""Plans of dpgan and dp_diffusion: what they cost, what they say, and what they refuse."""

import dataclasses
from typing import Any

import dp_accounting.pld
import pytest

from privacy.accounting.filter import open_filter
from privacy.plans import dp_diffusion, dpgan
from privacy.plans.dp_diffusion import DpDiffusionConfig
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.private_steps import ESTIMATORS
from privacy.plans.registry import RECIPES, build_plan, plan_from_json

FACTS = PublicFacts(tuple("0123456789"), 28, 28, 1, 60_000, "record")
ACCOUNT = open_filter(1.0, 1e-5)
PRESETS = [("dpgan", name) for name in dpgan.PRESETS] + [("dp_diffusion", name) for name in dp_diffusion.PRESETS]


def plan(recipe: str, facts: PublicFacts = FACTS, **options: Any) -> Plan:
    return build_plan(recipe, options, ACCOUNT, ACCOUNT.capacity_nano, facts)


@pytest.mark.parametrize(("recipe", "preset"), PRESETS)
def test_a_preset_keeps_to_its_epsilon_by_an_accountant_of_others(recipe: str, preset: str) -> None:
    made = plan(recipe, preset=preset)
    assert made.cost_nano == sum(stage.cost_nano for stage in made.stages) <= ACCOUNT.capacity_nano
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=2e-5)
    for stage in made.stages:
        priced = dataclasses.replace(stage.event, count=stage.event.count + stage.repeats)
        assert ACCOUNT.cost_nano(priced) == stage.cost_nano
        if stage.event.is_sampled:
            assert stage.paid_as_whole == priced.count > stage.event.count
        accountant.compose(priced.dp_event())
    assert 0.95 < accountant.get_epsilon(1e-5) <= 1.0
    assert plan_from_json(made.to_json()) == made


@pytest.mark.parametrize("recipe", ["dpgan", "dp_diffusion"])
def test_they_publish_generators_bound_subjects_and_name_every_estimator(recipe: str) -> None:
    assert RECIPES[recipe].publishes == "generator"
    subjects = dataclasses.replace(FACTS, unit="subject", subjects_declared=10_000)
    assert any("subject" in note for note in plan(recipe, subjects).notes)
    for estimator in ESTIMATORS:
        made = plan(recipe, estimator=estimator)
        assert made.facts["estimator"] == estimator
        assert made.stages == plan(recipe).stages


def test_the_bound_of_a_central_image_grows_with_its_pixels() -> None:
    config = DpDiffusionConfig(central_clip=0.5)
    assert config.half_size(FACTS) == (14, 14)
    assert config.central_bound(FACTS) == 0.5 * 14
    odd = dataclasses.replace(FACTS, height=7, width=9, channels=3)
    assert config.half_size(odd) == (4, 5)
    assert config.central_bound(odd) == pytest.approx(0.5 * 60**0.5)
