"""The Gaussian mechanism: its trade-off against an oracle, dp-accounting and published tables."""

import math

import dp_accounting.gaussian_mechanism
import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.accounting.gaussian import gaussian_epsilon, gaussian_log_delta, gaussian_mu

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
