"""The recipes that can be planned, by the name that jobs use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from privacy.accounting.filters import Filter
from privacy.errors import InvalidParameter
from privacy.plans import class_histogram, datalens, dp_classifier, dp_diffusion, dpgan
from privacy.plans.plan import Plan, PublicFacts
from privacy.units import Unit

__all__ = ["RECIPES", "PublicFacts", "Published", "Recipe", "build_plan", "useful_from_nano"]

Published = Literal["generator", "histogram", "classifier"]


def _first_release(plan: Plan) -> Mapping[str, int]:
    return {plan.stages[0].name: 1}


@dataclass(frozen=True)
class Recipe:
    """How a recipe is planned, and whom it protects.

    Attributes:
        plan: from the recipe's options, the account's filter, the budget in nano-units, and the declared facts.
        units: the units whose whole contribution every mechanism of the recipe bounds. A recipe whose sensitivity is
            that of one record (a clipped gradient per record, say) supports "record" alone: a subject's records would
            each add that much, and together more than its noise was made for.
        publishes: what its release is: images can be drawn from a generator only.
        start: from a plan, the releases (by stage) without which nothing useful can be published. They come first.
    """

    plan: Callable[[Mapping[str, Any], Filter, int, PublicFacts], Plan]
    units: frozenset[Unit]
    publishes: Published
    start: Callable[[Plan], Mapping[str, int]] = _first_release


RECIPES: dict[str, Recipe] = {
    "class_histogram": Recipe(
        class_histogram.plan_from_options, units=frozenset({"record", "subject"}), publishes="histogram"
    ),
    "datalens": Recipe(
        datalens.plan_from_options,
        units=frozenset({"record", "subject"}),
        publishes="generator",
        start=datalens.start_releases,
    ),
    "dp_classifier": Recipe(
        dp_classifier.plan_from_options, units=frozenset({"record", "subject"}), publishes="classifier"
    ),
    "dp_diffusion": Recipe(
        dp_diffusion.plan_from_options, units=frozenset({"record", "subject"}), publishes="generator"
    ),
    "dpgan": Recipe(dpgan.plan_from_options, units=frozenset({"record", "subject"}), publishes="generator"),
}


def build_plan(
    recipe: str, options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts
) -> Plan:
    """Plan a training from public parameters.

    Args:
        recipe: one of RECIPES.
        options: the recipe's options; unknown ones are refused.
        privacy_filter: of the account.
        budget_nano: what the job may cost at most, in the filter's nano-units.
        facts: what the owner declared about the dataset.

    Raises:
        InvalidParameter: an unknown recipe or option, one that does not fit the dataset or the budget, or a recipe
            that does not bound what the account's unit contributes.
    """
    known = RECIPES.get(recipe)
    if known is None:
        raise InvalidParameter("recipe", recipe, f"choose one of {', '.join(RECIPES)}")
    if facts.unit not in known.units:
        able = [name for name, other in RECIPES.items() if facts.unit in other.units]
        raise InvalidParameter(
            "recipe",
            recipe,
            f"the account protects {facts.protects}, and this recipe does not bound what they contribute together: a "
            "subject with many records could change a release by more than its noise hides. Until it bounds "
            f"contributions it trains on accounts whose unit is the record; here, choose one of {', '.join(able)}",
        )
    return known.plan(options, privacy_filter, budget_nano, facts)


def useful_from_nano(plan: Plan) -> int:
    """Return how much of a plan's price must have been charged before anything useful can be published."""
    start = RECIPES[plan.recipe].start(plan)
    return sum(-(-stage.price_nano * start.get(stage.name, 0) // stage.event.count) for stage in plan.stages)
