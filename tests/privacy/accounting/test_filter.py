"""The filter: capacities, prices, calibrated noise and odds, against arithmetic in high precision and dp-accounting."""

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import dp_accounting.pld
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from obscura.wire.wording import show_sure
from privacy.accounting.events import GaussianEvent, PoissonGaussianEvent, dp_event
from privacy.accounting.filter import (
    NANO,
    attacker_certainty_max,
    loss_bound,
    noise_multiplier_for,
    open_filter,
    stddev_for,
)
from privacy.accounting.gaussian import EPSILON_MAX, gaussian_mu
from privacy.errors import InvalidParameter
from tests.privacy.accounting.test_gaussian import oracle_log_delta

DELTA = 1e-5
EPSILONS = (0.2, 1.0, 3.0, 8.0, 10.0)
ACCOUNT = open_filter(1.0, DELTA)
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
NO_AMOUNTS: list[Any] = [-1, 1.0, 1.5, True, math.nan]
OUT_OF_RANGE: list[tuple[str, Callable[[Any], object], list[Any]]] = [
    ("epsilon", lambda bad: open_filter(bad, DELTA), [*NO_NUMBERS, 1e5, "1", None]),
    ("epsilon", ACCOUNT.nano_of, [*NO_NUMBERS, 1e5, "1", None]),
    ("delta", lambda bad: open_filter(1.0, bad), [*NO_NUMBERS, 1.0, 2.0]),
    ("rate", lambda bad: open_filter(1.0, DELTA, bad), [-1e-9, math.nan, math.inf]),
    ("nano", ACCOUNT.epsilon_of, NO_AMOUNTS),
    ("nano", lambda bad: loss_bound(ACCOUNT, bad), NO_AMOUNTS),
    ("budget_nano", lambda bad: noise_multiplier_for(ACCOUNT, 1.0, 1, bad), NO_AMOUNTS),
    ("budget_nano", lambda bad: stddev_for(1.0, bad), NO_AMOUNTS),
    ("sensitivity", lambda bad: stddev_for(bad, 1000), NO_NUMBERS),
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


# --- noise for a budget -----------------------------------------------------------------------------------------------


@given(sensitivity=st.floats(1e-3, 1e4), budget_nano=st.integers(10**3, 10**9), count=st.integers(1, 1000))
def test_calibrated_noise_fits_and_less_does_not(sensitivity: float, budget_nano: int, count: int) -> None:
    stddev = stddev_for(sensitivity, budget_nano, count)
    assert ACCOUNT.cost_nano(GaussianEvent.of_discrete_noise(sensitivity, stddev, count)) <= budget_nano
    less = GaussianEvent.of_discrete_noise(sensitivity, stddev * (1 - 1e-12))
    assert ACCOUNT.cost_nano(less) > budget_nano // count
    assert stddev**2 == pytest.approx(sensitivity**2 * 10**9 / (budget_nano // count) + 4)


def test_a_release_costs_a_nano_unit_at_least() -> None:
    with pytest.raises(InvalidParameter, match="one nano-unit"):
        stddev_for(1.0, 9, 10)


# --- odds -------------------------------------------------------------------------------------------------------------


LARGE_DELTA = 0.01
RUNS = 400_000


def normal_quantile(p: mpmath.mpf) -> mpmath.mpf:
    guess = -mpmath.sqrt(-2 * mpmath.log(p)) if p < 0.1 else mpmath.mpf(0)
    return mpmath.findroot(lambda x: mpmath.log(mpmath.ncdf(x)) - mpmath.log(p), guess)


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9, 1e-30])
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 3.0, 8.0])
def test_the_bound_equals_fifty_digits(epsilon: float, delta: float) -> None:
    opened = open_filter(epsilon, delta)
    with mpmath.workdps(50):
        capacity = mpmath.mpf(opened.capacity_nano) / NANO
        d = mpmath.mpf(opened.rate) * capacity
        shifted = mpmath.ncdf(normal_quantile((delta - d) / (1 - d)) - mpmath.sqrt(capacity))
        expected = mpmath.log(delta / ((1 - d) * shifted))
        assert expected <= loss_bound(opened) <= expected * (1 + mpmath.mpf("1e-8"))
        assert attacker_certainty_max(opened) == pytest.approx(float(1 / (1 + mpmath.exp(-expected))), rel=1e-8)


