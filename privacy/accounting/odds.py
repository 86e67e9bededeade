"""The guarantee as odds: an attacker's maximum certainty, and the probability that this bound fails."""

from __future__ import annotations

import math

from scipy import special

from privacy.accounting.filter import NANO, Filter
from privacy.errors import InvalidParameter

_MARGIN = 1e-9  # Relative margin, towards the weaker statement; the functions below are accurate to 1e-12.


def loss_bound(privacy_filter: Filter, nano: int | None = None) -> float:
    """Return the privacy loss that everything published exceeds with probability at most delta.

    Epsilon is not that loss: the probability of outcomes whose loss exceeds epsilon can be many times delta (16 times
    at epsilon 1 and delta 1e-5).

    Args:
        privacy_filter: of the account.
        nano: nano-units of mu^2 that may ever be spent, fixed before anything is published; None is the capacity. The
            amount spent so far is not valid here: an attacker who chooses when to look can exceed its bound more often.

    Returns:
        The bound b, above the epsilon at delta of the same amount; 0 if nothing may be spent.

    Privacy:
        Let P and Q be the distributions of all that is published with and without one unit. Let E be the outcomes with
        log dP/dQ > b. If P(E) > 0 then P(E) > e^b Q(E).

        However adaptively releases were chosen, all of it can be computed from a pair of random variables (see
        docs/explanation/accounting.md): with probability d (`Filter.d_of`) everything, else one release of a Gaussian,
        mu^2 = nano / 10^9. So for p = P(E), at least (p - d) / (1 - d) of the Gaussian's outcomes with the unit are in
        E. So Q(E) >= (1 - d) Phi(Phi^-1((p - d) / (1 - d)) - mu) = h(p) p. With P(E) > e^b Q(E), h(p) < e^-b. h grows:
        h(p) p is convex in p and vanishes at d >= 0. Hence p < delta for e^-b = h(delta). Some mechanism attains this.

        Q(E) <= P(E) <= delta, and the same holds with P and Q exchanged.
    """
    amount_nano = privacy_filter.capacity_nano if nano is None else nano
    if amount_nano < 0:
        raise InvalidParameter("nano", nano, "an amount of budget is a whole, non-negative number of nano-units")
    if amount_nano == 0:
        return 0.0
    mu, d = math.sqrt(amount_nano / NANO), privacy_filter.d_of(amount_nano)
    if d >= privacy_filter.delta:
        return math.inf
    quantile = special.ndtri_exp(math.log((privacy_filter.delta - d) / (1 - d)))
    bound = math.log(privacy_filter.delta) - math.log1p(-d) - float(special.log_ndtr(quantile - mu))
    return bound * (1 + _MARGIN)


def attacker_certainty_max(privacy_filter: Filter, nano: int | None = None) -> float:
    """Return the certainty 1 / (1 + e^-b) that an attacker at 50% can reach, b from `loss_bound`.

    The bound holds for everything published for `nano` together, except with probability at most delta: posterior odds
    are prior odds, here 1, times dP/dQ.
    """
    return float(special.expit(loss_bound(privacy_filter, nano)))
