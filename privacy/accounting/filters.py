"""Privacy filters: one scalar per account, charged by jobs that may be chosen adaptively.

A filter turns the account's (epsilon, delta) into a capacity and every event into a price, both in integer
nano-units. Prices are rounded up and capacities down, so a comparison of integers decides.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction
from typing import Literal, Protocol

from scipy import optimize, special

from privacy.accounting.events import Event, GaussianEvent, positive_finite
from privacy.errors import EventRefused, InvalidParameter

NANO = 10**9
FilterName = Literal["gdp", "rdp"]

EPSILON_MAX = 10_000.0  # Far beyond any meaning; keeps every capacity inside a signed 64-bit integer.
ORDER_MAX = 10**6
_REMEMBERED = 2**15  # budgets and balances: those of some thousands of accounts, which change rarely and are read often
_MARGIN = 1e-9  # Relative slack taken from capacities; the root finding below is good to 1e-11.


class Filter(Protocol):
    """What an account needs from its filter."""

    @property
    def name(self) -> FilterName: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float: ...
    @property
    def order(self) -> float | None: ...
    @property
    def capacity_nano(self) -> int: ...
    def unit_price_nano(self, event: Event) -> int: ...
    def price_nano(self, event: Event) -> int: ...
    def epsilon_of(self, nano: int) -> float: ...
    def nano_of(self, epsilon: float) -> int: ...


def _epsilon(value: float) -> float:
    if positive_finite("epsilon", value) > EPSILON_MAX:
        raise InvalidParameter("epsilon", value, f"the largest epsilon that is accounted for is {EPSILON_MAX:g}")
    return float(value)


def _delta(value: float) -> float:
    if not 0 < positive_finite("delta", value) < 1:
        raise InvalidParameter("delta", value, "delta is a probability strictly between 0 and 1")
    return float(value)


def _nano(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidParameter("nano", value, "an amount of budget is a whole, non-negative number of nano-units")
    return value


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


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


@functools.lru_cache(maxsize=_REMEMBERED, typed=True)
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-GDP implies (epsilon, delta)-DP, by bisection in log space.

    Raises:
        InvalidParameter: epsilon or delta is out of range.
    """
    epsilon, log_delta = _epsilon(epsilon), math.log(_delta(delta))
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


@functools.lru_cache(maxsize=_REMEMBERED, typed=True)
def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon for which a mu-GDP mechanism is (epsilon, delta)-DP; 0 when delta alone covers it."""
    log_delta = math.log(_delta(delta))
    if gaussian_log_delta(positive_finite("mu", mu), 0.0) <= log_delta:
        return 0.0
    high = 1.0
    while gaussian_log_delta(mu, high) > log_delta:
        high *= 2
    return float(optimize.brentq(lambda e: max(gaussian_log_delta(mu, e), -1e6) - log_delta, 0.0, high, xtol=1e-13))


@dataclasses.dataclass(frozen=True)
class GdpFilter:
    """Price Gaussian releases by mu^2, exactly.

    Privacy: a fully adaptive composition of mu_i-GDP Gaussian mechanisms whose sum of mu_i^2 is never allowed
    above mu^2 is mu-GDP: Smith & Thakurta 2022 (arXiv:2210.17520), Koskela, Tobaben & Honkela 2022
    (arXiv:2206.15358). No other event has a price here.
    """

    epsilon: float
    delta: float
    name: Literal["gdp"] = dataclasses.field(default="gdp", init=False)
    order: None = dataclasses.field(default=None, init=False)
    capacity_nano: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _epsilon(self.epsilon))
        object.__setattr__(self, "delta", _delta(self.delta))
        object.__setattr__(self, "capacity_nano", _capacity(self))

    def unit_price_nano(self, event: Event) -> int:
        """Return the price of one release, rounded up.

        Raises:
            EventRefused: the event is not a plain Gaussian release.
        """
        if not isinstance(event, GaussianEvent):
            raise EventRefused(self.name, event, "it prices Gaussian releases only; open the account with rdp")
        return _ceil(event.mu_squared_exact * NANO)

    def price_nano(self, event: Event) -> int:
        """Return the price of all the event's releases."""
        return event.count * self.unit_price_nano(event)

    def epsilon_of(self, nano: int) -> float:
        """Return the epsilon, at the account's delta, of having spent `nano`."""
        if _nano(nano) == 0:
            return 0.0
        spent = gaussian_epsilon(math.sqrt(nano / NANO), self.delta)
        return min(spent, self.epsilon) if nano <= self.capacity_nano else spent

    def nano_of(self, epsilon: float) -> int:
        """Return how many nano-units a budget of (epsilon, delta) holds, rounded down."""
        return math.floor(gaussian_mu(epsilon, self.delta) ** 2 * (1 - _MARGIN) * NANO)


