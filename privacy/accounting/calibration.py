"""Convert a budget to an amount of noise: pure functions of public parameters."""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction

from privacy.accounting.approximate_gdp import least_noise
from privacy.accounting.events import SMOOTHING_VARIANCE, GaussianEvent, PoissonGaussianEvent, positive_finite
from privacy.accounting.filter import NANO, PRICE_MARGIN, Filter, release_nano
from privacy.errors import InvalidParameter


def _budget(budget_nano: int) -> int:
    if isinstance(budget_nano, bool) or not isinstance(budget_nano, int) or budget_nano < 0:
        raise InvalidParameter("budget_nano", budget_nano, "a budget is a whole, non-negative number of nano-units")
    return budget_nano


def stddev_for(sensitivity: float, budget_nano: int, count: int = 1) -> float:
    """Return the smallest discrete Gaussian noise with which `count` releases fit into the budget, rounded up.

    Args:
        sensitivity: L2 sensitivity of one release.
        budget_nano: of all releases together, in nano-units of mu^2.
        count: number of releases, priced by `GaussianEvent.of_discrete_noise`.

    Returns:
        The noise's parameter, in the units of the sensitivity.

    Raises:
        InvalidParameter: a value is out of range, or the budget is below one nano-unit per release.
    """
    GaussianEvent(sensitivity, 1.0, count)  # validates both
    unit_nano = _budget(budget_nano) // count
    if unit_nano < 1:
        raise InvalidParameter("budget_nano", budget_nano, f"{count} releases need at least one nano-unit each")
    # Quotient, root and product together have a rounding error of 2.8e-16: start just below and take a few steps up.
    continuous = positive_finite("stddev", sensitivity * math.sqrt(NANO / unit_nano)) * (1 - 1e-15)
    while release_nano(GaussianEvent(sensitivity, continuous)) > unit_nano:
        continuous = math.nextafter(continuous, math.inf)
    stddev = math.sqrt(Fraction(continuous) ** 2 + SMOOTHING_VARIANCE)
    while release_nano(GaussianEvent.of_discrete_noise(sensitivity, stddev)) > unit_nano:
        stddev = math.nextafter(stddev, math.inf)
    return stddev


@functools.lru_cache(maxsize=2**12)
def noise_multiplier_for(filter: Filter, probability: float, count: int, budget_nano: int) -> float:
    """Return the smallest noise multiplier with which `count` Poisson-sampled releases fit into the budget, rounded up.

    Args:
        filter: of the account.
        probability: of each unit to be in a release's sample, in (0, 1].
        count: number of releases, including repeated ones.
        budget_nano: of all of them together, in nano-units of mu^2.

    Returns:
        Noise over sensitivity, at least 0.1 and within one part in 5,000 of the smallest.

    Raises:
        InvalidParameter: a value is out of range, or no noise is large enough.
    """
    event = PoissonGaussianEvent(probability, 1.0, count)
    room = (_budget(budget_nano) - 1) / NANO / (1 + 2 * PRICE_MARGIN)
    if room <= 0:
        raise InvalidParameter("budget_nano", budget_nano, "it pays for no release")
    if event.is_sampled:
        return least_noise(probability, count, room, filter.rate)
    noise = math.sqrt(count / room)
    while filter.cost_nano(dataclasses.replace(event, noise_multiplier=noise)) > budget_nano:
        noise *= 1 + PRICE_MARGIN  # each release's price is rounded up
    return noise
