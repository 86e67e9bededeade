"""Jobs priced as a whole: every inequality of docs/explanation/accounting.md, against oracles and dp-accounting."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import common, privacy_loss_distribution
from scipy import fft

from privacy.accounting import approximate_gdp
from privacy.accounting.events import GaussianEvent, PoissonGaussianEvent
from privacy.accounting.filter import open_filter
from privacy.accounting.gaussian import gaussian_deltas
from privacy.errors import InvalidParameter
from tests.privacy.accounting.test_gaussian import oracle_delta

SAMPLED = PoissonGaussianEvent(512 / 60_000, 0.7, 352)
JOBS = [
    (SAMPLED,),
    (PoissonGaussianEvent(0.137, 8.8, 293),),
    (PoissonGaussianEvent(0.5, 0.6, 1),),
    (PoissonGaussianEvent(0.02, 1.2, 500), GaussianEvent(1.0, 12.0, 3)),
    (PoissonGaussianEvent(0.01, 2.0, 50), PoissonGaussianEvent(0.1, 5.0, 100)),
]
RATE = open_filter(3.0, 1e-5).rate


def finer(job: tuple[GaussianEvent | PoissonGaussianEvent, ...]) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Privacy losses of a job on a grid of its own."""
    whole = privacy_loss_distribution.identity(value_discretization_interval=1e-4)
    for event in job:
        sampled = event.sampling_probability if isinstance(event, PoissonGaussianEvent) else 1.0
        one = privacy_loss_distribution.from_gaussian_mechanism(
            event.noise_multiplier, sampling_prob=sampled, value_discretization_interval=1e-4
        )
        whole = whole.compose(one.self_compose(event.count))
    return whole


@pytest.mark.parametrize("mu", [1e-3, 0.27, 1.0, 5.0, 40.0])
def test_deltas_of_a_gaussian_are_those_of_the_definition(mu: float) -> None:
    epsilons = np.array([0.0, 0.01, 0.3, 1.0, 4.0]) * mu * max(mu, 1.0)
    for epsilon, found in zip(epsilons, gaussian_deltas(mu, epsilons), strict=True):
        assert found == pytest.approx(float(oracle_delta(mu, float(epsilon))), rel=1e-10)


OPENED = [(0.01, 1e-5, 0.0), (1.0, 1e-5, 0.0), (3.0, 1e-9, 0.0), (10.0, 1e-3, 0.0), (500.0, 1e-6, 0.0)]
RAISED = [(2.0, 1e-5, 3e-7), (2.0, 1e-5, 4e-6)]


@pytest.mark.parametrize(("epsilon", "delta", "given"), OPENED + RAISED)
def test_a_tenth_of_the_remaining_delta_is_allotted_and_the_account_is_full(epsilon, delta, given):
    mu_squared, d = approximate_gdp.split(epsilon, delta, given)
    assert d == pytest.approx(given + (delta - given) / 10)
    whole = mpmath.mpf(d) + (1 - mpmath.mpf(d)) * oracle_delta(math.sqrt(mu_squared), epsilon)
    assert delta * (1 - 1e-5) < whole <= delta


def test_a_part_of_an_account_holds_what_its_epsilon_says() -> None:
    mu_squared, d = approximate_gdp.split(3.0, 1e-5)
    rate = d / mu_squared
    assert approximate_gdp.mu_squared_within(3.0, 1e-5, rate) == pytest.approx(mu_squared, rel=1e-7)
    assert approximate_gdp.mu_squared_within(3.0, 1e-5, rate, base=1e-5) == 0.0
    part = approximate_gdp.mu_squared_within(1.0, 1e-5, rate)
    d = mpmath.mpf(rate * part)
    assert 1e-5 * (1 - 1e-5) < d + (1 - d) * oracle_delta(math.sqrt(part), 1.0) <= 1e-5


def test_a_chance_of_everything_and_a_gaussian_have_the_deltas_that_the_price_is_compared_with() -> None:
    """Step 1 of docs/explanation/accounting.md on a grid: its delta by the definition of the divergence."""
    mu, d, x = 0.8, 1e-3, np.linspace(-14.0, 14.0, 400_001)
    cell = (x[1] - x[0]) / math.sqrt(2 * math.pi)
    p, q = (1 - d) * cell * np.exp(-((x - mu) ** 2) / 2), (1 - d) * cell * np.exp(-(x**2) / 2)
    for epsilon in (0.0, 0.5, 2.0, 5.0):
        by_definition = d + np.maximum(p - math.exp(epsilon) * q, 0.0).sum()
        assert by_definition == pytest.approx(d + (1 - d) * gaussian_deltas(mu, np.array([epsilon]))[0], rel=1e-6)


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_no_epsilon_shows_more_than_was_paid_for(job: tuple[PoissonGaussianEvent, ...]) -> None:
    """Between the points of the curve too, and by privacy losses on another grid."""
    price = approximate_gdp.least_mu_squared(job, RATE)
    d, mu = RATE * price, math.sqrt(price)
    epsilons = np.sort(np.random.default_rng(0).uniform(0.0, 2 * approximate_gdp.curve(job).epsilons[-1], 5_000))
    shown = np.asarray(finer(job).get_delta_for_epsilon(epsilons))
    assert np.all(shown <= d + (1 - d) * gaussian_deltas(mu, epsilons) + 1e-13)


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_a_price_is_the_smallest(job: tuple[PoissonGaussianEvent, ...]) -> None:
    less = approximate_gdp.least_mu_squared(job, RATE) * (1 - 1e-6)
    assert not approximate_gdp.dominates(math.sqrt(less), RATE * less, approximate_gdp.curve(job))


