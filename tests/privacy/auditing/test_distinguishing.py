"""The many-draw bounds, on mechanisms whose privacy is known."""

import math

import numpy as np
import pytest
from scipy import stats

from privacy.accounting.gaussian import gaussian_epsilon
from privacy.auditing import distinguishing
from privacy.errors import InvalidParameter

DRAWS = 2000


def test_rates_are_bounded_as_clopper_and_pearson_do() -> None:
    """With no error in n draws the bound of a rate is 1 - level^(1/n); both rates share what is left to chance."""
    rate = 1 - 0.025 ** (1 / DRAWS)
    errors = distinguishing.Errors(DRAWS, 0, DRAWS, 0)
    assert distinguishing.mu_lower_bound(errors, 0.95) == pytest.approx(-2 * float(stats.norm.ppf(rate)), rel=1e-9)
    assert distinguishing.epsilon_lower_bound(errors, 0.01, 0.95) == pytest.approx(
        math.log((0.99 - rate) / rate), rel=1e-9
    )


GAUSSIANS = [(0.3, 1.0, DRAWS, 0.25), (1.0, 1.0, DRAWS, 0.25), (3.0, 1.0, DRAWS, 0.25)]  # with the slack of the bound
SAMPLES = [(2.0, 0.1, 20_000, 0.7), (2.0, 0.5, 20_000, 0.3), (2.0, 1.0, 20_000, 0.3)]


@pytest.mark.parametrize(("mu", "probability", "draws", "slack"), GAUSSIANS + SAMPLES)
def test_a_gaussian_of_a_sample_is_bounded_from_below_and_closely(mu, probability, draws, slack):
    rng, bounds = np.random.default_rng(1), []
    for _ in range(100):
        drawn = rng.random(draws) < probability
        threshold = 1.5 if draws > DRAWS else mu / 2
        errors = distinguishing.count_errors(rng.normal(size=draws), mu * drawn + rng.normal(size=draws), threshold)
        bounds.append(distinguishing.mu_lower_bound(errors, 0.95, probability))
        assert distinguishing.epsilon_lower_bound(errors, 1e-5, 0.95) <= gaussian_epsilon(mu, 1e-5)
    assert np.count_nonzero(np.array(bounds) > mu) <= 10  # expected at most 5, and in fact fewer
    assert np.median(bounds) > mu - slack


def test_a_unit_that_shows_in_more_draws_than_were_claimed_is_explained_by_no_noise() -> None:
    always = distinguishing.Errors(DRAWS, 20, DRAWS, 100)
    assert distinguishing.mu_lower_bound(always, 0.95, 0.5) == math.inf
    assert distinguishing.mu_lower_bound(always, 0.95) > 3
    assert distinguishing.mu_lower_bound(distinguishing.Errors(DRAWS, 0, DRAWS, DRAWS), 0.95, 0.5) == 0.0
    with pytest.raises(InvalidParameter, match="probability"):
        distinguishing.mu_lower_bound(always, 0.95, 0.0)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_a_mechanism_that_attains_its_claim_is_refuted_as_rarely_as_the_confidence_says(epsilon: float) -> None:
    """Exactly, over all counts of errors of randomised response; twice the claim is refuted nearly always."""
    draws, confidence = 400, 0.95
    wrong = np.arange(draws + 1)
    chances = {e: stats.binom.pmf(wrong, draws, 1 / (1 + math.exp(e))) for e in (epsilon, 2 * epsilon)}
    upper = np.append(stats.beta.ppf(0.975, wrong[:-1] + 1, draws - wrong[:-1]), 1.0)  # of each rate
    refuted = np.log(np.maximum(1 - upper, 1e-300))[None, :] - np.log(upper)[:, None] > epsilon  # (alarms, misses)
    refuted |= refuted.T
    for i, j in ((3, 7), (60, 200), (150, 120), (0, 0)):
        found = distinguishing.epsilon_lower_bound(distinguishing.Errors(draws, i, draws, j), 0.0, confidence)
        assert (found > epsilon) == refuted[i, j]
    exceeded, powerful = (float(chances[e] @ refuted @ chances[e]) for e in (epsilon, 2 * epsilon))
    assert exceeded <= 1 - confidence
    assert epsilon < 1 or powerful > 0.9


def test_randomised_response_is_bounded_from_below_and_closely() -> None:
    rng, epsilon = np.random.default_rng(2), 1.0
    true = math.exp(epsilon) / (1 + math.exp(epsilon))
    bounds = []
    for _ in range(100):
        without, present = (rng.random(DRAWS) > p for p in (true, 1 - true))
        errors = distinguishing.count_errors(without.astype(float), present.astype(float), 0.5)
        bounds.append(distinguishing.epsilon_lower_bound(errors, 0.0, 0.95))
    assert np.count_nonzero(np.array(bounds) > epsilon) <= 10
    assert np.median(bounds) > 0.8 * epsilon


def test_draws_that_are_alike_give_no_bound() -> None:
    assert distinguishing.mu_lower_bound(distinguishing.Errors(100, 50, 100, 50), 0.95) == 0.0
    assert distinguishing.epsilon_lower_bound(distinguishing.Errors(100, 100, 100, 0), 0.0, 0.95) == 0.0
    assert distinguishing.epsilon_lower_bound(distinguishing.Errors(100, 0, 100, 100), 1e-5, 0.95) == 0.0


def test_a_score_that_is_not_a_number_counts_as_a_miss() -> None:
    errors = distinguishing.count_errors(np.array([math.nan, 1.0]), np.array([math.nan, 1.0]), 0.0)
    assert errors == distinguishing.Errors(2, 1, 2, 1)


def test_misuse_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="errors"):
        distinguishing.Errors(10, 11, 10, 0)
    with pytest.raises(InvalidParameter, match="confidence"):
        distinguishing.mu_lower_bound(distinguishing.Errors(10, 1, 10, 1), 0.0)
    with pytest.raises(InvalidParameter, match="delta"):
        distinguishing.epsilon_lower_bound(distinguishing.Errors(10, 1, 10, 1), 2.0, 0.95)
