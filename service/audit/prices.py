"""Recompute prices from the public parameters of what is paid for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privacy.accounting.events import GaussianEvent, event_from_json
from privacy.accounting.filters import Filter, open_filter
from service.audit.findings import FindingCode, require, whole

# Prices of plain Gaussian releases are rational and must agree exactly. Capacities and subsampled prices go through
# floating point: another version of a library may move the last digits, within the margin that the filters keep.
FLOAT_TOLERANCE = 4e-9


class Prices:
    """Recomputes prices from the public parameters of events; remembers those it has seen.

    Args:
        required: a HOLD or CHARGE whose entry does not say what it pays for is a fault.
    """

    def __init__(self, *, required: bool) -> None:
        self._required = required
        self._filter: Filter | None = None
        self._filters: dict[tuple[Any, ...], Filter] = {}
        self._units: dict[tuple[Any, ...], tuple[int, bool]] = {}

    def use(self, filter_name: str, epsilon: float, delta: float, order: float | None) -> Filter:
        """Price for an account from now on."""
        terms = (filter_name, epsilon, delta, order)
        if terms not in self._filters:
            self._filters[terms] = open_filter(*terms)  # type: ignore[arg-type]  # refuses other names
        self._filter = self._filters[terms]
        return self._filter

    def check_hold(self, amount_nano: int, details: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """Compare a hold's amount with the price of the stages of its plan; returns the events by stage."""
        stages = details.get("stages")
        if not stages:
            require(not self._required, FindingCode.PRICE_UNKNOWN, "does not say what is held for")
            return {}
        total = 0
        for stage in stages:
            self._check(stage["event"], stage["price_nano"])
            total += stage["price_nano"]
        require(total == amount_nano, FindingCode.PRICE_MISMATCH, "holds another amount than its stages cost")
        return {stage["name"]: stage["event"] for stage in stages}

    def check_charge(
        self, amount_nano: int, details: Mapping[str, Any], stages: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Compare a charge with the price of its event, and its event with the one that was planned."""
        event = details.get("event")
        if event is None:
            require(not self._required, FindingCode.PRICE_UNKNOWN, "does not say what is paid for")
            return
        self._check(event, amount_nano)
        if stages:
            planned = stages.get(details["stage"])
            require(
                planned is not None and {**planned, "count": 0} == {**event, "count": 0},
                FindingCode.PRICE_MISMATCH,
                "pays for a release that its plan did not announce",
            )

    def _check(self, event: Mapping[str, Any], price_nano: int) -> None:
        unit_nano, exact = self._unit(event)
        wanted_nano = whole(event["count"]) * unit_nano
        slack_nano = 0 if exact else event["count"] + FLOAT_TOLERANCE * wanted_nano
        require(
            abs(whole(price_nano) - wanted_nano) <= slack_nano,
            FindingCode.PRICE_MISMATCH,
            f"has the price {price_nano} where its parameters cost {wanted_nano}",
        )

    def _unit(self, event: Mapping[str, Any]) -> tuple[int, bool]:
        assert self._filter is not None
        key = (self._filter.name, self._filter.order, *(item for item in event.items() if item[0] != "count"))
        known = self._units.get(key)
        if known is None:
            made = event_from_json(event)
            known = self._units[key] = (self._filter.unit_price_nano(made), isinstance(made, GaussianEvent))
        return known
