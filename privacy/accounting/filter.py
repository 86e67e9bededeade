"""The privacy filter: an account's (epsilon, delta) as a capacity, and every event as a price, in nano-units of mu^2.

Prices are rounded up and capacities down, so comparing two integers decides whether an event fits. Jobs may be chosen
adaptively. Other functions compute the noise that fits a budget, and an attacker's odds. All are pure functions of
public parameters.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction

from scipy import special

from privacy.accounting.approximate_gdp import least_mu_squared, least_noise, mu_squared_within, split
from privacy.accounting.events import SMOOTHING_VARIANCE, Event, GaussianEvent, PoissonGaussianEvent, positive_finite
from privacy.accounting.gaussian import EPSILON_MAX, REMEMBERED, checked_delta, checked_epsilon, gaussian_epsilon
from privacy.errors import InvalidParameter

NANO = 10**9
PRICE_MARGIN = 1e-6  # relative tolerance of numerical prices, whose last digits may differ between machines
_ODDS_MARGIN = 1e-9  # relative margin, towards the weaker statement; normal probabilities are accurate to 1e-12


@dataclasses.dataclass(frozen=True)
class Filter:
    """Price releases in approximate Gaussian differential privacy; `open_filter` creates a filter.

    Privacy: each event of an account is priced as a whole, by a mu^2 such that (mu, d = rate * mu^2) dominates it.
    Events may be chosen adaptively. While their prices add up to at most the capacity, everything published is
    (epsilon, delta)-differentially private. docs/explanation/accounting.md has the proof and defines d.

    Attributes:
        epsilon: the account's limit.
        rate: d for each unit of mu^2. It can fall when the limit is raised, and never grows. At rate 0, sampled
            releases are priced as unsampled.
        base: d beyond rate * mu^2 that spending at higher rates, before the limit was raised, may have used.
        capacity_nano: the account's whole budget, in nano-units of mu^2.
    """

    epsilon: float
    delta: float
    rate: float
    base: float = 0.0
    capacity_nano: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        for name, value in (("rate", self.rate), ("base", self.base)):
            if not 0 <= value < math.inf:
                raise InvalidParameter(name, value, "it must be a finite number that is not negative")
        object.__setattr__(self, "capacity_nano", self.nano_of(self.epsilon))

    def cost_nano(self, event: Event) -> int:
        """Return the price of all the event's releases, rounded up.

        Each unsampled release has the same price. Sampled releases are priced together: the whole price is due with the
        first release.
        """
        if not event.is_sampled:
            return event.count * release_nano(event)
        return math.floor(least_mu_squared([event], self.rate) * (1 + PRICE_MARGIN) * NANO) + 1

    def d_of(self, nano: int) -> float:
        """Return the largest d that spending `nano` can have used."""
        return self.base + self.rate * nano / NANO

    def epsilon_of(self, nano: int) -> float:
        """Return the epsilon that spending `nano` guarantees at the account's delta; at most EPSILON_MAX."""
        d = self.d_of(_amount("nano", nano))
        if nano == 0:
            return 0.0
        if d >= self.delta:
            return EPSILON_MAX
        spent = gaussian_epsilon(math.sqrt(nano / NANO), (self.delta - d) / (1 - d))
        return min(spent, self.epsilon if nano <= self.capacity_nano else EPSILON_MAX)

    def nano_of(self, epsilon: float) -> int:
        """Return the nano-units of mu^2 that fit into epsilon at the account's delta, rounded down."""
        within = mu_squared_within(checked_epsilon(epsilon), checked_delta(self.delta), self.rate, self.base)
        return math.floor(within * NANO)

    def at_limit(self, epsilon: float, used_nano: int) -> Filter:
        """Return the account's filter after its limit changes to `epsilon`.

        A lower limit keeps the rate. A higher limit adds a tenth of the remaining delta to the d allotted so far. It
        fits the rate to the new capacity, but never raises the rate.

        Args:
            epsilon: the new limit.
            used_nano: nano-units spent and reserved so far, priced at earlier rates.

        Raises:
            InvalidParameter: the limit is out of range, or its capacity is below one nano-unit.
        """
        rate, base = self.rate, self.base
        if epsilon > self.epsilon:
            given = self.d_of(used_nano)
            mu_squared, d = split(checked_epsilon(epsilon), self.delta, given)
            left = mu_squared - used_nano / NANO
            rate = min(rate, (d - given) / left) if left > 0 else rate
            base = max(given - rate * used_nano / NANO, base)
        return _require_capacity(open_filter(epsilon, self.delta, rate, base))


def release_nano(event: Event) -> int:
    """Return the price of one unsampled release, rounded up: the same in every account."""
    return math.ceil(event.mu_squared_exact * NANO)


@functools.lru_cache(maxsize=REMEMBERED, typed=True)
def open_filter(epsilon: float, delta: float, rate: float | None = None, base: float = 0.0) -> Filter:
    """Return the filter of a new account, or of an account whose rate and base are stored.

    Args:
        epsilon: the account's limit, positive and finite.
        delta: the account's delta, strictly between 0 and 1.
        rate: stored for the account; None computes the rate of a new account.
        base: stored for the account; 0 for a new account.

    Raises:
        InvalidParameter: a value is out of range, or a new account's budget is below one nano-unit.
    """
    epsilon, delta = checked_epsilon(epsilon), checked_delta(delta)
    if rate is None:
        mu_squared, d = split(epsilon, delta)
        return _require_capacity(Filter(epsilon, delta, d / mu_squared, base))
    return Filter(epsilon, delta, rate, base)


