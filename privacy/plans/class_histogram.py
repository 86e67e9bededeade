"""Plan of the class histogram: one noisy count per declared class, for a small part of the budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from obscura.wire.budgets import UNITS
from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import Filter, stddev_for
from privacy.errors import InvalidParameter
from privacy.plans.options import RecipeConfig
from privacy.plans.plan import Plan, PublicFacts, Recipe, Stage

COUNTS = "class_counts"
SENSITIVITY = 1.0  # see `histogram_event`


def plan_from_options(options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    """Plan one release of all class counts, with noise that fits the budget."""
    if options:
        raise InvalidParameter("options", sorted(options), "a class histogram has no options; epsilon sets its noise")
    stddev = stddev_for(SENSITIVITY, budget_nano)
    event = histogram_event(stddev)
    stage = Stage(COUNTS, event, privacy_filter.cost_nano(event), stddev)
    counted = "records" if facts.unit == "record" else "subjects (by one record each)"
    return Plan(
        recipe="class_histogram",
        config=RecipeConfig(),  # without options
        stages=(stage,),
        budget_nano=budget_nano,
        notes=(
            f"The {counted} of each declared class are counted once, with a standard error of {stddev:.3g}.",
            "Counts below zero are shown as zero; the unchanged noisy counts are also released, for unbiased sums.",
        ),
        facts={"classes": len(facts.classes), "standard_error": stddev, "noise_stddev": {COUNTS: stddev}},
    )


def histogram_event(stddev: float) -> GaussianEvent:
    """Return the event of releasing all class counts once, each with discrete Gaussian noise of parameter `stddev`.

    Privacy:
        Adjacency add/remove of one unit. A record has exactly one label, so one more record changes exactly one of the
        counts, by exactly 1. The vectors of counts of neighbours differ by a unit vector, whose L2 norm is 1, and every
        pair of neighbours attains this. If the unit is the subject, one record of each subject is counted. That choice
        depends on that subject alone (`privacy.mechanisms.partition`), so the vectors again differ by a unit vector.
    """
    return GaussianEvent.of_discrete_noise(SENSITIVITY, stddev)


RECIPE = Recipe(
    name="class_histogram",
    title="Class counts",
    publishes="histogram",
    releases="One noisy count for each declared class.",
    config=RecipeConfig,
    plan=plan_from_options,
    units=frozenset(UNITS),
    together=False,
)
