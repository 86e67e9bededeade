"""The filter: what an account holds and what things cost, against an oracle in high precision and dp-accounting."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import dp_accounting.pld
import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.accounting.events import GaussianEvent, PoissonGaussianEvent, dp_event
from privacy.accounting.filter import NANO, open_filter
from privacy.accounting.gaussian import EPSILON_MAX, gaussian_mu
from privacy.errors import InvalidParameter
from tests.privacy.accounting.test_gaussian import oracle_log_delta

DELTA = 1e-5
EPSILONS = (0.2, 1.0, 3.0, 8.0, 10.0)
# epsilon -> how many times the queries of the papers' conversion, epsilon = RDP + log(1/delta)/(order - 1), an exact
# trade-off allows.
GAINS = {0.2: 2.18, 1.0: 1.73, 3.0: 1.49, 8.0: 1.32, 10.0: 1.29}


def papers_mu_squared(epsilon: float, delta: float) -> float:
    """mu^2 that fits into (epsilon, delta) by RDP + log(1/delta)/(order - 1) at its best order: mu^2/2 + mu L."""
    level = math.sqrt(2 * math.log(1 / delta))
    return (math.sqrt(level**2 + 2 * epsilon) - level) ** 2


@pytest.mark.parametrize("epsilon", GAINS)
def test_queries_relative_to_the_papers_conversion(epsilon: float) -> None:
    """A tenth of delta is kept for what sampling makes possible; it costs about one query in a hundred."""
    gain = open_filter(epsilon, DELTA).capacity_nano / NANO / papers_mu_squared(epsilon, DELTA)
    assert 0.98 * GAINS[epsilon] < gain < GAINS[epsilon]
    assert open_filter(epsilon, DELTA, 0.0).capacity_nano / NANO / papers_mu_squared(epsilon, DELTA) == pytest.approx(
        GAINS[epsilon], abs=0.006
    )


def test_images_of_the_papers_setting() -> None:
    event = GaussianEvent(2 * math.sqrt(200), 5000.0)
    assert math.floor(papers_mu_squared(1.0, DELTA) / event.mu_squared_exact) == 1301
    assert open_filter(1.0, DELTA, 0.0).capacity_nano // open_filter(1.0, DELTA).cost_nano(event) == 2245
    assert open_filter(1.0, DELTA).capacity_nano // open_filter(1.0, DELTA).cost_nano(event) == 2217


@pytest.mark.parametrize("opened_with", [None, 0.5, 1.0])
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_capacity_never_promises_more_than_the_oracle_allows(epsilon, delta, opened_with):
    """Also where the limit was moved after opening; just beyond the capacity the promise is broken."""
    account = open_filter(epsilon, delta, None if opened_with is None else open_filter(opened_with, delta).rate)

    def spent(nano: mpmath.mpf) -> mpmath.mpf:
        d = mpmath.mpf(account.rate) * nano / NANO
        return d + (1 - d) * mpmath.exp(oracle_log_delta(mpmath.sqrt(nano / NANO), epsilon))

    with mpmath.workdps(60):
        capacity = mpmath.mpf(account.capacity_nano)
        assert spent(capacity) < delta < spent(capacity * (1 + mpmath.mpf("1e-6")))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_epsilon_of_a_full_account_is_its_limit_and_of_nothing_is_zero(epsilon: float) -> None:
    account = open_filter(epsilon, DELTA)
    assert account.epsilon_of(0) == 0.0
    assert account.epsilon_of(account.capacity_nano) == pytest.approx(epsilon, rel=1e-6)
    assert account.epsilon_of(account.capacity_nano) <= epsilon
    assert account.epsilon_of(2 * account.capacity_nano) > epsilon
    assert account.epsilon_of(20 * account.capacity_nano) == EPSILON_MAX  # all of delta is d: nothing is promised
    assert account.nano_of(epsilon) == account.capacity_nano


@given(amounts=st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)))
def test_epsilon_grows_with_what_is_spent(amounts: tuple[int, int]) -> None:
    account = open_filter(3.0, DELTA)
    low, high = sorted(amounts)
    assert account.epsilon_of(low) <= account.epsilon_of(high)


@given(sensitivity=st.floats(1e-3, 1e3), stddev=st.floats(1e-2, 1e6), count=st.integers(1, 10**6))
def test_prices_of_gaussian_releases_are_exact_and_rounded_up(sensitivity: float, stddev: float, count: int) -> None:
    account = open_filter(2.0, DELTA)
    one = account.cost_nano(GaussianEvent(sensitivity, stddev))
    assert 0 <= one - (Fraction(sensitivity) / Fraction(stddev)) ** 2 * NANO < 1
    assert account.cost_nano(GaussianEvent(sensitivity, stddev, count)) == count * one >= 1


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
@pytest.mark.parametrize(("probability", "multiplier"), [(1e-3, 0.8), (0.01, 1.0), (0.07, 6.0), (0.5, 3.0)])
def test_a_sampled_stage_costs_no_less_than_its_privacy_losses_show(epsilon, probability, multiplier):
    """At the account's delta and at others, by an accountant of others."""
    account = open_filter(epsilon, DELTA)
    event = PoissonGaussianEvent(probability, multiplier, 100)
    shown = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3).compose(dp_event(event))
    mu_squared = account.cost_nano(event) / NANO
    d = account.rate * mu_squared
    for epsilon_shown in (0.01, 0.3, 1.0, 3.0):
        paid = d + (1 - d) * math.exp(float(oracle_log_delta(math.sqrt(mu_squared), epsilon_shown)))
        assert shown.get_delta(epsilon_shown) <= paid * (1 + 1e-3)


