"""Audit a mechanism in one run: guess which of m canaries were in the data, and bound epsilon or mu from below.

Implements Steinke, Nasr & Jagielski 2023 (arXiv:2305.08846) and the test of Mahloujifar, Melis & Chaudhuri 2024
(arXiv:2410.22235) for Gaussian differential privacy. In both games a fair coin for each canary decides whether it is in
the data, and the mechanism runs once. An auditor who sees the output and all data except the coins guesses r of the
coins. The bounds follow from the number of correct guesses.

A bound is wrong with probability at most 1 - confidence, over coins and noise. A low bound does not prove privacy: the
canaries may have been weak.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from privacy.errors import InvalidParameter

_HIGHEST = 100.0  # upper end of the search for epsilon or mu
_BISECTIONS = 50


@dataclasses.dataclass(frozen=True)
class Guesses:
    """The outcome of one audit game, in which an auditor guesses which canaries were in the data.

    Attributes:
        canaries: m, each in the data with probability 1/2, independently.
        made: r, the number of guesses, fixed before the output was seen.
        correct: v, the number of correct guesses.
    """

    canaries: int
    made: int
    correct: int

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.made <= self.canaries:
            why = "there must be at most as many correct guesses as guesses, and as many guesses as canaries"
            raise InvalidParameter("guesses", (self.correct, self.made, self.canaries), why)


def flip_coins(canaries: int, seed: int) -> npt.NDArray[np.bool_]:
    """Return a random mask (canaries,) bool of the canaries in the data. The auditor may publish the seed."""
    return np.random.default_rng(seed).random(canaries) < 0.5


def guess(scores: npt.NDArray[np.float64], included: npt.NDArray[np.bool_], made: int) -> Guesses:
    """Guess "in" for the made/2 highest scores and "out" for the made/2 lowest, and count correct guesses.

    Args:
        scores: (m,) finite, higher if the output suggests that the canary was in; computed without the coins.
        included: (m,) the coins.
        made: r from 1 to m, chosen before the scores were seen; an odd r gives one more "in" guess.

    Raises:
        InvalidParameter: scores or r do not meet these conditions.
    """
    if scores.shape != included.shape or scores.ndim != 1 or not np.isfinite(scores).all():
        raise InvalidParameter("scores", scores.shape, "there must be one finite score for each canary")
    if not 1 <= made <= len(scores):
        raise InvalidParameter("made", made, f"make 1 to {len(scores)} guesses about {len(scores)} canaries")
    order = np.argsort(scores, kind="stable")
    guessed_out, guessed_in = order[: made // 2], order[len(order) - (made - made // 2) :]
    correct = int(np.count_nonzero(included[guessed_in])) + int(np.count_nonzero(~included[guessed_out]))
    return Guesses(len(scores), made, correct)


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Bound from above the probability of at least this many correct guesses, for any (epsilon, delta)-DP mechanism.

    Theorem 5.2 of Steinke et al.: with f(v) = P[Binomial(r, e^epsilon / (1 + e^epsilon)) >= v],

        P[correct >= v] <= f(v) + 2 m delta max_{1 <= i <= m} (f(v - i) - f(v)) / i.

    Derivation. For delta = 0, the odds of a coin move from 1 to at most e^epsilon, given any output and any coins of
    the others. So guess after guess is right with probability at most e^epsilon / (1 + e^epsilon): the count is
    dominated by the binomial. For delta > 0 the same holds after F guesses have been handed to the auditor. F is random
    with E[F] <= 2 m delta: the mechanism with either value of one coin mixes an epsilon-DP part and a part of weight
    delta that gives the coin away. Then P[Binomial + F >= v] is the mean of f(v - F). Given the mean of F, it is
    largest on the steepest chord of f from v.

    Args:
        guesses: the outcome.
        epsilon: not negative.
        delta: in [0, 1].

    Returns:
        The bound, at most 1: the significance level at which these guesses refute (epsilon, delta)-DP. While
        2 m delta <= 1 it rises with epsilon, so bisection works.

    Raises:
        InvalidParameter: epsilon or delta is out of range.
    """
    if not epsilon >= 0 or not 0 <= delta <= 1:
        raise InvalidParameter("epsilon", (epsilon, delta), "epsilon must be at least 0, and delta between 0 and 1")
    made, correct, accuracy = guesses.made, guesses.correct, special.expit(epsilon)
    if delta == 0:
        return float(stats.binom.sf(correct - 1, made, accuracy))
    tail = stats.binom.sf(np.arange(-1, correct), made, accuracy)  # f(0), ..., f(v)
    steps = np.arange(correct, 0, -1)
    steepest = float(np.max((tail[:-1] - tail[-1]) / steps, initial=0.0))
    return min(1.0, float(tail[-1]) + 2 * guesses.canaries * delta * steepest)


