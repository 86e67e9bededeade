"""Filters: against an oracle in high precision, dp-accounting, and the published tables."""

from __future__ import annotations

import math
from fractions import Fraction

import dp_accounting
import dp_accounting.gaussian_mechanism
import dp_accounting.rdp
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.accounting.events import GaussianEvent, PoissonGaussianEvent
from privacy.accounting.filters import (
    NANO,
    RdpFilter,
    gaussian_epsilon,
    gaussian_log_delta,
    gaussian_mu,
    gaussian_order,
    open_filter,
)
from privacy.errors import EventRefused, InvalidParameter

DELTA = 1e-5
# epsilon -> exact mu at delta 1e-5, gain in queries over the conversion epsilon = RDP + log(1/delta)/(order - 1):
# with the improved conversion, and with the exact tradeoff.
TABLE = {
    0.2: (0.0613, 1.81, 2.18),
    1.0: (0.2681, 1.47, 1.73),
    3.0: (0.7191, 1.29, 1.49),
    8.0: (1.6660, 1.17, 1.32),
    10.0: (2.0004, 1.15, 1.29),
}


def oracle_log_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """log delta by the definition, with 400 digits."""
    with mpmath.workdps(400):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.log(mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2))


def papers_mu_squared(epsilon: float, delta: float) -> float:
    """mu^2 that fits into (epsilon, delta) by RDP + log(1/delta)/(order - 1) at its best order: mu^2/2 + mu L."""
    level = math.sqrt(2 * math.log(1 / delta))
    return (math.sqrt(level**2 + 2 * epsilon) - level) ** 2


@pytest.mark.parametrize(("epsilon", "mu"), [(epsilon, row[0]) for epsilon, row in TABLE.items()])
def test_exact_mu_of_the_table(epsilon: float, mu: float) -> None:
    # The table rounds up at epsilon 1: the value is 0.268051.
    assert gaussian_mu(epsilon, DELTA) == pytest.approx(mu, abs=6e-5)


@pytest.mark.parametrize("epsilon", TABLE)
def test_queries_relative_to_the_papers_conversion(epsilon: float) -> None:
    _, improved, exact = TABLE[epsilon]
    papers = papers_mu_squared(epsilon, DELTA)
    assert open_filter("gdp", epsilon, DELTA).capacity_nano / NANO / papers == pytest.approx(exact, abs=0.006)
    rdp = open_filter("rdp", epsilon, DELTA)
    assert rdp.order is not None
    assert 2 * rdp.capacity_nano / NANO / rdp.order / papers == pytest.approx(improved, abs=0.006)


def test_images_of_the_papers_setting() -> None:
    event = GaussianEvent(2 * math.sqrt(200), 5000.0)
    account = open_filter("gdp", 1.0, DELTA)
    assert math.floor(papers_mu_squared(1.0, DELTA) / event.mu_squared) == 1301
    assert account.capacity_nano // account.unit_price_nano(event) == 2245


@pytest.mark.parametrize(
    ("mu", "epsilon"),
    [
        (0.0613, 0.2),
        (0.2681, 1),
        (2.0, 10),
        (1e-4, 1e-3),
        (1e-6, 1e-6),
        (5, 0),
        (30, 1),
        (140, 1e4),
        (0.5, 300),
        (9, 2),
    ],
)
def test_log_delta_equals_the_oracle(mu: float, epsilon: float) -> None:
    assert gaussian_log_delta(mu, epsilon) == pytest.approx(float(oracle_log_delta(mu, epsilon)), rel=1e-12, abs=1e-10)


@given(epsilon=st.floats(1e-3, 100), log_delta=st.floats(-60, -0.1))
def test_mu_is_the_largest_that_fits(epsilon: float, log_delta: float) -> None:
    delta = math.exp(log_delta)
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-6)
    assert gaussian_epsilon(mu * (1 + 1e-6), delta) > epsilon
    assert gaussian_log_delta(mu, epsilon) <= math.log(delta)


@pytest.mark.parametrize("epsilon", TABLE)
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_capacity_never_promises_more_than_the_oracle_allows(epsilon: float, delta: float) -> None:
    capacity_nano = open_filter("gdp", epsilon, delta).capacity_nano
    with mpmath.workdps(60):
        spent = float(oracle_log_delta(mpmath.sqrt(mpmath.mpf(capacity_nano) / NANO), epsilon))
        beyond = float(
            oracle_log_delta(mpmath.sqrt(mpmath.mpf(capacity_nano) * (1 + mpmath.mpf("1e-6")) / NANO), epsilon)
        )
    assert spent < math.log(delta) < beyond


