"""A plan of moments fits its budget, whatever is declared, and says what it was asked."""

from __future__ import annotations

import dataclasses

from privacy.accounting.filter import open_filter
from privacy.plans.moments import MomentsConfig, plan_moments
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
