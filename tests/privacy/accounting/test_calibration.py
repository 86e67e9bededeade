"""Calibration: the smallest noise and the largest count, to the last nano-unit."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.accounting.calibration import noise_multiplier_for, stddev_for
from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import open_filter
from privacy.errors import InvalidParameter

ACCOUNT = open_filter(1.0, 1e-5)


@given(sensitivity=st.floats(1e-3, 1e4), budget_nano=st.integers(10**3, 10**9), count=st.integers(1, 1000))
def test_calibrated_noise_fits_and_less_does_not(sensitivity: float, budget_nano: int, count: int) -> None:
    stddev = stddev_for(sensitivity, budget_nano, count)
    assert ACCOUNT.cost_nano(GaussianEvent.of_discrete_noise(sensitivity, stddev, count)) <= budget_nano
    less = GaussianEvent.of_discrete_noise(sensitivity, stddev * (1 - 1e-12))
    assert ACCOUNT.cost_nano(less) > budget_nano // count
    assert stddev**2 == pytest.approx(sensitivity**2 * 10**9 / (budget_nano // count) + 4)


@pytest.mark.parametrize("bad", [-1, 1.5, True, math.nan])
def test_budgets_are_whole_and_not_negative(bad: object) -> None:
    with pytest.raises(InvalidParameter):
        noise_multiplier_for(ACCOUNT, 1.0, 1, bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter):
        stddev_for(1.0, bad)  # type: ignore[arg-type]


def test_sensitivities_are_positive_and_finite_and_a_release_costs_a_nano_unit() -> None:
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidParameter):
            stddev_for(bad, 1000)
    with pytest.raises(InvalidParameter, match="one nano-unit"):
        stddev_for(1.0, 9, 10)
