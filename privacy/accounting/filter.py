"""The privacy filter: one number per account, charged by jobs that may be chosen adaptively.

It turns the account's (epsilon, delta) into a capacity and every event into a price, both in integer nano-units of
mu^2. Prices are rounded up and capacities down, so a comparison of integers decides.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from privacy.accounting.approximate_gdp import least_mu_squared, mu_squared_within, split
from privacy.accounting.events import Event
from privacy.accounting.gaussian import EPSILON_MAX, checked_delta, checked_epsilon, gaussian_epsilon
from privacy.errors import InvalidParameter

NANO = 10**9
_REMEMBERED = 2**15  # accounts at their limits, which change rarely and are opened often
# Relative, of prices that are found numerically: another machine's rounding may move the last digits of what it finds.
PRICE_MARGIN = 1e-6


@dataclasses.dataclass(frozen=True)
class Filter:
    """Price releases in approximate Gaussian differential privacy; `open_filter` makes one.

    Privacy: the events of an account, each priced as a whole by the mu^2 and the d = rate * mu^2 that dominate it, may
    be chosen adaptively. While their prices add up to at most the capacity, all that is ever published is
    (epsilon, delta)-differentially private. The proof stands in docs/accounting.md.

    Attributes:
        epsilon: the account's limit.
        delta: of the account.
        rate: d that comes with each unit of mu^2. It falls when the limit is raised, and never grows. 0 pays for
            Gaussian releases at what they are worth, and for sampled ones as if everybody were in the sample.
        base: d by which what was spent at higher rates, before the limit was raised, may exceed rate * mu^2.
        capacity_nano: nano-units of mu^2 that the account holds in all.
    """

    epsilon: float
    delta: float
    rate: float
    base: float = 0.0
    capacity_nano: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        for name, value in (("rate", self.rate), ("base", self.base)):
            if not 0 <= value < math.inf:
                raise InvalidParameter(name, value, "it is a finite number that is not negative")
        object.__setattr__(self, "capacity_nano", self.nano_of(self.epsilon))

    def price_nano(self, event: Event) -> int:
        """Return the price of all the event's releases, rounded up.

        Releases that take everybody cost the same each. Those of Poisson samples are priced as a whole, all of them
        together, so their price is owed once the first of them is made.
        """
        if not event.is_sampled:
            return event.count * release_nano(event)
        return math.floor(least_mu_squared([event], self.rate) * (1 + PRICE_MARGIN) * NANO) + 1

    def d_of(self, nano: int) -> float:
        """Return the most d that can have come with `nano`, whatever it was spent on."""
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
        """Return how many nano-units a budget of (epsilon, delta) holds, rounded down."""
        return _nano_within(checked_epsilon(epsilon), checked_delta(self.delta), self.rate, self.base)

    def at_limit(self, epsilon: float, used_nano: int) -> Filter:
        """Return the filter of the account with another limit.

        A lower limit keeps the rate. For a higher one, a tenth of what is left of delta is added to the d that was
        given, and the rate becomes what suits the new capacity, unless that were a higher one.

        Args:
            epsilon: the new limit.
            used_nano: what is spent and held by then, and so was priced at the rates so far.

        Raises:
            InvalidParameter: the limit is out of range, or smaller than one nano-unit.
        """
        if epsilon <= self.epsilon:
            return _that_holds_something(open_filter(epsilon, self.delta, self.rate, self.base))
        given = self.d_of(used_nano)
        mu_squared, d = split(checked_epsilon(epsilon), self.delta, given)
        left = mu_squared - used_nano / NANO
        rate = min(self.rate, (d - given) / left) if left > 0 else self.rate
        base = max(given - rate * used_nano / NANO, self.base)
        return _that_holds_something(open_filter(epsilon, self.delta, rate, base))


def release_nano(event: Event) -> int:
    """Return what one release that takes everybody costs, rounded up: the same in every account."""
    return math.ceil(event.mu_squared_exact * NANO)


def open_filter(epsilon: float, delta: float, rate: float | None = None, base: float = 0.0) -> Filter:
    """Open, or reopen, the filter of an account.

    Args:
        epsilon: the account's limit, positive and finite.
        delta: the account's delta, strictly between 0 and 1.
        rate: of the account; None chooses the one that suits this budget.
        base: of the account.

    Raises:
        InvalidParameter: a value is out of range, or the budget of a new account is too small to buy anything.
    """
    return _open(checked_epsilon(epsilon), checked_delta(delta), rate, base)


@functools.lru_cache(maxsize=_REMEMBERED)
def _open(epsilon: float, delta: float, rate: float | None, base: float) -> Filter:
    if rate is None:
        mu_squared, d = split(epsilon, delta)
        return _that_holds_something(Filter(epsilon, delta, d / mu_squared, base))
    return Filter(epsilon, delta, rate, base)


def _that_holds_something(opened: Filter) -> Filter:
    if opened.capacity_nano < 1:
        why = f"at delta={opened.delta!r} the budget is smaller than one nano-unit and could buy nothing"
        raise InvalidParameter("epsilon", opened.epsilon, why)
    return opened


@functools.lru_cache(maxsize=_REMEMBERED)
def _nano_within(epsilon: float, delta: float, rate: float, base: float) -> int:
    return math.floor(mu_squared_within(epsilon, delta, rate, base) * NANO)
