"""The one-run bounds: against slow exact sums, against mechanisms whose privacy is known, and what they refuse."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import special, stats

from privacy.accounting.gaussian import gaussian_epsilon
from privacy.auditing.one_run import (
    Guesses,
    epsilon_lower_bound,
    flip_coins,
    gaussian_refuted,
    guess,
    mu_lower_bound,
    p_value,
)
from privacy.errors import InvalidParameter

RUNS = 200


def slow_p_value(guesses: Guesses, accuracy: Fraction, delta: Fraction) -> Fraction:
    """Theorem 5.2 term by term in rational numbers; accuracy is e^epsilon / (1 + e^epsilon)."""
    r, v = guesses.made, guesses.correct

    def at_least(k: int) -> Fraction:
        return sum(
            (math.comb(r, i) * accuracy**i * (1 - accuracy) ** (r - i) for i in range(max(k, 0), r + 1)), Fraction(0)
        )

    steepest = max([(at_least(v - i) - at_least(v)) / i for i in range(1, v + 1)], default=Fraction(0))
    return min(Fraction(1), at_least(v) + 2 * guesses.canaries * delta * steepest)


@pytest.mark.parametrize("delta", [Fraction(0), Fraction(1, 10**5), Fraction(1, 100)])
@pytest.mark.parametrize("outcome", [(40, 20, 17), (12, 12, 12), (30, 9, 0), (25, 25, 1), (60, 30, 24)])
def test_the_p_value_is_the_theorems(outcome: tuple[int, int, int], delta: Fraction) -> None:
    guesses = Guesses(*outcome)
    for accuracy in (Fraction(1, 2), Fraction(3, 5), Fraction(9, 10)):
        epsilon = math.log(accuracy / (1 - accuracy))
        exact = float(slow_p_value(guesses, accuracy, delta))
        assert p_value(guesses, epsilon, float(delta)) == pytest.approx(exact, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("made", [10, 100, 1000])
def test_guesses_that_are_all_right_bound_epsilon_in_closed_form(made: int) -> None:
    """(e^epsilon / (1 + e^epsilon))^r = 0.05."""
    accuracy = 0.05 ** (1 / made)
    bound = epsilon_lower_bound(Guesses(made, made, made), 0.0, 0.95)
    assert bound == pytest.approx(math.log(accuracy / (1 - accuracy)), rel=1e-9)


def test_bounds_fall_with_delta_with_confidence_and_with_mistakes() -> None:
    bounds = [epsilon_lower_bound(Guesses(1000, 200, 190), delta, 0.95) for delta in (0.0, 1e-5, 1e-4, 1e-2)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[-1]
    for bound in (lambda g, c: epsilon_lower_bound(g, 1e-5, c), mu_lower_bound):
        assert bound(Guesses(1000, 200, 190), 0.95) > bound(Guesses(1000, 200, 190), 0.999)
        assert bound(Guesses(1000, 200, 190), 0.95) > bound(Guesses(1000, 200, 170), 0.95)
        assert bound(Guesses(1000, 200, 100), 0.95) == 0.0


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_randomised_response_is_bounded_from_below_and_closely(epsilon: float) -> None:
    """Each canary's bit is told truly with the probability that epsilon allows; the coins' seed is public.

    With the right bound one run in 20 may be wrong; of 200, more than 22 are with a chance below 1e-4, and the seed is
    one with which they are not.
    """
    rng = np.random.default_rng(5)
    for made, slack in ((100, 1.0), (1000, 0.3), (10_000, 0.1)):
        right, runs = np.unique(rng.binomial(made, special.expit(epsilon), RUNS), return_inverse=True)
        distinct = np.array([epsilon_lower_bound(Guesses(made, made, int(v)), 0.0, 0.95) for v in right])
        bounds = distinct[runs]
        assert np.count_nonzero(bounds > epsilon) <= 22
        assert np.median(bounds) > epsilon - slack


def chances_of_correct_guesses(canaries: int, made: int, accuracy: float, given_away: float) -> np.ndarray:
    """Randomised response that shows each coin with a chance of its own: how many guesses are right, (made + 1,).

    Coins that show are guessed first; (epsilon, delta)-DP with e^epsilon / (1 + e^epsilon) = accuracy and delta =
    given_away, and no smaller ones.
    """
    shown = stats.binom.pmf(np.arange(canaries + 1), canaries, given_away)
    total = np.zeros(made + 1)
    for sure, chance in enumerate(shown):
        sure = min(sure, made)
        total[sure:] += chance * stats.binom.pmf(np.arange(made - sure + 1), made - sure, accuracy)
    return total


@pytest.mark.parametrize("epsilon", [0.6, 1.0])
@pytest.mark.parametrize("made", [30, 300])
def test_a_mechanism_that_attains_its_claim_is_refuted_as_rarely_as_the_confidence_says(made, epsilon):
    """Exactly, over all counts of right guesses. One coin in a hundred shows; without delta's term that is too much."""
    canaries, delta = 2 * made, 0.01
    accuracy, counts = float(special.expit(epsilon)), range(made + 1)

    def refuted_at(delta: float) -> np.ndarray:
        return np.array([p_value(Guesses(canaries, made, v), epsilon, delta) <= 0.05 for v in counts])

    pure = chances_of_correct_guesses(canaries, made, accuracy, 0.0)
    assert 0.004 < pure @ refuted_at(0.0) <= 0.05
    approximate = chances_of_correct_guesses(canaries, made, accuracy, delta)
    assert approximate @ refuted_at(delta) <= 0.05
    assert (approximate @ refuted_at(0.0) > 0.05) == (made == 300)
    at_once = (1 - delta) * pure + delta * (np.arange(made + 1) == made)  # all coins show, or none
    assert at_once @ refuted_at(delta) <= 0.05
    powerful = chances_of_correct_guesses(canaries, made, float(special.expit(2 * epsilon)), 0.0)
    assert (powerful @ refuted_at(1e-5) > 0.8) == (made == 300)


