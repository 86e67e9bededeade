"""The plan of select_public: noise from the budget, choices from what was declared, and refusals that teach."""

from __future__ import annotations

from typing import Any

import pytest

from privacy.accounting.filter import open_filter
from privacy.errors import InvalidParameter
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import build_plan, plan_from_json
from privacy.plans.select_public import RELEASE_BYTES_MAX, VOTES, SelectPublicConfig, votes_event

CLASSES = ("cat", "dog")
FACTS = PublicFacts(CLASSES, 64, 64, 3, 3_000, "record")
ACCOUNT = open_filter(8.0, 1e-5)


def plan(epsilon: float = 3.0, facts: PublicFacts = FACTS, **options: Any) -> Plan:
    asked = {"public_dataset_id": "ds_public", **options}
    return build_plan("select_public", asked, ACCOUNT, ACCOUNT.nano_of(epsilon), facts)


@pytest.mark.parametrize("iterations", [1, 2])
def test_iterations_share_the_budget_and_leave_nothing_of_it(iterations: int) -> None:
    made = plan(iterations=iterations)
    (stage,) = made.stages
    assert (stage.name, stage.event.count, stage.event.sensitivity) == (VOTES, iterations, 1.0)
    assert stage.cost_nano == iterations * ACCOUNT.cost_nano(votes_event(made.noise_stddev[VOTES]))
    narrower = ACCOUNT.cost_nano(votes_event(made.noise_stddev[VOTES] * 0.999))
    assert stage.cost_nano <= made.budget_nano < iterations * narrower
    assert plan_from_json(made.to_json()) == made


def test_a_release_has_bounded_bytes_and_the_plan_says_how_many() -> None:
    assert plan(choices=50).facts["release_bytes"] == 50 * 2 * 64 * 64 * 3
    large = PublicFacts(CLASSES, 256, 256, 3, 10**6, "record")
    assert plan(8.0, large).facts["release_bytes"] <= RELEASE_BYTES_MAX
    with pytest.raises(InvalidParameter, match="at most 64 MiB of pictures: 170 of this size"):
        plan(facts=large, choices=171)


def test_without_a_public_dataset_it_says_how_to_have_one() -> None:
    with pytest.raises(InvalidParameter, match="upload a folder of them as a dataset with visibility public"):
        plan(public_dataset_id="")


def test_a_public_dataset_needs_pictures_and_with_labels_every_class() -> None:
    config = SelectPublicConfig(public_dataset_id="ds_public")
    config.require_public(2, ("x",), CLASSES)
    with pytest.raises(InvalidParameter, match="nothing to select"):
        config.require_public(1, CLASSES, CLASSES)
    labelled = config.with_values(public_labels=True)
    labelled.require_public(9, ("dog", "cat", "x"), CLASSES)
    with pytest.raises(InvalidParameter, match=r"no class named 'dog'.* or leave public_labels out"):
        labelled.require_public(9, ("cat", "Dog"), CLASSES)
