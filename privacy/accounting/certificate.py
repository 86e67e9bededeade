"""The certificate of a release: the guarantee, the unit, the events, and the assumptions."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Sequence
from typing import Any

from obscura.wire.budgets import UNIT_WORDS, UNITS, Unit
from privacy.accounting.events import Event, dp_event
from privacy.accounting.filter import Filter
from privacy.accounting.gaussian import gaussian_epsilon
from privacy.errors import BudgetExceeded, InvalidParameter

NOT_COVERED = (
    "facts that a person who knows the owner's public declarations already knows",
    "properties of the population, which a good release is meant to show",
    "people or records that the owner's upload contains as several units, such as one person under two ids",
    "attacks on the machine that holds the private images, or on its operators",
)

# Discretisation of privacy losses: points per standard deviation of one release's loss and of all, and the coarsest
# interval. Any interval gives an upper bound; these give an accuracy of a thousandth in a quarter of a second.
_POINTS_OF_ONE, _POINTS_OF_ALL, _INTERVAL_MAX = 5_000, 100_000, 5e-4


def build_certificate(
    *, filter: Filter, events: Sequence[Event], unit: Unit, assumed_public: Sequence[str], cost_nano: int
) -> dict[str, Any]:
    """Return the public statement of one release's events and guarantee, under the account's filter.

    Args:
        filter: the account's filter when the release was priced.
        events: all releases, in any order.
        unit: "record" or "subject".
        assumed_public: facts that the owner declared public, in words.
        cost_nano: charged by the ledger, including repeated steps.

    Returns:
        JSON with finite numbers:
        epsilon: upper bound for this release alone, at `delta`, from the charge to the account.
        delta: the account's.
        unit, protects: the unit, as an identifier and in words.
        adjacency: always "add_remove".
        accounting: always "approximate_gdp".
        rate: d, the part of delta that the account allotted to each unit of mu^2 at the time.
        base: d that the account may have allotted before, at higher rates.
        capacity_nano: the account's capacity at the time, in nano-units of mu^2.
        cost_nano: charged for this release.
        events: the paid events, as `event_from_json` reads them.
        accountant, accountant_version: the package that checked the events.
        pld_epsilon: epsilon of the events at `delta` by privacy loss distributions; for information only.
        assumed_public: as given.
        not_covered: risks that the guarantee does not cover.

    Raises:
        InvalidParameter: there is no event, the unit is unknown, or less was charged than the events cost.
        BudgetExceeded: the charge exceeds the account's capacity.
    """
    if not events:
        raise InvalidParameter("events", [], "a release without events has nothing to certify")
    if unit not in UNITS:
        raise InvalidParameter("unit", unit, f"the units are {' and '.join(UNITS)}")
    exact_nano = sum(filter.cost_nano(event) for event in events)
    if cost_nano < exact_nano:
        raise InvalidParameter("cost_nano", cost_nano, f"the events cost more: {exact_nano} nano-units")
    if cost_nano > filter.capacity_nano:
        raise BudgetExceeded(cost_nano, filter.capacity_nano)
    return {
        "epsilon": filter.epsilon_of(cost_nano),
        "delta": filter.delta,
        "unit": unit,
        "protects": UNIT_WORDS[unit],
        "adjacency": "add_remove",
        "accounting": "approximate_gdp",
        "rate": filter.rate,
        "base": filter.base,
        "capacity_nano": filter.capacity_nano,
        "cost_nano": cost_nano,
        "events": [event.to_json() for event in events],
        "accountant": "dp-accounting",
        "accountant_version": importlib.metadata.version("dp-accounting"),
        "pld_epsilon": pld_epsilon(events, filter.delta),
        "assumed_public": list(assumed_public),
        "not_covered": list(NOT_COVERED),
    }


def pld_epsilon(events: Sequence[Event], delta: float) -> float:
    """Return an upper bound of the epsilon of events that are fixed in advance, by privacy loss distributions.

    Unsampled releases are first merged into one of the same total mu^2, which is exact and limits discretisation.
    """
    gaussian = float(sum(event.count * event.mu_squared_exact for event in events if not event.is_sampled))
    sampled = [event for event in events if event.is_sampled]
    mu = math.sqrt(gaussian)
    if not sampled:  # a privacy loss distribution of one Gaussian has a closed form
        return gaussian_epsilon(mu, delta)
    one = max(mu, *(1 / event.noise_multiplier for event in sampled))
    everything = math.sqrt(gaussian + sum(event.count / event.noise_multiplier**2 for event in sampled))
    interval = min(_INTERVAL_MAX, max(one / _POINTS_OF_ONE, everything / _POINTS_OF_ALL))
    import dp_accounting.pld  # imported at first use, because the import takes seconds

    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=interval)
    if mu > 0:
        accountant.compose(dp_accounting.GaussianDpEvent(1 / mu))
    for event in sampled:
        accountant.compose(dp_event(event))
    return float(accountant.get_epsilon(delta))