@pytest.mark.parametrize("epsilon", TABLE)
def test_gdp_agrees_with_dp_accounting(epsilon: float) -> None:
    sigma = dp_accounting.gaussian_mechanism.get_sigma_gaussian(epsilon, DELTA)
    assert 1 / sigma == pytest.approx(gaussian_mu(epsilon, DELTA), rel=1e-8)


@pytest.mark.parametrize("epsilon", TABLE)
def test_rdp_agrees_with_dp_accounting_at_its_order_and_its_order_is_the_best(epsilon: float) -> None:
    account = open_filter("rdp", epsilon, DELTA)
    assert account.order is not None
    sigma = math.sqrt(account.order / 2 / (account.capacity_nano / NANO))
    here = dp_accounting.rdp.RdpAccountant([account.order]).compose(dp_accounting.GaussianDpEvent(sigma))
    assert here.get_epsilon(DELTA) == pytest.approx(epsilon, rel=1e-7)
    everywhere = dp_accounting.rdp.RdpAccountant(1 + np.geomspace(0.02, 1e4, 4000))
    assert everywhere.compose(dp_accounting.GaussianDpEvent(sigma)).get_epsilon(DELTA) >= epsilon * (1 - 1e-3)


@pytest.mark.parametrize("name", ["gdp", "rdp"])
@pytest.mark.parametrize("epsilon", TABLE)
def test_epsilon_of_a_full_account_is_its_limit_and_of_nothing_is_zero(name: str, epsilon: float) -> None:
    account = open_filter(name, epsilon, DELTA)  # type: ignore[arg-type]
    assert account.epsilon_of(0) == 0.0
    assert account.epsilon_of(account.capacity_nano) == pytest.approx(epsilon, rel=1e-6)
    assert account.epsilon_of(account.capacity_nano) <= epsilon
    assert account.epsilon_of(2 * account.capacity_nano) > epsilon
    assert account.nano_of(epsilon) == account.capacity_nano


@pytest.mark.parametrize("name", ["gdp", "rdp"])
@given(amounts=st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)))
def test_epsilon_grows_with_what_is_spent(name: str, amounts: tuple[int, int]) -> None:
    account = open_filter(name, 3.0, DELTA)  # type: ignore[arg-type]
    low, high = sorted(amounts)
    assert account.epsilon_of(low) <= account.epsilon_of(high)


@given(
    sensitivity=st.floats(1e-3, 1e3),
    stddev=st.floats(1e-2, 1e6),
    count=st.integers(1, 10**6),
    name=st.sampled_from(["gdp", "rdp"]),
)
def test_prices_of_gaussian_releases_are_exact_and_rounded_up(
    sensitivity: float, stddev: float, count: int, name: str
) -> None:
    account = open_filter(name, 2.0, DELTA)  # type: ignore[arg-type]
    event = GaussianEvent(sensitivity, stddev, count)
    true = (Fraction(sensitivity) / Fraction(stddev)) ** 2 * NANO
    if account.order is not None:
        true *= Fraction(account.order) / 2
    assert 0 <= account.unit_price_nano(event) - true < 1
    assert account.price_nano(event) == count * account.unit_price_nano(event)
    assert account.price_nano(event) >= 1


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
@pytest.mark.parametrize(("probability", "multiplier"), [(1e-3, 0.8), (0.01, 1.0), (0.07, 6.0), (0.5, 3.0), (1.0, 2.0)])
def test_prices_of_sampled_releases_are_those_of_dp_accounting(
    epsilon: float, probability: float, multiplier: float
) -> None:
    account = open_filter("rdp", epsilon, DELTA)
    event = PoissonGaussianEvent(probability, multiplier, 100)
    accountant = dp_accounting.rdp.RdpAccountant([account.order]).compose(event.dp_event())
    expected = float(accountant.rdp[0]) * NANO
    assert expected <= account.price_nano(event) <= expected * (1 + 1e-8) + 200


