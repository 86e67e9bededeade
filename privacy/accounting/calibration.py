"""From a budget to a number of releases or to an amount of noise. Pure, public parameters only."""

from __future__ import annotations

import math
from fractions import Fraction

from privacy.accounting.events import SMOOTHING_VARIANCE, Event, GaussianEvent, PoissonGaussianEvent, positive_finite
from privacy.accounting.filters import NANO, Filter
from privacy.errors import EventRefused, InvalidParameter


def _budget(budget_nano: int) -> int:
    if isinstance(budget_nano, bool) or not isinstance(budget_nano, int) or budget_nano < 0:
        raise InvalidParameter("budget_nano", budget_nano, "a budget is a whole, non-negative number of nano-units")
    return budget_nano


def affordable_releases(filter: Filter, event: Event, budget_nano: int) -> int:
    """Return how many single releases of `event` (its count is ignored) fit into the budget; 0 when none does.

    Raises:
        InvalidParameter: the budget is not a whole, non-negative number.
        EventRefused: the filter has no price for the event.
    """
    return _budget(budget_nano) // filter.unit_price_nano(event)


def stddev_for(
    filter: Filter, sensitivity: float, budget_nano: int, count: int = 1, *, discrete: bool = False
) -> float:
    """Return the smallest noise with which `count` Gaussian releases fit into the budget, rounded up.

    Args:
        filter: the account's filter.
        sensitivity: L2 sensitivity of one release.
        budget_nano: what all the releases together may cost, in the filter's nano-units.
        count: number of releases.
        discrete: the noise is the discrete Gaussian, priced by `GaussianEvent.of_discrete_noise`.

    Returns:
        The standard deviation of the noise of one release, in the units of the sensitivity.

    Raises:
        InvalidParameter: a value is out of range, or the budget is below one nano-unit a release.
    """
    GaussianEvent(sensitivity, 1.0, count)  # validates both
    unit_nano = _budget(budget_nano) // count
    if unit_nano < 1:
        raise InvalidParameter("budget_nano", budget_nano, f"{count} releases need at least one nano-unit each")
    order_half = 1.0 if filter.order is None else filter.order / 2
    stddev = positive_finite("stddev", sensitivity * math.sqrt(order_half * NANO / unit_nano)) * (1 - 1e-14)
    while filter.unit_price_nano(GaussianEvent(sensitivity, stddev)) > unit_nano:
        stddev = math.nextafter(stddev, math.inf)
    if not discrete:
        return stddev
    discrete_stddev = math.sqrt(Fraction(stddev) ** 2 + SMOOTHING_VARIANCE)
    while filter.unit_price_nano(GaussianEvent.of_discrete_noise(sensitivity, discrete_stddev)) > unit_nano:
        discrete_stddev = math.nextafter(discrete_stddev, math.inf)
    return discrete_stddev


_MULTIPLIER_MAX = 2.0**20


def noise_multiplier_for(filter: Filter, probability: float, steps: int, budget_nano: int) -> float:
    """Return the smallest noise multiplier with which `steps` Poisson-sampled releases fit into the budget, rounded up.

    Args:
        filter: the account's filter; it must price Poisson-sampled releases (`rdp` does).
        probability: chance of each unit to be in a step's sample, in (0, 1].
        steps: number of releases.
        budget_nano: what all of them together may cost, in the filter's nano-units.

    Returns:
        Noise standard deviation over sensitivity, within one part in 10^6 of the smallest that fits.

    Raises:
        InvalidParameter: a value is out of range, or no noise is large enough.
        EventRefused: the filter has no price for Poisson-sampled releases.
    """
    unit_nano = _budget(budget_nano) // PoissonGaussianEvent(probability, 1.0, steps).count

    def fits(multiplier: float) -> bool:
        try:
            return filter.unit_price_nano(PoissonGaussianEvent(probability, multiplier)) <= unit_nano
        except EventRefused:
            if multiplier >= 1.0:  # not a matter of too little noise
                raise
            return False

    high = 1.0
    while not fits(high):
        high *= 2
        if high > _MULTIPLIER_MAX:
            raise InvalidParameter(
                "steps", steps, f"{budget_nano} nano-units do not pay for so many steps with any noise: take fewer"
            )
    low = high / 2
    while low > 1e-6 and fits(low):
        low, high = low / 2, low
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