def test_without_a_rate_sampling_saves_nothing() -> None:
    """As in accounts from before there was one: every event has a price, and Gaussian ones the same."""
    before = open_filter(1.0, DELTA, 0.0)
    sampled = PoissonGaussianEvent(0.01, 4.0, 7)
    assert before.cost_nano(sampled) >= 7 / 16 * NANO > open_filter(1.0, DELTA).cost_nano(sampled)
    assert before.capacity_nano == math.floor(gaussian_mu(1.0, DELTA) ** 2 * (1 - 1e-9) * NANO)


def test_a_release_that_tells_all_has_a_price_that_nobody_can_pay() -> None:
    assert open_filter(10.0, DELTA).cost_nano(PoissonGaussianEvent(0.5, 1e-6)) > 10**20


@pytest.mark.parametrize("raised_to", [1.1, 2.0, 5.0, 50.0])
@pytest.mark.parametrize("used", [0.0, 0.5, 1.0])
def test_a_raised_account_holds_nearly_what_one_opened_so_would(raised_to: float, used: float) -> None:
    """And no more than its epsilon and delta allow, with the d of all that was spent at the rate before."""
    opened = open_filter(1.0, DELTA)
    used_nano = int(used * opened.capacity_nano)
    raised, fresh = opened.at_limit(raised_to, used_nano), open_filter(raised_to, DELTA)
    assert 0.98 < raised.capacity_nano / fresh.capacity_nano < 1.002
    assert 0 < raised.rate <= opened.rate
    d = opened.rate * used_nano / NANO + raised.rate * (raised.capacity_nano - used_nano) / NANO
    assert d <= raised.d_of(raised.capacity_nano) * (1 + 1e-9)
    with mpmath.workdps(60):
        mu = mpmath.sqrt(mpmath.mpf(raised.capacity_nano) / NANO)
        assert d + (1 - d) * mpmath.exp(oracle_log_delta(mu, raised_to)) <= DELTA


@given(
    limits=st.lists(st.floats(0.1, 20.0), min_size=1, max_size=6),
    shares=st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6),
)
def test_rates_never_grow_and_every_amount_is_covered(limits: list[float], shares: list[float]) -> None:
    """However limits move: what was spent at each rate is below the d that the filter counts with."""
    account, spent_nano, d = open_filter(2.0, DELTA), 0, 0.0
    for limit, share in zip(limits, shares, strict=False):
        more_nano = int(share * max(account.capacity_nano - spent_nano, 0))
        spent_nano, d = spent_nano + more_nano, d + account.rate * more_nano / NANO
        assert d <= account.d_of(spent_nano) * (1 + 1e-9)
        moved = account.at_limit(limit, spent_nano)
        assert moved.rate <= account.rate
        assert moved.d_of(spent_nano) >= d * (1 - 1e-9)
        account = moved


NO_NUMBERS: list[Any] = [0.0, -1.0, math.nan, math.inf, True]
OUT_OF_RANGE: list[tuple[str, Callable[[Any], object], list[Any]]] = [
    ("epsilon", lambda bad: open_filter(bad, DELTA), [*NO_NUMBERS, 1e5, "1", None]),
    ("epsilon", open_filter(1.0, DELTA).nano_of, [*NO_NUMBERS, 1e5, "1", None]),
    ("delta", lambda bad: open_filter(1.0, bad), [*NO_NUMBERS, 1.0, 2.0]),
    ("rate", lambda bad: open_filter(1.0, DELTA, bad), [-1e-9, math.nan, math.inf]),
    ("nano", open_filter(1.0, DELTA).epsilon_of, [-1, 1.0, True, math.nan]),
]


@pytest.mark.parametrize(("name", "use", "bad"), [(name, use, bad) for name, use, each in OUT_OF_RANGE for bad in each])
def test_values_out_of_range_are_refused_by_name(name: str, use: Callable[[Any], object], bad: Any) -> None:
    with pytest.raises(InvalidParameter) as caught:
        use(bad)
    assert caught.value.name == name


def test_capacities_buy_something_and_fit_into_64_bits() -> None:
    for epsilon, delta in [(1e4, 0.999999), (1e4, 1e-300)]:
        assert open_filter(epsilon, delta).capacity_nano < 2**63
    with pytest.raises(InvalidParameter, match="buy nothing"):
        open_filter(1e-6, 1e-12)
