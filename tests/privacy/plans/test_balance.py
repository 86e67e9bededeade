"""Plans say which classes the noise drowns, by a balance that is stated, and change nothing else by it."""

import dataclasses
from typing import Any

import pytest

from privacy.accounting.filter import open_filter
from privacy.errors import InvalidParameter
from privacy.plans.moments import VISIBLE
from privacy.plans.options import ClassFractionsConfig
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import RECIPES, build_plan, plan_from_json

ACCOUNT = open_filter(1.0, 1e-5)
FACTS = PublicFacts(("normal", "sick"), 64, 64, 1, 2020, "record")
TRAINS_ON_CLASSES = [name for name, recipe in RECIPES.items() if issubclass(recipe.config, ClassFractionsConfig)]


def plan(recipe: str = "moments", facts: PublicFacts = FACTS, **options: Any) -> Plan:
    more = {"public_dataset_id": "ds_public"} if recipe == "select_public" else {}
    more |= {"teachers": 20} if recipe == "datalens" else {}
    return build_plan(recipe, more | options, ACCOUNT, ACCOUNT.capacity_nano, facts)


def test_twenty_records_of_two_thousand_and_twenty_are_warned_of_first() -> None:
    made = plan(class_fractions="normal=2000,sick=20")
    assert made.notes[0].startswith("Lost in the noise: sick (about 20 records)")
    assert made.facts["drowned_classes"] == ["sick"]
    assert not any("records per class" in note for note in made.notes)


def test_where_nothing_is_stated_even_classes_are_said_to_be_assumed() -> None:
    made = plan()
    assert any("assumes about 1,010 records per class. Classes with fewer than" in note for note in made.notes)
    assert "drowned_classes" not in made.facts


@pytest.mark.parametrize("recipe", TRAINS_ON_CLASSES)
@pytest.mark.parametrize("shares", ["", "2000,20"])
def test_what_is_not_known_of_a_recipe_is_said(recipe: str, shares: str) -> None:
    made = plan(recipe, class_fractions=shares)
    known = recipe == "moments"
    assert ("smallest_visible_class" in made.facts) == known
    assert any("unknown for this recipe" in note for note in made.notes) != known


@pytest.mark.parametrize("recipe", TRAINS_ON_CLASSES)
def test_a_stated_balance_changes_neither_noise_nor_price(recipe: str) -> None:
    even, uneven = plan(recipe), plan(recipe, class_fractions="2000,20")
    assert (uneven.stages, uneven.budget_nano) == (even.stages, even.budget_nano)
    assert uneven.config.with_values(class_fractions="") == even.config
    assert plan_from_json(uneven.to_json()) == uneven


def test_every_recipe_but_the_histogram_takes_a_balance() -> None:
    assert set(RECIPES) - set(TRAINS_ON_CLASSES) == {"class_histogram"}


@pytest.mark.parametrize("recipe", TRAINS_ON_CLASSES)
@pytest.mark.parametrize("shares", ["1", "normal=1", "1,0", "normal=1,well=2", "2000;20"])
def test_a_balance_that_does_not_fit_the_classes_is_refused(recipe: str, shares: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        plan(recipe, class_fractions=shares)
    assert refused.value.name == "class_fractions"


def test_a_class_shows_where_the_share_above_noise_does() -> None:
    """As of a data set whose classes all have so many records, which the warning of the whole plan is about."""
    limit = plan().facts["smallest_visible_class"]
    config = plan().config.model_dump()
    for units, visible in ((limit - 1, False), (limit, True)):
        facts = dataclasses.replace(FACTS, records_declared=2 * units)
        made = plan(facts=facts, **config)
        assert (made.facts["fraction_above_noise"] >= VISIBLE - 5e-4) == visible or made.facts[
            "fraction_above_noise"
        ] == pytest.approx(VISIBLE, abs=1e-3)


def test_more_budget_shows_smaller_classes() -> None:
    limits = []
    for epsilon in (0.3, 1.0, 3.0, 10.0):
        rich = open_filter(epsilon, 1e-5)
        limits.append(build_plan("moments", {}, rich, rich.capacity_nano, FACTS).facts["smallest_visible_class"])
    assert limits == sorted(limits, reverse=True)
    assert len(set(limits)) == len(limits)


def test_of_subjects_the_balance_is_one_of_subjects() -> None:
    facts = dataclasses.replace(FACTS, records_declared=9_000, unit="subject", subjects_declared=2020)
    assert "sick (about 20 subjects)" in plan(facts=facts, class_fractions="0.99,0.01").notes[0]


def test_many_drowned_classes_are_counted_and_the_rarest_named() -> None:
    names = tuple(f"class {number}" for number in range(20))
    facts = dataclasses.replace(FACTS, classes=names)
    made = plan(facts=facts, class_fractions=",".join(["10000", *map(str, range(19, 0, -1))]))
    assert "class 19 (about" in made.notes[0]
    assert "and 13 more" in made.notes[0]
    assert made.facts["drowned_classes"][0] == "class 19"


def test_one_class_has_no_balance() -> None:
    made = plan(facts=dataclasses.replace(FACTS, classes=("all",)))
    assert not any("class_fractions" in note for note in made.notes)


def test_shares_add_up_and_keep_their_order() -> None:
    stated = plan(class_fractions="sick=1,normal=3").config.stated_fractions(FACTS.classes)
    assert stated == {"normal": 0.75, "sick": 0.25}
    assert plan().config.stated_fractions(FACTS.classes) is None
    assert plan("class_histogram").config.stated_fractions(FACTS.classes) is None