@pytest.mark.parametrize("delta", [0.3, 1e-2, 1e-5, 1e-12])
def test_it_is_above_epsilon_and_grows_with_what_may_be_spent(delta: float) -> None:
    for epsilon in (0.1, 1.0, 4.0):
        opened = open_filter(epsilon, delta)
        bounds = [loss_bound(opened, opened.capacity_nano * tenth // 10) for tenth in range(1, 11)]
        assert bounds[-1] == loss_bound(opened) > epsilon
        assert bounds == sorted(bounds)
        assert 0.5 < attacker_certainty_max(opened) < 1


def test_nothing_to_spend_teaches_nothing() -> None:
    assert (loss_bound(ACCOUNT, 0), attacker_certainty_max(ACCOUNT, 0)) == (0.0, 0.5)


def exceeded(losses: np.ndarray, bound: float) -> float:
    return float((losses > bound).mean())


ERROR = 4 * math.sqrt(LARGE_DELTA / RUNS)  # four standard errors
OPENED = open_filter(1.0, LARGE_DELTA)
MU = math.sqrt(OPENED.capacity_nano / NANO)


def test_one_gaussian_release_exceeds_the_bound_with_at_most_delta_and_epsilon_far_more_often() -> None:
    """The worst pair of one release, N(mu, 1) and N(0, 1): its loss at x is mu x - mu^2 / 2."""
    x = np.random.default_rng(1).normal(size=RUNS) + MU
    losses = MU * x - MU * MU / 2
    assert exceeded(losses, loss_bound(OPENED)) <= LARGE_DELTA + ERROR
    assert exceeded(losses, 1.0) > 4 * LARGE_DELTA  # epsilon itself is no such bound


def test_an_analyst_who_stops_when_the_loss_is_high_does_not_exceed_it_either() -> None:
    """Many small releases; the rest of the budget is left unspent once the loss is where the analyst wants it.

    The quantile of one release's loss would not do: this analyst exceeds it too often.
    """
    steps, runs, rng = 400, 40_000, np.random.default_rng(2)
    error = 4 * math.sqrt(LARGE_DELTA / runs)
    loss, highest = np.zeros(runs), np.zeros(runs)
    for _ in range(steps):
        loss += rng.normal(size=runs) * MU / math.sqrt(steps) + MU * MU / steps / 2
        np.maximum(highest, loss, out=highest)
    quantile_of_one = MU * MU / 2 - MU * float(normal_quantile(mpmath.mpf(LARGE_DELTA)))
    assert exceeded(highest, loss_bound(OPENED)) <= LARGE_DELTA + error
    assert exceeded(highest, quantile_of_one) > LARGE_DELTA + error


def test_a_release_that_tells_only_the_tail_attains_it() -> None:
    """With probability d it tells all, else only that x lies above a threshold: delta in all, and none is smaller."""
    d, rng = OPENED.d_of(OPENED.capacity_nano), np.random.default_rng(3)
    threshold = MU - float(normal_quantile(mpmath.mpf((LARGE_DELTA - d) / (1 - d))))
    with_unit = d + (1 - d) * float((rng.normal(size=8 * RUNS) + MU > threshold).mean())
    without = (1 - d) * float((rng.normal(size=8 * RUNS) > threshold).mean())
    assert with_unit == pytest.approx(LARGE_DELTA, rel=0.03)
    assert math.log(with_unit / without) == pytest.approx(loss_bound(OPENED), rel=0.05)


def odds_in_words(epsilon: float) -> str:
    """A row of docs/how-to/choose-a-budget.md: how often the best guess is right, and how sure an attacker becomes."""
    opened = open_filter(epsilon, 1e-5)
    mu, d = math.sqrt(opened.capacity_nano / NANO), opened.d_of(opened.capacity_nano)
    right = d + (1 - d) * float(mpmath.ncdf(mu / 2))  # told with chance d, else the middle of two Gaussians decides
    factor = math.exp(loss_bound(opened))
    sure = [before * factor / (before * factor + 1 - before) for before in (0.5, 0.1, 0.01)]
    return " | ".join([f"| {epsilon:g}", *map(show_sure, [right, *sure])]) + " |"


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_the_best_guesser_is_right_so_often(epsilon: float) -> None:
    opened = open_filter(epsilon, LARGE_DELTA)
    mu, d = math.sqrt(opened.capacity_nano / NANO), opened.d_of(opened.capacity_nano)
    rng = np.random.default_rng(1)
    used, told = rng.random(RUNS) < 0.5, rng.random(RUNS) < d
    guess = np.where(told, used, rng.normal(size=RUNS) + mu * used > mu / 2)
    assert float((guess == used).mean()) == pytest.approx(d + (1 - d) * float(mpmath.ncdf(mu / 2)), abs=0.005)


def test_the_documents_show_these_odds() -> None:
    def shown(epsilon: float, digits: int = 1) -> str:
        percent = math.ceil(attacker_certainty_max(open_filter(epsilon, 1e-5)) * 100 * 10**digits) / 10**digits
        return f"{percent:.{digits}f}%"

    root = Path(__file__).parents[3]
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert f"at most {shown(1)} sure at ε = 1 ({shown(2)} at 2, {shown(3)} at 3)" in readme
    row = " | ".join([shown(0.5), shown(1), shown(2), shown(3), shown(8, digits=2)])
    assert f"| from 50% to at most | {row} |" in (root / "docs" / "explanation" / "privacy-guarantee.md").read_text(
        encoding="utf-8"
    )
    budget = (root / "docs" / "how-to" / "choose-a-budget.md").read_text(encoding="utf-8")
    table = budget.split("|---|---|---|---|---|\n")[1].split("\n\n")[0].splitlines()
    assert table == [odds_in_words(epsilon) for epsilon in (0.1, 0.5, 1, 3, 6, 10)]
    one = open_filter(1, 1e-5).capacity_nano
    assert "cost less than 2, about 1.47, because" in budget
    assert open_filter(1.46, 1e-5).capacity_nano < 2 * one < open_filter(1.48, 1e-5).capacity_nano
    assert "at an ε above 10" in budget  # of ten records, each of which moves a Gaussian by mu
    assert open_filter(10, 1e-5).capacity_nano < 10**2 * one
    for document in [root / "README.md", *(root / "docs").rglob("*.md")]:
        assert "that this bound does not hold" not in document.read_text(encoding="utf-8"), document