def test_sampling_with_certainty_costs_what_a_plain_release_costs() -> None:
    account = open_filter("rdp", 1.0, DELTA)
    sampled, plain = PoissonGaussianEvent(1.0, 4.0), GaussianEvent(1.0, 4.0)
    assert account.unit_price_nano(sampled) == pytest.approx(account.unit_price_nano(plain), abs=2)


@pytest.mark.parametrize("order", [2.0, 3.4, 17.81, 40.0])
def test_the_sampled_divergence_covers_an_integral_in_high_precision(order: float) -> None:
    """At integer orders dp-accounting's sum is exact; at fractional ones it bounds a series from above."""
    q, z = 0.05, 1.5
    with mpmath.workdps(30):

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            base = mpmath.npdf(x, 0, z)
            return base * ((1 - q) + q * mpmath.npdf(x, 1, z) / base) ** order

        moment = mpmath.quad(integrand, [-25, -5, 0, 1, 2, 5, 10, 40, 90])
        expected = float(mpmath.log(moment) / (order - 1)) * NANO
    account = RdpFilter(20.0, DELTA, order)
    slack = 1e-8 if order.is_integer() else 1e-3
    assert expected < account.unit_price_nano(PoissonGaussianEvent(q, z)) < expected * (1 + slack) + 2


def test_gdp_refuses_sampled_events() -> None:
    with pytest.raises(EventRefused, match="rdp"):
        open_filter("gdp", 1.0, DELTA).price_nano(PoissonGaussianEvent(0.1, 1.0))


def test_an_event_with_infinite_divergence_is_refused() -> None:
    with pytest.raises(EventRefused):
        open_filter("rdp", 0.01, DELTA).price_nano(PoissonGaussianEvent(0.5, 1e-200))


@pytest.mark.parametrize("name", ["gdp", "rdp"])
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 1e5, True, "1", None])
def test_epsilons_out_of_range_are_refused(name: str, bad: object) -> None:
    with pytest.raises(InvalidParameter):
        open_filter(name, bad, DELTA)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter):
        open_filter(name, 1.0, DELTA).nano_of(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gdp", "rdp"])
@pytest.mark.parametrize("bad", [0.0, 1.0, -1e-5, 2.0, math.nan, math.inf, True])
def test_deltas_out_of_range_are_refused(name: str, bad: float) -> None:
    with pytest.raises(InvalidParameter) as caught:
        open_filter(name, 1.0, bad)  # type: ignore[arg-type]
    assert caught.value.name == "delta"


@pytest.mark.parametrize("bad", [-1, 1.0, True, math.nan])
def test_spent_amounts_are_whole_and_not_negative(bad: object) -> None:
    for name in ("gdp", "rdp"):
        with pytest.raises(InvalidParameter):
            open_filter(name, 1.0, DELTA).epsilon_of(bad)  # type: ignore[arg-type]


def test_a_budget_that_buys_nothing_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="buy nothing"):
        open_filter("gdp", 1e-6, 1e-12)


def test_an_rdp_account_reopens_at_its_own_order() -> None:
    opened = open_filter("rdp", 8.0, DELTA)
    raised = open_filter("rdp", 10.0, DELTA, order=opened.order)
    assert raised.order == opened.order != open_filter("rdp", 10.0, DELTA).order
    assert raised.capacity_nano > opened.capacity_nano


@pytest.mark.parametrize("bad", [1.0, 0.5, -3.0, math.nan, math.inf, 1e9])
def test_orders_out_of_range_are_refused(bad: float) -> None:
    with pytest.raises(InvalidParameter):
        open_filter("rdp", 1.0, DELTA, order=bad)


def test_orders_and_unknown_names_are_refused_where_they_mean_nothing() -> None:
    with pytest.raises(InvalidParameter):
        open_filter("gdp", 1.0, DELTA, order=2.0)
    with pytest.raises(InvalidParameter):
        open_filter("zcdp", 1.0, DELTA)  # type: ignore[arg-type]


def test_capacities_fit_into_64_bits() -> None:
    for epsilon, delta in [(1e4, 0.999999), (1e4, 1e-300)]:
        assert open_filter("gdp", epsilon, delta).capacity_nano < 2**63
        assert open_filter("rdp", epsilon, delta).capacity_nano < 2**63


def test_large_orders_are_integers() -> None:
    assert gaussian_order(0.2, DELTA).is_integer()
    assert gaussian_order(8.0, DELTA) == pytest.approx(3.87, abs=0.02)
