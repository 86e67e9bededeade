"""The recipes that can be planned, by the name that jobs use.

A recipe is a folder of that name here, with its options and its `RECIPE` in `plan.py`, and one in `workers/recipes`,
with its training loop in `loop.py`. A new recipe is one more name in `NAMES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from privacy.accounting.filter import Filter
from privacy.errors import InvalidParameter
from privacy.plans.balance import with_class_balance
from privacy.plans.plan import Plan, PublicFacts, Recipe, stage_from_json

NAMES = (  # in order of recommendation, as docs/choosing.md explains it
    "moments",
    "dp_classifier",
    "dp_diffusion",
    "select_public",
    "datalens",
    "dpgan",
    "class_histogram",
)


def recipe_of(name: str) -> Recipe:
    """Return what `privacy.plans.NAME.plan` says of a recipe."""
    recipe: Recipe = import_module(f"privacy.plans.{name}").RECIPE
    return recipe


RECIPES = {name: recipe_of(name) for name in NAMES}


def build_plan(
    recipe: str, options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts
) -> Plan:
    """Plan a training from public parameters.

    Args:
        options: the recipe's options; unknown ones are refused.
        budget_nano: what the job may cost at most, in nano-units of mu^2.

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
    plan = known.plan(options, privacy_filter, budget_nano, facts)
    return with_class_balance(plan, facts, known.smallest_class)


def useful_from_nano(plan: Plan) -> int:
    """Return how much of a plan's price must have been charged before anything useful can be published."""
    start = RECIPES[plan.recipe].start(plan)
    return sum(stage.price_of(start[stage.name]) for stage in plan.stages if stage.name in start)


def plan_from_json(document: Mapping[str, Any]) -> Plan:
    """Read what `Plan.to_json` wrote.

    Raises:
        InvalidParameter: an event or a parameter is out of range, the recipe is not known, or the price is not that of
            the stages.
        KeyError: a field is missing.
    """
    known = RECIPES.get(document["recipe"])
    if known is None:
        raise InvalidParameter("recipe", document["recipe"], "no such recipe is known any more")
    facts = dict(document["facts"])
    plan = Plan(
        recipe=document["recipe"],
        config=known.config(**document["config"]),
        stages=tuple(stage_from_json(stage, facts) for stage in document["stages"]),
        budget_nano=int(document["budget_nano"]),
        notes=tuple(document["notes"]),
        facts=facts,
    )
    if plan.price_nano != document["price_nano"]:
        raise InvalidParameter("price_nano", document["price_nano"], f"the stages cost {plan.price_nano} together")
    return plan