def test_with_one_canary_the_bound_on_mu_is_exact() -> None:
    """The best guess about one coin is right with probability Phi(mu / 2)."""
    for confidence in (0.05, 0.1, 0.3):
        mu = 2 * float(stats.norm.ppf(1 - confidence))
        assert mu_lower_bound(Guesses(1, 1, 1), confidence) == pytest.approx(mu, rel=1e-9)


def test_no_counts_that_mu_allows_are_refuted() -> None:
    """The inequalities that mu-GDP implies, for counts drawn at random: whatever obeys them is possible, so it stands.

    Each distribution of counts gets the smallest mu that its tails allow, and each of its tails as the level.
    """
    rng = np.random.default_rng(0)
    for made, sharpness in ((1, 1.0), (3, 0.3), (5, 1.0), (12, 0.2), (12, 2.0), (40, 0.3)):
        counts = np.arange(made + 1)
        for _ in range(30):
            chances = rng.dirichlet(np.full(made + 1, sharpness))
            tails = np.cumsum(chances[::-1])[::-1]
            a = np.cumsum((chances * counts)[::-1])[::-1] / made
            b = np.cumsum((chances * (made - counts))[::-1])[::-1] / made
            mu = max(0.0, float(np.max(special.ndtri(a[1:]) - special.ndtri(b[:-1]))))
            for v in range(made + 1):
                if 1e-9 < tails[v] < 1 - 1e-9:
                    assert not gaussian_refuted(Guesses(made, made, v), mu + 1e-9, 1 - tails[v] * (1 + 1e-12))


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
def test_gaussian_scores_are_bounded_from_below(mu: float) -> None:
    """m canaries that do not touch one another, each seen through unit noise: exactly mu-GDP."""
    rng, canaries, epsilon = np.random.default_rng(6), 1000, gaussian_epsilon(mu, 1e-5)
    medians = []
    for made in (50, 200, 1000):
        games = []
        for run in range(40):
            included = flip_coins(canaries, run)
            games.append(guess(mu * included + rng.normal(size=canaries), included, made))
        assert sum(gaussian_refuted(game, mu, 0.95) for game in games) <= 2
        assert sum(p_value(game, epsilon, 1e-5) <= 0.05 for game in games) == 0
        medians.append(float(np.median([mu_lower_bound(game, 0.95) for game in games[:10]])))
    assert max(medians) > mu / 4


def test_a_score_that_tells_the_truth_now_and_then_is_no_more_private_than_that() -> None:
    """One release in ten shows every coin: no mu-GDP with a small mu, yet nine times in ten there is nothing to see."""
    refuted = [gaussian_refuted(Guesses(500, 500, 500 if run % 10 == 0 else 250), 1.0, 0.95) for run in range(20)]
    assert refuted == [run % 10 == 0 for run in range(20)]


def test_guesses_go_to_the_extremes_and_abstain_in_between() -> None:
    included = np.array([True, False, True, False, True])
    scores = np.array([0.1, 0.9, 0.8, -0.5, 0.0])  # highest: 1 and 2; lowest: 3
    assert guess(scores, included, 3) == Guesses(5, 3, 2)
    assert guess(scores, included, 1) == Guesses(5, 1, 0)
    assert guess(scores, included, 5) == Guesses(5, 5, 3)


@pytest.mark.parametrize("bad", [(5, 6, 1), (5, 3, 4), (5, 3, -1)])
def test_outcomes_that_cannot_be_are_refused(bad: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidParameter, match="guesses"):
        Guesses(*bad)


def test_misuse_is_refused() -> None:
    coins, guesses = flip_coins(4, 0), Guesses(4, 2, 1)
    misuses = {
        "scores": (guess, np.array([0.0, 1.0, math.nan, 2.0]), coins, 2),
        "made": (guess, np.zeros(4), coins, 5),
        "epsilon": (p_value, guesses, -1.0, 0.0),
        "confidence": (mu_lower_bound, guesses, 1.0),
        "mu": (gaussian_refuted, guesses, -0.1, 0.9),
    }
    for name, (use, *arguments) in misuses.items():
        with pytest.raises(InvalidParameter, match=name):
            use(*arguments)
