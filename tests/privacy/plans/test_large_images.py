"""Images of up to 256 x 256 pixels: plans say how fine the detail is that is released, and what is too large."""

import pytest

from privacy.accounting.filter import open_filter
from privacy.errors import InvalidParameter
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import RECIPES, build_plan


def plan(recipe: str, side: int, classes: int = 2, epsilon: float = 1.0, **options: object) -> Plan:
    names = tuple(f"class {number}" for number in range(classes))
    budget = open_filter(epsilon, 1e-5)
    facts = PublicFacts(names, side, side, 3, 2_000, "record")
    return build_plan(recipe, options, budget, budget.capacity_nano, facts)


@pytest.mark.parametrize("recipe", sorted(set(RECIPES) - {"select_public"}))
def test_every_recipe_plans_for_the_largest_images(recipe):
    assert plan(recipe, 256).recipe == recipe


def test_a_plan_says_how_fine_the_detail_is_where_images_are_larger_than_it():
    assert any("about 21 pixels wide" in note and "40 x 40" in note for note in plan("moments", 256).notes)
    assert any("about 13 pixels wide" in note for note in plan("moments", 256, epsilon=8.0).notes)
    assert not any("pixels wide" in note for note in plan("moments", 40).notes)


def test_a_generator_that_is_too_large_is_refused_with_what_would_fit():
    with pytest.raises(InvalidParameter, match="declare smaller images, or ask for at most 68 components"):
        plan("moments", 256, classes=20, epsilon=8.0)
    assert plan("moments", 128, classes=10, epsilon=8.0).stages