def test_a_curve_is_compared_between_its_points_too() -> None:
    """Where a chord is long the inequality holds at both ends, and not between them."""
    epsilons, mu = np.array([0.0, 6.0]), 1.0
    coarse = approximate_gdp.Curve(epsilons, gaussian_deltas(mu, epsilons), math.inf)
    assert np.all(gaussian_deltas(mu * 1.001, epsilons) >= coarse.deltas)
    assert not approximate_gdp.dominates(mu * 1.001, float(coarse.deltas[-1]), coarse)
    fine = np.linspace(0.0, 6.0, 2_000)
    assert approximate_gdp.dominates(
        mu * 1.001, float(coarse.deltas[-1]), approximate_gdp.Curve(fine, gaussian_deltas(mu, fine), math.inf)
    )


def test_behind_the_last_point_nothing_but_d_pays() -> None:
    job = approximate_gdp.curve((SAMPLED,))
    assert approximate_gdp.dominates(50.0, float(job.deltas[-1]) * 1.01, job)
    assert not approximate_gdp.dominates(50.0, float(job.deltas[-1]) * 0.99, job)


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_prices_of_two_jobs_pay_for_both_together(job: tuple[PoissonGaussianEvent, ...]) -> None:
    apart = approximate_gdp.least_mu_squared(job, RATE) + approximate_gdp.least_mu_squared((SAMPLED,), RATE)
    assert approximate_gdp.least_mu_squared((*job, SAMPLED), RATE) <= apart


def test_gaussian_releases_have_their_exact_price() -> None:
    releases = (GaussianEvent(1.0, 4.0, 5), GaussianEvent(2.0, 16.0))
    assert approximate_gdp.least_mu_squared(releases, RATE) == 5 / 16 + 1 / 64
    assert approximate_gdp.least_mu_squared((PoissonGaussianEvent(1.0, 4.0, 5),), RATE) == 5 / 16


@pytest.mark.parametrize("count", [1, 40])
def test_whoever_samples_never_pays_more_than_for_everybody(count: int) -> None:
    for probability in (1e-9, 1e-4, 0.3, 0.999):
        assert approximate_gdp.least_mu_squared((PoissonGaussianEvent(probability, 2.0, count),), RATE) <= count / 4


@pytest.mark.parametrize(("probability", "noise", "count"), [(512 / 60_000, 13.3, 170_000), (0.0085, 0.69, 352)])
def test_rounding_of_composed_losses_is_below_its_allowance(probability: float, noise: float, count: int) -> None:
    """The library's composition beside the same one in extended precision."""
    if np.finfo(np.longdouble).eps > 2.0**-60:
        pytest.skip("this machine has no extended precision")
    one = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=probability, value_discretization_interval=2.0**-14 if count > 1_000 else 2.0**-9
    )
    for losses in (one._pmf_remove, one._pmf_add):
        probabilities = losses.to_dense_pmf()._probs
        lower, found = common.self_convolve(probabilities, count, 1e-15)
        size = fft.next_fast_len(max(len(found), len(probabilities)))
        factor = fft.fft(np.asarray(probabilities, np.longdouble).astype(np.clongdouble), size)
        power, left = np.ones_like(factor), count
        while left:
            power, factor, left = power * factor if left % 2 else power, factor * factor, left // 2
        exact = np.roll(fft.ifft(power).real, -lower)[: len(found)]
        off = np.abs(np.cumsum((np.asarray(found) - exact)[::-1])).max()
        assert off <= (count + 64) * approximate_gdp._ROUNDING


def test_a_budget_that_pays_for_no_step_is_refused_with_a_reason() -> None:
    rate = open_filter(1.0, 1e-5).rate
    with pytest.raises(InvalidParameter, match="take fewer"):
        approximate_gdp.least_noise(0.1, 10, 1e-12, rate)
    with pytest.raises(InvalidParameter, match="without events"):
        approximate_gdp.least_mu_squared([], rate)


def test_a_smaller_account_gives_no_less_d_for_the_same_job() -> None:
    rates = [open_filter(epsilon, 1e-5).rate for epsilon in (10.0, 3.0, 1.0)]
    prices = [approximate_gdp.least_mu_squared((replace(SAMPLED, noise_multiplier=1.0),), rate) for rate in rates]
    assert rates == sorted(rates)
    assert prices == sorted(prices, reverse=True)


@pytest.mark.parametrize(("job", "rate"), [(SAMPLED, 1e-30), (PoissonGaussianEvent(0.5, 0.05, 10), RATE)])
def test_a_d_too_small_for_privacy_losses_and_a_job_beyond_any_epsilon_have_the_price_of_everybody(job, rate) -> None:
    assert approximate_gdp.least_mu_squared((job,), rate) == pytest.approx(
        job.count / job.noise_multiplier**2, rel=1e-9
    )
