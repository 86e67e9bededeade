"""The Gaussian mechanism: its trade-off against an oracle, dp-accounting and published tables; and calibration."""

import math

import dp_accounting.gaussian_mechanism
import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import noise_multiplier_for, open_filter, stddev_for
from privacy.accounting.gaussian import gaussian_epsilon, gaussian_log_delta, gaussian_mu
from privacy.errors import InvalidParameter

DELTA = 1e-5
TABLE = {0.2: 0.0613, 1.0: 0.2681, 3.0: 0.7191, 8.0: 1.6660, 10.0: 2.0004}  # epsilon -> exact mu at delta 1e-5


def oracle_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """Return delta of a mu-GDP mechanism by its definition, with 400 digits."""
    with mpmath.workdps(400):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)


def oracle_log_delta(mu: float, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(400):
        return mpmath.log(oracle_delta(mu, epsilon))


@pytest.mark.parametrize(("epsilon", "mu"), TABLE.items())
def test_mu_is_that_of_the_table_and_of_dp_accounting(epsilon: float, mu: float) -> None:
    found = gaussian_mu(epsilon, DELTA)
    assert found == pytest.approx(mu, abs=6e-5)  # the table rounds up at epsilon 1: the value is 0.268051
    assert 1 / dp_accounting.gaussian_mechanism.get_sigma_gaussian(epsilon, DELTA) == pytest.approx(found, rel=1e-8)


ORACLE = [(0.0613, 0.2), (0.2681, 1), (2.0, 10), (1e-4, 1e-3), (1e-6, 1e-6), (5, 0), (30, 1), (140, 1e4), (0.5, 300)]


@pytest.mark.parametrize(("mu", "epsilon"), [*ORACLE, (9, 2)])
def test_log_delta_equals_the_oracle(mu: float, epsilon: float) -> None:
    assert gaussian_log_delta(mu, epsilon) == pytest.approx(float(oracle_log_delta(mu, epsilon)), rel=1e-12, abs=1e-10)


@given(epsilon=st.floats(1e-3, 100), log_delta=st.floats(-60, -0.1))
def test_mu_is_the_largest_that_fits(epsilon: float, log_delta: float) -> None:
    delta = math.exp(log_delta)
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-6)
    assert gaussian_epsilon(mu * (1 + 1e-6), delta) > epsilon
    assert gaussian_log_delta(mu, epsilon) <= math.log(delta)


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