def _require_capacity(opened: Filter) -> Filter:
    if opened.capacity_nano < 1:
        why = f"at delta={opened.delta!r} the budget is smaller than one nano-unit and could buy nothing"
        raise InvalidParameter("epsilon", opened.epsilon, why)
    return opened


def _amount(name: str, nano: int) -> int:
    if isinstance(nano, bool) or not isinstance(nano, int) or nano < 0:
        raise InvalidParameter(name, nano, "an amount of budget is a whole, non-negative number of nano-units")
    return nano


def stddev_for(sensitivity: float, budget_nano: int, count: int = 1) -> float:
    """Return the smallest discrete Gaussian noise with which `count` releases fit into the budget, rounded up.

    Args:
        sensitivity: L2 sensitivity of one release.
        budget_nano: for all releases together, in nano-units of mu^2.
        count: number of releases, priced by `GaussianEvent.of_discrete_noise`.

    Returns:
        The noise's parameter, in the units of the sensitivity.

    Raises:
        InvalidParameter: a value is out of range, or the budget is below one nano-unit per release.
    """
    GaussianEvent(sensitivity, 1.0, count)  # validates both
    unit_nano = _amount("budget_nano", budget_nano) // count
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
        probability: that a unit is in the sample of a release, in (0, 1].
        count: number of releases, including repeated ones.
        budget_nano: for all releases together, in nano-units of mu^2.

    Returns:
        Noise over sensitivity, at least 0.1 and within one part in 5,000 of the smallest.

    Raises:
        InvalidParameter: a value is out of range, or no noise is large enough.
    """
    event = PoissonGaussianEvent(probability, 1.0, count)
    room = (_amount("budget_nano", budget_nano) - 1) / NANO / (1 + 2 * PRICE_MARGIN)
    if room <= 0:
        raise InvalidParameter("budget_nano", budget_nano, "it is too small to pay for a release")
    if event.is_sampled:
        return least_noise(probability, count, room, filter.rate)
    noise = math.sqrt(count / room)
    while filter.cost_nano(dataclasses.replace(event, noise_multiplier=noise)) > budget_nano:
        noise *= 1 + PRICE_MARGIN  # each release's price is rounded up
    return noise


def loss_bound(privacy_filter: Filter, nano: int | None = None) -> float:
    """Return the privacy loss that everything published exceeds with probability at most delta.

    Epsilon is not that loss: the probability of outcomes whose loss exceeds epsilon can be many times delta (16 times
    at epsilon 1 and delta 1e-5).

    Args:
        nano: nano-units of mu^2 that may ever be spent, fixed before anything is published; None: the capacity. Do not
            pass the amount spent so far: an attacker who chooses when to look can exceed its bound more often.

    Returns:
        The bound b, which is above the amount's epsilon at delta; 0 if nothing may be spent.

    Privacy:
        Let P and Q be the distributions of all that is published with and without one unit. Let E be the outcomes with
        log dP/dQ > b. If P(E) > 0 then P(E) > e^b Q(E).

        However adaptively releases were chosen, all of it can be computed from a pair of random variables (see
        docs/explanation/accounting.md): with probability d (`Filter.d_of`) everything, else one release of a Gaussian,
        mu^2 = nano / 10^9. So for p = P(E), at least (p - d) / (1 - d) of the Gaussian's outcomes with the unit are in
        E. So Q(E) >= (1 - d) Phi(Phi^-1((p - d) / (1 - d)) - mu) = h(p) p. With P(E) > e^b Q(E), h(p) < e^-b. h grows,
        because h(p) p is convex in p and vanishes at d >= 0. The bound b is chosen with e^-b = h(delta), so p < delta.
        Some mechanism attains this.

        Q(E) <= P(E) <= delta, and the same holds with P and Q exchanged.
    """
    amount_nano = privacy_filter.capacity_nano if nano is None else _amount("nano", nano)
    if amount_nano == 0:
        return 0.0
    mu, d = math.sqrt(amount_nano / NANO), privacy_filter.d_of(amount_nano)
    if d >= privacy_filter.delta:
        return math.inf
    quantile = special.ndtri_exp(math.log((privacy_filter.delta - d) / (1 - d)))
    bound = math.log(privacy_filter.delta) - math.log1p(-d) - float(special.log_ndtr(quantile - mu))
    return bound * (1 + _ODDS_MARGIN)


def attacker_certainty_max(privacy_filter: Filter, nano: int | None = None) -> float:
    """Return the certainty that an attacker who starts at 50% can reach: 1 / (1 + e^-b), with b from `loss_bound`.

    The bound holds for everything published for `nano` together, except with probability at most delta: posterior odds
    are prior odds, here 1, times dP/dQ.
    """
    return float(special.expit(loss_bound(privacy_filter, nano)))