@dataclasses.dataclass(frozen=True)
class RdpFilter:
    """Price events by their Renyi divergence at one order that was fixed when the account was opened.

    Privacy: fully adaptive composition at a fixed order adds up (Feldman & Zrnic 2021, arXiv:2008.11193; Lecuyer
    2021, arXiv:2103.01379). The conversion to (epsilon, delta) is Proposition 12 of Canonne, Kamath & Steinke 2020
    (arXiv:2004.00010), as in dp-accounting. Picking the order afterwards would not be covered.
    """

    epsilon: float
    delta: float
    order: float
    name: Literal["rdp"] = dataclasses.field(default="rdp", init=False)
    capacity_nano: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _epsilon(self.epsilon))
        object.__setattr__(self, "delta", _delta(self.delta))
        if not 1.01 < positive_finite("order", self.order) <= ORDER_MAX:  # below, the conversion says nothing
            raise InvalidParameter("order", self.order, f"a Renyi order lies above 1.01 and is at most {ORDER_MAX}")
        object.__setattr__(self, "order", float(self.order))
        object.__setattr__(self, "capacity_nano", _capacity(self))

    def unit_price_nano(self, event: Event) -> int:
        """Return the price of one release, rounded up.

        Raises:
            EventRefused: the divergence at the account's order is infinite or not computable.
        """
        if isinstance(event, GaussianEvent):  # exact rational arithmetic: order * mu^2 / 2
            return _ceil(Fraction(self.order) * event.mu_squared_exact / 2 * NANO)
        import dp_accounting.rdp  # loaded where it is used, as in events.py

        accountant = dp_accounting.rdp.RdpAccountant([self.order])
        try:
            divergence = float(accountant.compose(dataclasses.replace(event, count=1).dp_event()).rdp[0])
        except ArithmeticError:  # noise so small that its square vanishes
            divergence = math.inf
        if not math.isfinite(divergence):
            raise EventRefused(self.name, event, f"its divergence at order {self.order:g} is infinite; use more noise")
        return math.floor(max(divergence, 0.0) * (1 + _MARGIN) * NANO) + 1  # at least one nano-unit

    def price_nano(self, event: Event) -> int:
        """Return the price of all the event's releases."""
        return event.count * self.unit_price_nano(event)

    def epsilon_of(self, nano: int) -> float:
        """Return the epsilon, at the account's order and delta, of having spent `nano`.

        The order suits a full account: for a small `nano` the figure is an upper bound that is far from tight.
        """
        if _nano(nano) == 0:
            return 0.0
        spent = max(nano / NANO + _conversion(self.order, self.delta), 0.0)
        return min(spent, self.epsilon) if nano <= self.capacity_nano else spent

    def nano_of(self, epsilon: float) -> int:
        """Return how many nano-units a budget of (epsilon, delta) holds at the account's order, rounded down.

        An epsilon far below the account's may hold nothing: one order cannot suit both.
        """
        return max(math.floor((_epsilon(epsilon) - _conversion(self.order, self.delta)) * (1 - _MARGIN) * NANO), 0)


def _capacity(account: Filter) -> int:
    capacity_nano = account.nano_of(account.epsilon)
    if capacity_nano < 1:
        why = f"at delta={account.delta!r} the budget is smaller than one nano-unit and could buy nothing"
        raise InvalidParameter("epsilon", account.epsilon, why)
    return capacity_nano


def _conversion(order: float, delta: float) -> float:
    """Return what is added to the divergence at `order` to obtain epsilon at `delta`."""
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


@functools.lru_cache(maxsize=_REMEMBERED, typed=True)
def gaussian_order(epsilon: float, delta: float) -> float:
    """Return the Renyi order at which most Gaussian releases fit into (epsilon, delta).

    Maximises (epsilon - conversion(order)) / order. Rounded to two decimals, or from 32 on to an integer, where the
    divergence of the subsampled Gaussian is a finite sum; the loss is below one part in a thousand.
    """
    epsilon, delta = _epsilon(epsilon), _delta(delta)

    def loss(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        return -(epsilon - _conversion(order, delta)) / order

    bounds = (math.log(0.02), math.log(ORDER_MAX - 2))
    order = 1 + math.exp(optimize.minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-9}).x)
    return float(round(order)) if order >= 32 else round(order, 2)


def open_filter(name: FilterName, epsilon: float, delta: float, order: float | None = None) -> Filter:
    """Open, or reopen, the filter of an account.

    Args:
        name: "gdp" for Gaussian events only (exact), "rdp" for every event.
        epsilon: the account's limit, positive and finite.
        delta: the account's delta, strictly between 0 and 1.
        order: for rdp, the order stored at opening; None chooses the one that suits Gaussian noise at this budget.

    Raises:
        InvalidParameter: a value is out of range, or the budget is too small to buy anything.
    """
    if name == "gdp":
        if order is not None:
            raise InvalidParameter("order", order, "the gdp filter has no order")
        return GdpFilter(epsilon, delta)
    if name == "rdp":
        return RdpFilter(epsilon, delta, gaussian_order(epsilon, delta) if order is None else order)
    raise InvalidParameter("filter", name, "the filters are gdp (Gaussian events) and rdp (every event)")
