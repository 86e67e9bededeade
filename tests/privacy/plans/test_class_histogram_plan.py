"""The plan of a class histogram: one release whose noise follows from the budget."""

from __future__ import annotations

import pytest

from privacy.accounting.events import SMOOTHING_VARIANCE
from privacy.accounting.filter import open_filter
from privacy.errors import InvalidParameter
from privacy.plans.class_histogram import COUNTS, histogram_event
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import build_plan

FACTS = PublicFacts(("a", "b", "c"), 28, 28, 1, 60_000, "record")
ACCOUNT = open_filter(8.0, 1e-5)


def plan(epsilon: float, facts: PublicFacts = FACTS) -> Plan:
    return build_plan("class_histogram", {}, ACCOUNT, ACCOUNT.nano_of(epsilon), facts)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.5, 8.0])
def test_the_noise_is_the_smallest_that_the_budget_pays_for(epsilon: float) -> None:
    made = plan(epsilon)
    (stage,) = made.stages
    assert (stage.name, stage.event.count, stage.event.sensitivity) == (COUNTS, 1, 1.0)
    assert stage.cost_nano == ACCOUNT.cost_nano(stage.event) == made.cost_nano <= made.budget_nano
    stddev = made.facts["noise_stddev"][COUNTS]
    assert stage.event.stddev**2 == pytest.approx(stddev**2 - SMOOTHING_VARIANCE)
    assert ACCOUNT.cost_nano(histogram_event(stddev * 0.999)) > made.budget_nano
    assert made.facts["standard_error"] == stddev


def test_options_and_empty_budgets_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="has none"):
        build_plan("class_histogram", {"stddev": 0.1}, ACCOUNT, ACCOUNT.nano_of(0.1), FACTS)
    with pytest.raises(InvalidParameter):
        build_plan("class_histogram", {}, ACCOUNT, 0, FACTS)
