"""Calibration: the smallest noise and the largest count, to the last nano-unit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.accounting.calibration import affordable_releases, stddev_for
from privacy.accounting.events import GaussianEvent
from privacy.accounting.filters import open_filter
from privacy.errors import InvalidParameter

names = st.sampled_from(["gdp", "rdp"])


@given(name=names, sensitivity=st.floats(1e-3, 1e4), budget_nano=st.integers(10**3, 10**9), count=st.integers(1, 1000))
def test_calibrated_noise_fits_and_less_does_not(name: str, sensitivity: float, budget_nano: int, count: int) -> None:
    account = open_filter(name, 3.0, 1e-5)  # type: ignore[arg-type]
    stddev = stddev_for(account, sensitivity, budget_nano, count)
    assert account.price_nano(GaussianEvent(sensitivity, stddev, count)) <= budget_nano
    assert account.unit_price_nano(GaussianEvent(sensitivity, stddev * (1 - 1e-12))) > budget_nano // count


@given(name=names, sensitivity=st.floats(1.0, 1e4), budget_nano=st.integers(10**3, 10**9), count=st.integers(1, 1000))
def test_calibrated_discrete_noise_fits(name: str, sensitivity: float, budget_nano: int, count: int) -> None:
    account = open_filter(name, 3.0, 1e-5)  # type: ignore[arg-type]
    stddev = stddev_for(account, sensitivity, budget_nano, count, discrete=True)
    assert account.price_nano(GaussianEvent.of_discrete_noise(sensitivity, stddev, count)) <= budget_nano
    assert stddev**2 == pytest.approx(stddev_for(account, sensitivity, budget_nano, count) ** 2 + 4)


def test_affordable_releases_fill_the_budget_and_no_more() -> None:
    account = open_filter("gdp", 1.0, 1e-5)
    event = GaussianEvent(2 * math.sqrt(200), 5000.0)
    n = affordable_releases(account, event, account.capacity_nano)
    assert (
        account.price_nano(replace(event, count=n))
        <= account.capacity_nano
        < account.price_nano(replace(event, count=n + 1))
    )
    assert affordable_releases(account, event, account.unit_price_nano(event) - 1) == 0
    assert affordable_releases(account, event, 0) == 0


def test_the_noise_of_a_whole_account_is_its_mu() -> None:
    account = open_filter("gdp", 1.0, 1e-5)
    assert stddev_for(account, 1.0, account.capacity_nano) == pytest.approx(1 / 0.268051, rel=1e-5)


@pytest.mark.parametrize("bad", [-1, 1.5, True, math.nan])
def test_budgets_are_whole_and_not_negative(bad: object) -> None:
    account = open_filter("gdp", 1.0, 1e-5)
    with pytest.raises(InvalidParameter):
        affordable_releases(account, GaussianEvent(1.0, 1.0), bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter):
        stddev_for(account, 1.0, bad)  # type: ignore[arg-type]


def test_a_budget_below_one_nano_unit_a_release_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="one nano-unit"):
        stddev_for(open_filter("gdp", 1.0, 1e-5), 1.0, 9, 10)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_sensitivities_are_positive_and_finite(bad: float) -> None:
    with pytest.raises(InvalidParameter):
        stddev_for(open_filter("gdp", 1.0, 1e-5), bad, 1000)
