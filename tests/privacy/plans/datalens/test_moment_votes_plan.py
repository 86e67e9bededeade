"""The plan of the moment rounds: shares add up, the budget is used and never exceeded, nonsense is refused."""

from __future__ import annotations

import dataclasses

import pytest

from privacy.accounting.filter import open_filter
from privacy.errors import InvalidParameter
from privacy.plans.datalens.moment_votes import DETAILED, MomentVotesConfig, moment_rounds


@pytest.mark.parametrize("config", [MomentVotesConfig(), DETAILED])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 10.0])
def test_rounds_fill_the_budget_without_exceeding_it(config: MomentVotesConfig, epsilon: float) -> None:
    privacy_filter = open_filter(epsilon, 1e-5)
    rounds = moment_rounds(config, privacy_filter.capacity_nano, 10)
    price = sum(privacy_filter.price_nano(current.event) for current in rounds)
    assert 0.999 * privacy_filter.capacity_nano < price <= privacy_filter.capacity_nano
    assert len({current.name for current in rounds}) == len(rounds)
    for current in rounds:
        assert current.event.count == current.images
        assert current.event.sensitivity >= 2 * current.aggregation.dimension**0.5


@pytest.mark.parametrize(
    "fields",
    [
        {"teachers": 0},
        {"coefficients": 1},
        {"class_coefficients": 65},
        {"means_share": 0.0},
        {"means_share": float("nan")},
        {"means_share": 0.5},
        {"class_products_share": 0.1},
    ],
)
def test_nonsense_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(InvalidParameter):
        dataclasses.replace(MomentVotesConfig(), **fields)  # type: ignore[arg-type]


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidParameter):
        moment_rounds(MomentVotesConfig(), 10, 10)