def epsilon_lower_bound(guesses: Guesses, delta: float, confidence: float) -> float:
    """Return the largest epsilon such that (epsilon, delta)-DP is refuted with this confidence; 0 if none is.

    Raises:
        InvalidParameter: delta or confidence is out of range.
    """
    level = _level(confidence)
    return _largest(lambda epsilon: p_value(guesses, epsilon, delta) <= level)


def gaussian_refuted(guesses: Guesses, mu: float, confidence: float) -> bool:
    """Return whether this number of correct guesses refutes mu-GDP with this confidence.

    Derivation (Mahloujifar et al. 2024 use the same argument). Let X be the number of correct guesses, and flip coin
    j alone: for an unchanged output, a right guess about j becomes wrong and X drops by one. So the tradeoff curve of
    mu-GDP bounds, for every i and j,

        P[X >= i and j is right] <= Phi(Phi^-1(P[X >= i - 1 and j is wrong]) + mu).

    The right side is concave, so it holds for the means over j: a(i) = E[X; X >= i] / m and b(i) = E[r - X; X >= i] / m
    obey b(i - 1) >= Phi(Phi^-1(a(i)) - mu). In terms of the tails Q(i) = P[X >= i], of which a(i) is the sum
    (i Q(i) + Q(i + 1) + ... + Q(r)) / m, this says

        (r - i + 1) Q(i - 1) >= Q(i) + ... + Q(r) + m Phi(Phi^-1(a(i)) - mu),

    a lower bound of each tail that rises with all the later ones. Suppose that Q(v) is at least 1 - confidence, and
    start from Q(v) = 1 - confidence and Q(v + 1) = 0. Then every earlier tail is at least the value that follows from
    equality, or from Q(i - 1) = Q(i) where that is more. If this makes Q(0) = (a(0) + b(0)) m / r exceed one, then Q(v)
    is less than 1 - confidence. With one canary and one guess the bound is exact: Phi(mu / 2) < 1 - confidence.

    Raises:
        InvalidParameter: mu or confidence is out of range.
    """
    level = _level(confidence)
    if not 0 <= mu < math.inf:
        raise InvalidParameter("mu", mu, "it must be finite and at least 0")
    m, r, v = guesses.canaries, guesses.made, guesses.correct
    a, b = v * level / m, (r - v) * level / m
    for i in range(v, 0, -1):
        needed = float(special.ndtr(special.ndtri(a) - mu))
        if needed > b:
            a += (needed - b) * (i - 1) / (r - i + 1)
            b = needed
        if (a + b) * m / r > 1:
            return True
    return False


def mu_lower_bound(guesses: Guesses, confidence: float) -> float:
    """Return the largest mu such that mu-GDP is refuted with this confidence; 0 if none is.

    Tighter than `epsilon_lower_bound` for Gaussian noise, where most guesses are slightly better than chance.
    """
    return _largest(lambda mu: gaussian_refuted(guesses, mu, confidence))


def _level(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise InvalidParameter("confidence", confidence, "it must be strictly between 0 and 1")
    return 1 - confidence


def _largest(refuted: Callable[[float], bool]) -> float:
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, _HIGHEST
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
