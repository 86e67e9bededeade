"""The Gaussian mechanism's exact trade-off: delta from epsilon, and epsilon or mu from delta."""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
import scipy  # `optimize` loads at first use, which takes a third of a second
from scipy import special

from privacy.accounting.events import positive_finite
from privacy.errors import InvalidParameter

Floats = npt.NDArray[np.float64]

EPSILON_MAX = 10_000.0  # keeps every capacity inside a signed 64-bit integer
REMEMBERED = 2**15  # budgets and balances of some thousands of accounts


def checked_epsilon(value: float) -> float:
    """Return a valid epsilon as a float, or raise InvalidParameter."""
    if positive_finite("epsilon", value) > EPSILON_MAX:
        raise InvalidParameter("epsilon", value, f"epsilon must be at most {EPSILON_MAX:g}")
    return float(value)


def checked_delta(value: float) -> float:
    """Return a valid delta as a float, or raise InvalidParameter."""
    if not 0 < positive_finite("delta", value) < 1:
        raise InvalidParameter("delta", value, "delta must be strictly between 0 and 1")
    return float(value)


def gaussian_log_delta(mu: float, epsilon: float) -> float:
    """Return log delta(epsilon) of a mu-GDP mechanism, to about 1e-12.

    delta = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2): Theorem 8 of Balle & Wang 2018
    (arXiv:1805.06530), Corollary 1 of Dong, Roth & Su 2022 (arXiv:1905.02383). With a and b the two arguments,
    e^epsilon phi(b) = phi(a), so delta = phi(a) (M(-a) - M(-b)) with M the Mills ratio: nothing overflows.
    """
    upper, lower = epsilon / mu - mu / 2, epsilon / mu + mu / 2  # -a and -b
    log_density = -upper * upper / 2 - math.log(2 * math.pi) / 2
    mills_lower = math.sqrt(math.pi / 2) * float(special.erfcx(lower / math.sqrt(2)))
    if upper < 0:  # delta may be large: Phi(a) is above one half
        return float(special.log_ndtr(-upper)) + math.log1p(
            -math.exp(log_density - float(special.log_ndtr(-upper))) * mills_lower
        )
    gap = math.sqrt(math.pi / 2) * float(special.erfcx(upper / math.sqrt(2))) - mills_lower
    return log_density + math.log(gap) if gap > 0 else -math.inf


@functools.lru_cache(maxsize=REMEMBERED, typed=True)
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-GDP implies (epsilon, delta)-DP, by bisection in log space.

    Raises:
        InvalidParameter: epsilon or delta is out of range.
    """
    epsilon, log_delta = checked_epsilon(epsilon), math.log(checked_delta(delta))
    low, high = 0.0, 1.0
    while gaussian_log_delta(high, epsilon) <= log_delta:
        low, high = high, 2 * high
    while low == 0.0:  # bring the lower end within a factor of two
        if gaussian_log_delta(high / 2, epsilon) <= log_delta:
            low = high / 2
        high = high if low else high / 2
    while high - low > 1e-15 * high and (middle := (low + high) / 2) not in (low, high):
        if gaussian_log_delta(middle, epsilon) <= log_delta:
            low = middle
        else:
            high = middle
    return low


@functools.lru_cache(maxsize=REMEMBERED, typed=True)
def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon for which a mu-GDP mechanism is (epsilon, delta)-DP; 0 if it is (0, delta)-DP."""
    log_delta = math.log(checked_delta(delta))
    if gaussian_log_delta(positive_finite("mu", mu), 0.0) <= log_delta:
        return 0.0
    high = 1.0
    while gaussian_log_delta(mu, high) > log_delta:
        high *= 2
    return float(
        scipy.optimize.brentq(lambda e: max(gaussian_log_delta(mu, e), -1e6) - log_delta, 0.0, high, xtol=1e-13)
    )


def gaussian_deltas(mu: float, epsilons: Floats) -> Floats:
    """Return delta(epsilon) of a mu-GDP mechanism, to a relative 1e-11; the formula is that of `gaussian_log_delta`."""
    upper, lower = epsilons / mu - mu / 2, epsilons / mu + mu / 2
    log_density = -upper * upper / 2 - math.log(2 * math.pi) / 2
    mills_lower = math.sqrt(math.pi / 2) * special.erfcx(lower / math.sqrt(2))
    mills_upper = math.sqrt(math.pi / 2) * special.erfcx(np.maximum(upper, 0.0) / math.sqrt(2))
    log_head = special.log_ndtr(-upper)
    head = np.exp(log_head) * -np.expm1(np.log(mills_lower) + log_density - log_head)
    tail = np.exp(log_density) * np.maximum(mills_upper - mills_lower, 0.0)
    found: Floats = np.where(upper < 0, head, tail)
    return found
