"""A recipe as small as one can be, with its plan and its trainer in one file: it releases noisy numbers of records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from privacy.accounting.calibration import stddev_for
from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import Filter
from privacy.plans.options import RecipeConfig, read_options
from privacy.plans.plan import Plan, PublicFacts, Recipe, Stage
from workers.recipes.class_histogram import ClassHistogram
from workers.recipes.interface import Piece, Run


class ToyConfig(RecipeConfig):
    rounds: int = Field(1, ge=1, le=100, description="Noisy sums that are released.")


def plan_toy(options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    config = read_options(ToyConfig, options, {"default": {}})
    stddev = stddev_for(1.0, budget_nano, config.rounds, discrete=True)
    event = GaussianEvent.of_discrete_noise(1.0, stddev, config.rounds)
    stage = Stage("sums", event, privacy_filter.price_nano(event), stddev)
    facts_for_people = {"protects": facts.protects, "noise_stddev": {"sums": stddev}}
    return Plan("toy", config, (stage,), budget_nano, notes=(), facts=facts_for_people)


@dataclass(frozen=True)
class Sums:
    sums: tuple[int, ...]
    stddev: float
    units_declared: int

    def save(self, directory: Path) -> None:
        """Write them as what can be published, a histogram."""
        rounds = tuple(f"round {number}" for number in range(len(self.sums)))
        ClassHistogram(rounds, self.sums, self.stddev, self.units_declared).save(directory)


def train(run: Run) -> Sums:
    stddev, rounds = run.plan.noise_stddev["sums"], run.plan.config_of(ToyConfig).rounds
    (stage,) = run.plan.stages
    run.pay(stage.event, stage.name)
    noise = run.noise("sums").discrete_gaussian(rounds, stddev)
    sums = tuple((len(run.data.private_labels) + noise).tolist())
    return Sums(sums, stddev, run.facts.units_declared)


def work(plan: Plan, _facts: PublicFacts) -> tuple[Piece, ...]:
    rounds = plan.config_of(ToyConfig).rounds
    return (Piece("sums", rounds, float(rounds)),)


RECIPE = Recipe(
    name="toy",
    title="Count the records",
    publishes="histogram",
    releases="Noisy counts of all records.",
    config=ToyConfig,
    plan=plan_toy,
    module=__name__,
    units=frozenset({"record"}),
)
