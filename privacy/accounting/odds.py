"""What a guarantee means for somebody who guesses: how sure anyone can become, and how often that may fail."""

from __future__ import annotations

import math

from scipy import special

from privacy.accounting.filters import NANO, Filter
from privacy.errors import InvalidParameter

_MARGIN = 1e-9  # Relative, towards the weaker statement; the functions below are good to 1e-12.


def loss_bound(privacy_filter: Filter, nano: int | None = None) -> float:
    """Return the privacy loss that whatever is published exceeds with probability at most delta.

    Epsilon is not that number: (epsilon, delta)-DP bounds probabilities of outcomes up to an additive delta, and
    outcomes whose loss is above epsilon are many times as likely as delta (16 times at epsilon 1 and delta 1e-5).

    Args:
        privacy_filter: of the account.
        nano: all that may ever be spent, fixed before anything is published, in the filter's nano-units; None is the
            filter's capacity. What happens to have been spent so far is no such amount: nothing corrects for the
            choice of the moment.

    Returns:
        The bound b, above the epsilon at delta of the same amount; 0 where nothing may be spent.

    Privacy:
        Let P and Q be the distributions of all that is published with and without one unit, and E the outcomes with
        log dP/dQ > b. If P(E) > 0 then P(E) > e^b Q(E).

        gdp: the account is mu-GDP, mu^2 = nano / 10^9, however adaptively releases and their number were chosen and
        whatever was computed from them (`GdpFilter`), so Phi^-1(P(E)) - mu <= Phi^-1(Q(E)). With
        h(p) = Phi(Phi^-1(p) - mu) / p this says h(P(E)) < e^-b. h grows: its numerator is convex and vanishes at 0.
        Hence P(E) < delta for e^-b = h(delta). Some mu-GDP mechanism attains this. The loss of one Gaussian release
        has the smaller quantile mu^2 / 2 + mu Phi^-1(1 - delta), which an analyst who stops when the loss is high
        exceeds almost twice as often.

        rdp: the divergence at order a is at most r = nano / 10^9 (`RdpFilter`): E_P[(dP/dQ)^(a - 1)] <= e^((a - 1) r).
        By Markov's inequality P(E) <= e^((a - 1)(r - b)), which is delta for b = r + log(1 / delta) / (a - 1).

        In either case Q(E) <= P(E) <= delta, and the same holds with P and Q exchanged.
    """
    amount_nano = privacy_filter.capacity_nano if nano is None else nano
    if amount_nano < 0:
        raise InvalidParameter("nano", nano, "an amount of budget is a whole, non-negative number of nano-units")
    if amount_nano == 0:
        return 0.0
    spent, log_delta = amount_nano / NANO, math.log(privacy_filter.delta)
    if privacy_filter.order is None:
        bound = log_delta - float(special.log_ndtr(special.ndtri_exp(log_delta) - math.sqrt(spent)))
    else:
        bound = spent - log_delta / (privacy_filter.order - 1)
    return bound * (1 + _MARGIN)


def sure_at_most(privacy_filter: Filter, nano: int | None = None) -> float:
    """Return how sure somebody can become who was 50% sure that a unit was used, or that it was not.

    This holds for everything that is published for `nano` (as in `loss_bound`) together, except with probability at
    most delta. The posterior odds are the prior ones, here 1, times dP/dQ.

    Returns:
        1 / (1 + e^-b), b from `loss_bound`.
    """
    return float(special.expit(loss_bound(privacy_filter, nano)))
