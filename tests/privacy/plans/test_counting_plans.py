"""Plans of class_histogram and select_public: noise from the budget, and refusals that teach."""

from collections.abc import Callable
from typing import Any

import pytest

from privacy.accounting.events import SMOOTHING_VARIANCE, GaussianEvent
from privacy.accounting.filter import open_filter
from privacy.errors import InvalidParameter
from privacy.plans.class_histogram import COUNTS, histogram_event
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import build_plan, plan_from_json
from privacy.plans.select_public import RELEASE_BYTES_MAX, VOTES, SelectPublicConfig, votes_event

CLASSES = ("cat", "dog")
FACTS = PublicFacts(CLASSES, 64, 64, 3, 3_000, "record")
ACCOUNT = open_filter(8.0, 1e-5)
EVENTS: dict[str, tuple[str, Callable[[float], GaussianEvent]]] = {
    "class_histogram": (COUNTS, histogram_event),
    "select_public": (VOTES, votes_event),
}


def plan(recipe: str = "select_public", epsilon: float = 3.0, facts: PublicFacts = FACTS, **options: Any) -> Plan:
    asked = {"public_dataset_id": "ds_public", **options} if recipe == "select_public" else options
    return build_plan(recipe, asked, ACCOUNT, ACCOUNT.nano_of(epsilon), facts)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.5, 8.0])
@pytest.mark.parametrize(("recipe", "count"), [("class_histogram", 1), ("select_public", 1), ("select_public", 2)])
def test_the_noise_is_the_smallest_that_the_budget_pays_for(recipe: str, count: int, epsilon: float) -> None:
    made = plan(recipe, epsilon, **({"iterations": count} if recipe == "select_public" else {}))
    (stage,), (name, event_of) = made.stages, EVENTS[recipe]
    stddev = made.facts["noise_stddev"][name]
    assert (stage.name, stage.event.count, stage.event.sensitivity) == (name, count, 1.0)
    assert stage.cost_nano == count * ACCOUNT.cost_nano(event_of(stddev)) == made.cost_nano <= made.budget_nano
    assert stage.event.stddev**2 == pytest.approx(stddev**2 - SMOOTHING_VARIANCE)
    assert count * ACCOUNT.cost_nano(event_of(stddev * 0.999)) > made.budget_nano
    assert made.facts.get("standard_error", stddev) == stddev
    assert plan_from_json(made.to_json()) == made


def test_a_histogram_has_no_options_and_costs_something() -> None:
    with pytest.raises(InvalidParameter, match="has no options"):
        plan("class_histogram", 0.1, stddev=0.1)
    with pytest.raises(InvalidParameter):
        build_plan("class_histogram", {}, ACCOUNT, 0, FACTS)


def test_a_release_has_bounded_bytes_and_the_plan_says_how_many() -> None:
    assert plan(choices=50).facts["release_bytes"] == 50 * 2 * 64 * 64 * 3
    large = PublicFacts(CLASSES, 256, 256, 3, 10**6, "record")
    assert plan(epsilon=8.0, facts=large).facts["release_bytes"] <= RELEASE_BYTES_MAX
    with pytest.raises(InvalidParameter, match="That is 170 images of this size for each of 2 classes"):
        plan(facts=large, choices=171)


def test_without_a_public_dataset_it_says_how_to_have_one() -> None:
    with pytest.raises(InvalidParameter, match="upload a folder of them as a dataset with visibility public"):
        plan(public_dataset_id="")


def test_a_public_dataset_needs_pictures_and_with_labels_every_class() -> None:
    config = SelectPublicConfig(public_dataset_id="ds_public")
    config.require_public(2, ("x",), CLASSES)
    with pytest.raises(InvalidParameter, match="fewer than two images"):
        config.require_public(1, CLASSES, CLASSES)
    labelled = config.with_values(public_labels=True)
    labelled.require_public(9, ("dog", "cat", "x"), CLASSES)
    with pytest.raises(InvalidParameter, match=r"no class named 'dog'.* or omit public_labels"):
        labelled.require_public(9, ("cat", "Dog"), CLASSES)
