"""The recipes that can be planned, by their names in jobs.

A recipe is two files: `privacy/plans/NAME.py` with its options and its `RECIPE`, and `workers/recipes/NAME.py` with its
training loop. To add one, add its name to `NAMES`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from privacy.accounting.filter import Filter
from privacy.errors import InvalidParameter
from privacy.plans.options import ClassFractionsConfig
from privacy.plans.plan import Plan, PublicFacts, Recipe, stage_from_json

NAMES = (  # in order of recommendation, as docs/how-to/choose-a-recipe.md explains it
    "moments",
    "dp_classifier",
    "dp_diffusion",
    "select_public",
    "datalens",
    "dpgan",
    "class_histogram",
)

NAMED_MAX = 6  # classes that a note names
STATE_IT = (
    "If classes differ in size, state --class-fractions (option class_fractions): plans then list those that will be "
    "lost."
)
TRY_IT = "The smallest usable class is unknown for this recipe: run a preview with --class-fractions first."


RECIPES: dict[str, Recipe] = {name: import_module(f"privacy.plans.{name}").RECIPE for name in NAMES}


def build_plan(
    recipe: str, options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts
) -> Plan:
    """Plan a training from public parameters.

    Args:
        budget_nano: upper limit of the price, in nano-units of mu^2.

    Raises:
        InvalidParameter: a recipe or option is unknown, or does not fit the dataset or the budget; or the recipe does
            not bound the contribution of the account's unit.
    """
    known = RECIPES.get(recipe)
    if known is None:
        raise InvalidParameter("recipe", recipe, f"choose one of {', '.join(RECIPES)}")
    if facts.unit not in known.units:
        able = [name for name, other in RECIPES.items() if facts.unit in other.units]
        raise InvalidParameter(
            "recipe",
            recipe,
            f"the account protects {facts.protects}, and this recipe does not bound their joint contribution: a "
            "subject with many records could change a release by more than its noise hides. This recipe needs an "
            f"account whose unit is the record; for this account, choose one of {', '.join(able)}",
        )
    return _with_class_balance(known.plan(options, privacy_filter, budget_nano, facts), facts)


def useful_from_nano(plan: Plan) -> int:
    """Return the part of a plan's price that must be charged before anything useful can be published."""
    start = RECIPES[plan.recipe].start(plan)
    return sum(stage.price_of(start[stage.name]) for stage in plan.stages if stage.name in start)


def plan_from_json(document: Mapping[str, Any]) -> Plan:
    """Read the result of `Plan.to_json`.

    Raises:
        InvalidParameter: an event or a parameter is out of range, the recipe is unknown, or the price differs from that
            of the stages.
        KeyError: a field is missing.
    """
    known = RECIPES.get(document["recipe"])
    if known is None:
        raise InvalidParameter("recipe", document["recipe"], "this version has no such recipe")
    facts = dict(document["facts"])
    plan = Plan(
        recipe=document["recipe"],
        config=known.config(**document["config"]),
        stages=tuple(stage_from_json(stage, facts) for stage in document["stages"]),
        budget_nano=int(document["budget_nano"]),
        notes=tuple(document["notes"]),
        facts=facts,
    )
    if plan.cost_nano != document["cost_nano"]:
        raise InvalidParameter("cost_nano", document["cost_nano"], f"the stages together cost {plan.cost_nano}")
    return plan


def _with_class_balance(plan: Plan, facts: PublicFacts) -> Plan:
    """Add a note on classes that will be lost in the noise, or on the assumption of classes of equal size."""
    shares = plan.config.stated_fractions(facts.classes)
    if not isinstance(plan.config, ClassFractionsConfig) or len(facts.classes) < 2:
        return plan
    limit, units = RECIPES[plan.recipe].smallest_class(plan, facts), f"{facts.unit}s"
    known = {} if limit is None else {"smallest_visible_class": limit}
    if shares is None:
        note = f"This plan assumes about {facts.units_per_class:,.0f} {units} per class."
        if limit is not None:
            note += f" Classes with fewer than about {limit:,} will be lost in the noise."
        note += f" {STATE_IT if known else TRY_IT}"
        return dataclasses.replace(plan, notes=(*plan.notes, note), facts=plan.facts | known)
    if limit is None:
        return dataclasses.replace(plan, notes=(*plan.notes, f"Class fractions are stated. {TRY_IT}"))
    expected = {name: share * facts.units_declared for name, share in shares.items()}
    drowned = sorted((name for name, count in expected.items() if count < limit), key=lambda name: expected[name])
    said = plan.facts | known | {"drowned_classes": drowned}
    if drowned:
        named = ", ".join(f"{name} (about {expected[name]:,.0f} {units})" for name in drowned[:NAMED_MAX])
        named += f" and {len(drowned) - NAMED_MAX} more" if len(drowned) > NAMED_MAX else ""
        warning = (
            f"Lost in the noise: {named}. At this budget, a class needs about {limit:,} {units}. Smaller classes will "
            "show static or resemble other classes, even if the overall accuracy is good. Raise epsilon, add records "
            "of the class, or merge classes."
        )
        return dataclasses.replace(plan, notes=(warning, *plan.notes), facts=said)
    note = (
        f"If the limit is reached, every class has the {limit:,} {units} that a class needs, by the stated fractions."
    )
    return dataclasses.replace(plan, notes=(*plan.notes, note), facts=said)
