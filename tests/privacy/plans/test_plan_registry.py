"""Recipes by name."""

from __future__ import annotations

import pytest

from privacy.accounting.filter import open_filter
from privacy.errors import InvalidParameter
from privacy.plans import datalens
from privacy.plans.plan import PublicFacts
from privacy.plans.registry import RECIPES, build_plan, plan_from_json
from workers.recipes.registry import TRAINERS

FACTS = PublicFacts(("a", "b"), 28, 28, 1, 60_000, "record")
ACCOUNT = open_filter(1.0, 1e-5)


def test_a_recipe_is_planned_by_its_name() -> None:
    made = build_plan("datalens", {"teachers": 300}, ACCOUNT, ACCOUNT.capacity_nano, FACTS)
    own = datalens.plan_from_options({"teachers": 300}, ACCOUNT, ACCOUNT.capacity_nano, FACTS)
    assert (made.recipe, made.config, made.stages) == ("datalens", own.config, own.stages)
    assert set(own.notes) < set(made.notes), "what is said of the classes' balance is said of every recipe"


@pytest.mark.parametrize("recipe", ["", "DataLens", "gan", "datalens "])
def test_an_unknown_recipe_is_refused_with_the_known_ones(recipe: str) -> None:
    with pytest.raises(InvalidParameter, match=", ".join(RECIPES)):
        build_plan(recipe, {}, ACCOUNT, ACCOUNT.capacity_nano, FACTS)


def test_a_stored_price_is_that_of_the_stages() -> None:
    document = build_plan("class_histogram", {}, ACCOUNT, 1000, FACTS).to_json()
    with pytest.raises(InvalidParameter, match="price_nano"):
        plan_from_json({**document, "price_nano": document["price_nano"] + 1})


def test_what_can_be_planned_can_be_trained() -> None:
    assert set(RECIPES) == set(TRAINERS)
