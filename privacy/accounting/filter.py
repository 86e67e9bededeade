"""The privacy filter: an account's (epsilon, delta) as a capacity, and every event as a price, in nano-units of mu^2.

Prices are rounded up and capacities down, so a comparison of integers decides. Jobs may be chosen adaptively.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from privacy.accounting.approximate_gdp import least_mu_squared, mu_squared_within, split
from privacy.accounting.events import Event
from privacy.accounting.gaussian import EPSILON_MAX, REMEMBERED, checked_delta, checked_epsilon, gaussian_epsilon
from privacy.errors import InvalidParameter

NANO = 10**9
PRICE_MARGIN = 1e-6  # relative tolerance of numerical prices, whose last digits may differ between machines


@dataclasses.dataclass(frozen=True)
class Filter:
    """Price releases in approximate Gaussian differential privacy; `open_filter` creates a filter.

    Privacy: each event of an account is priced as a whole, by the mu^2 and the d = rate * mu^2 that dominate it. Events
    may be chosen adaptively. While their prices add up to at most the capacity, everything published is (epsilon,
    delta)-differentially private. The proof is in docs/explanation/accounting.md.

    Attributes:
        epsilon: the account's limit.
        delta: of the account.
        rate: d for each unit of mu^2. It falls when the limit is raised and never grows. At rate 0, sampled releases
            are priced as unsampled.
        base: d beyond rate * mu^2 that spending at higher rates, before the limit was raised, may have used.
        capacity_nano: total nano-units of mu^2.
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
        """Return the epsilon, at the account's delta, of having spent `nano`; at most EPSILON_MAX."""
        if isinstance(nano, bool) or not isinstance(nano, int) or nano < 0:
            raise InvalidParameter("nano", nano, "an amount of budget is a whole, non-negative number of nano-units")
        d = self.d_of(nano)
        if nano == 0:
            return 0.0
        if d >= self.delta:
            return EPSILON_MAX
        spent = gaussian_epsilon(math.sqrt(nano / NANO), (self.delta - d) / (1 - d))
        return min(spent, self.epsilon if nano <= self.capacity_nano else EPSILON_MAX)

    def nano_of(self, epsilon: float) -> int:
        """Return the nano-units of a budget of (epsilon, delta), rounded down."""
        within = mu_squared_within(checked_epsilon(epsilon), checked_delta(self.delta), self.rate, self.base)
        return math.floor(within * NANO)

    def at_limit(self, epsilon: float, used_nano: int) -> Filter:
        """Return the filter of the account with another limit.

        A lower limit keeps the rate. A higher limit adds a tenth of the remaining delta to the d allotted so far. It
        fits the rate to the new capacity, but never raises the rate.

        Args:
            epsilon: the new limit.
            used_nano: spent and held so far, priced at earlier rates.

        Raises:
            InvalidParameter: the limit is out of range, or smaller than one nano-unit.
        """
        rate, base = self.rate, self.base
        if epsilon > self.epsilon:
            given = self.d_of(used_nano)
            mu_squared, d = split(checked_epsilon(epsilon), self.delta, given)
            left = mu_squared - used_nano / NANO
            rate = min(rate, (d - given) / left) if left > 0 else rate
            base = max(given - rate * used_nano / NANO, base)
        return _that_holds_something(open_filter(epsilon, self.delta, rate, base))


def release_nano(event: Event) -> int:
    """Return the price of one unsampled release, rounded up: the same in every account."""
    return math.ceil(event.mu_squared_exact * NANO)


@functools.lru_cache(maxsize=REMEMBERED, typed=True)
def open_filter(epsilon: float, delta: float, rate: float | None = None, base: float = 0.0) -> Filter:
    """Return the filter of a new account, or of an account whose rate and base are stored.

    Args:
        epsilon: the account's limit, positive and finite.
        delta: the account's delta, strictly between 0 and 1.
        rate: of the account; None fits it to this budget.
        base: of the account.

    Raises:
        InvalidParameter: a value is out of range, or a new account's budget is below one nano-unit.
    """
    epsilon, delta = checked_epsilon(epsilon), checked_delta(delta)
    if rate is None:
        mu_squared, d = split(epsilon, delta)
        return _that_holds_something(Filter(epsilon, delta, d / mu_squared, base))
    return Filter(epsilon, delta, rate, base)


def _that_holds_something(opened: Filter) -> Filter:
    if opened.capacity_nano < 1:
        why = f"at delta={opened.delta!r} the budget is smaller than one nano-unit and could buy nothing"
        raise InvalidParameter("epsilon", opened.epsilon, why)
    return opened
