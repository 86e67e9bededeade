"""Recompute prices from the public parameters of what is paid for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from privacy.accounting.events import Event, event_from_json
from privacy.accounting.filter import PRICE_MARGIN, Filter
from service.audit.findings import FindingCode, require, whole

# Prices of releases that take everybody are rational and must agree exactly. Capacities and prices of sampled stages go
# through floating point: another machine, or version of a library, may move the last digits within these margins.
FLOAT_TOLERANCE = 4e-9


class Prices:
    """Recomputes prices from the public parameters of events; remembers those it has seen.

    Args:
        required: a HOLD or CHARGE whose entry does not say what it pays for is a fault.
    """

    def __init__(self, *, required: bool) -> None:
        self._required = required
        self._filter: Filter | None = None
        self._known: dict[tuple[Any, ...], int] = {}

    def use(self, privacy_filter: Filter) -> Filter:
        """Price for an account from now on."""
        self._filter = privacy_filter
        return privacy_filter

    def check_hold(self, amount_nano: int, details: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """Compare a hold's amount with the price of the stages of its plan; returns the stages by name."""
        stages = details.get("stages")
        if not stages:
            require(not self._required, FindingCode.PRICE_UNKNOWN, "does not say what is held for")
            return {}
        total = 0
        for stage in stages:
            event = event_from_json(stage["event"])
            self._check(replace(event, count=event.count + whole(stage.get("repeats", 0))), stage["price_nano"])
            total += stage["price_nano"]
        require(total == amount_nano, FindingCode.PRICE_MISMATCH, "holds another amount than its stages cost")
        return {stage["name"]: stage for stage in stages}

    def check_charge(
        self, amount_nano: int, details: Mapping[str, Any], stages: Mapping[str, Mapping[str, Any]], made: int
    ) -> None:
        """Compare a charge with the price of its event, and its event with the one that was planned.

        Args:
            made: releases of the stage that were counted before, where it is priced as a whole.
        """
        if details.get("event") is None:
            require(not self._required, FindingCode.PRICE_UNKNOWN, "does not say what is paid for")
            return
        event, planned = event_from_json(details["event"]), stages.get(details["stage"])
        if stages:
            require(
                planned is not None and {**planned["event"], "count": 0} == {**details["event"], "count": 0},
                FindingCode.PRICE_MISMATCH,
                "pays for a release that its plan did not announce",
            )
        if not event.is_sampled:
            self._check(event, amount_nano)
            return
        require(planned is not None, FindingCode.PRICE_UNKNOWN, "pays for a part of a stage that its plan did not name")
        assert planned is not None
        require(
            made + event.count <= planned["event"]["count"] + planned.get("repeats", 0)
            and details.get("released", {}).get(details["stage"]) == made + event.count
            and amount_nano == (0 if made else planned["price_nano"]),
            FindingCode.PRICE_MISMATCH,
            "pays for more releases than were priced together, or another price than theirs",
        )

    def _check(self, event: Event, price_nano: int) -> None:
        wanted_nano = self._price(event)
        slack_nano = 1 + PRICE_MARGIN * wanted_nano if event.is_sampled else 0
        require(
            abs(whole(price_nano) - wanted_nano) <= slack_nano,
            FindingCode.PRICE_MISMATCH,
            f"has the price {price_nano} where its parameters cost {wanted_nano}",
        )

    def _price(self, event: Event) -> int:
        assert self._filter is not None
        if not event.is_sampled:  # one release's price is the same in every account
            key: tuple[Any, ...] = (replace(event, count=1),)
            if key not in self._known:
                self._known[key] = self._filter.price_nano(key[0])
            return event.count * self._known[key]
        key = (event, self._filter.rate)
        if key not in self._known:
            self._known[key] = self._filter.price_nano(event)
        return self._known[key]
