"""A recipe as small as one can be: it makes noisy numbers of records public."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import Filter, stddev_for
from privacy.plans.options import RecipeConfig, read_options
from privacy.plans.plan import Plan, PublicFacts, Recipe, Stage


class ToyConfig(RecipeConfig):
    rounds: int = Field(1, ge=1, le=100, description="Noisy sums that are released.")


def plan_toy(options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    config = read_options(ToyConfig, options, {"default": {}})
    stddev = stddev_for(1.0, budget_nano, config.rounds)
    event = GaussianEvent.of_discrete_noise(1.0, stddev, config.rounds)
    stage = Stage("sums", event, privacy_filter.cost_nano(event), stddev)
    facts_for_people = {"protects": facts.protects, "noise_stddev": {"sums": stddev}}
    return Plan("toy", config, (stage,), budget_nano, notes=(), facts=facts_for_people)


RECIPE = Recipe(
    name="toy",
    title="Count the records",
    publishes="histogram",
    releases="Noisy counts of all records.",
    config=ToyConfig,
    plan=plan_toy,
    units=frozenset({"record"}),
)
