"""Plans of moments: they fit their budget, and report visibility, detail and size of the images."""

from __future__ import annotations

import dataclasses

import pytest

from privacy.accounting.filter import open_filter
from privacy.errors import InvalidParameter
from privacy.plans.moments import SEEN, MomentsConfig, plan_moments
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import RECIPES, build_plan
from privacy.plans.warm_start import BY_CLASS, MEANS, POOLED
from tests.privacy.plans.test_datalens_plan import ACCOUNT, FACTS, assert_fits


def test_the_stages_are_the_releases_in_order_and_no_teacher_is_named() -> None:
    made = plan_moments(MomentsConfig(), ACCOUNT, ACCOUNT.capacity_nano, FACTS)
    assert_fits(made, ACCOUNT)
    assert [stage.name for stage in made.stages] == [MEANS, POOLED, BY_CLASS]
    assert made.facts.keys() == {"protects", "units_declared", "noise_stddev"}


def test_the_least_budget_and_the_fewest_records_are_enough() -> None:
    assert_fits(plan_moments(MomentsConfig(), ACCOUNT, 40, dataclasses.replace(FACTS, records_declared=1)), ACCOUNT)


def test_shares_that_add_up_to_a_hair_more_than_one_stay_in_the_budget() -> None:
    rich = open_filter(5000.0, 1e-5)
    assert_fits(plan_moments(MomentsConfig(mean_share=0.1 + 9e-10), rich, rich.capacity_nano, FACTS), rich)


# --- visible detail ---

TEN, NINE = tuple("abcdefghij"), tuple("abcdefghi")
ROWS = [  # those of docs/research/previews.md
    (TEN, 28, 1, 1437, 1, "blurred outlines"),
    (TEN, 28, 1, 1437, 10, "shapes"),
    (TEN, 28, 1, 3000, 10, "shapes"),
    (TEN, 28, 1, 60_000, 1, "shapes"),
    (NINE, 64, 3, 3178, 0.4, "nothing but colour"),
    (NINE, 64, 3, 3178, 1, "nothing but colour"),
    (NINE, 64, 3, 3178, 2, "colours and outlines"),
    (NINE, 64, 3, 3178, 3, "colours and outlines"),
    (NINE, 64, 3, 3178, 10, "colours and outlines"),
    (NINE, 64, 3, 1903, 4, "colours and outlines"),
    (TEN, 32, 3, 50_000, 10, "colours and outlines"),
]


@pytest.mark.parametrize(("classes", "side", "channels", "records", "epsilon", "seen"), ROWS)
def test_a_plan_says_first_what_was_seen(
    classes: tuple[str, ...], side: int, channels: int, records: int, epsilon: float, seen: str
) -> None:
    account = open_filter(float(epsilon), 1e-5)
    facts = PublicFacts(classes, side, side, channels, records, "record")
    plan = build_plan("moments", {}, account, account.capacity_nano, facts)
    assert plan.facts["what_people_see"] == seen
    assert plan.notes[0] == SEEN[seen]


def test_what_noise_drowns_is_called_drowned_alone() -> None:
    account = open_filter(0.1, 1e-5)
    facts = PublicFacts(NINE, 64, 64, 3, 300, "record")
    plan = build_plan("moments", {}, account, account.capacity_nano, facts)
    assert plan.notes[0].startswith("Noise drowns most")
    assert "what_people_see" not in plan.facts


# --- large images ---


def plan_of(recipe: str, side: int, classes: int = 2, epsilon: float = 1.0, **options: object) -> Plan:
    names = tuple(f"class {number}" for number in range(classes))
    budget = open_filter(epsilon, 1e-5)
    facts = PublicFacts(names, side, side, 3, 2_000, "record")
    return build_plan(recipe, options, budget, budget.capacity_nano, facts)


@pytest.mark.parametrize("recipe", sorted(set(RECIPES) - {"select_public"}))
def test_every_recipe_plans_for_the_largest_images(recipe: str) -> None:
    assert plan_of(recipe, 256).recipe == recipe


def test_a_plan_says_how_fine_the_detail_is_where_images_are_larger_than_it() -> None:
    assert any("about 21 pixels wide" in note and "40 x 40" in note for note in plan_of("moments", 256).notes)
    assert any("about 13 pixels wide" in note for note in plan_of("moments", 256, epsilon=8.0).notes)
    assert not any("pixels wide" in note for note in plan_of("moments", 40).notes)


def test_a_generator_that_is_too_large_is_refused_with_what_would_fit() -> None:
    with pytest.raises(InvalidParameter, match="declare smaller images, or ask for at most 68 components"):
        plan_of("moments", 256, classes=20, epsilon=8.0)
    assert plan_of("moments", 128, classes=10, epsilon=8.0).stages
