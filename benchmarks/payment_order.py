"""Audit the order of payment: every release must have been admitted by the account before its noise was drawn."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Protocol

from privacy.accounting.events import Event, GaussianEvent
from privacy.errors import PrivacyError


class ReleasedUnpaid(PrivacyError):
    """A release was made before it was paid: `released` of its kind so far, `paid` of them."""

    def __init__(self, event: Event, released: int, paid: int) -> None:
        sampled = "" if isinstance(event, GaussianEvent) else f" of a sample with chance {event.sampling_probability:g}"
        super().__init__(
            f"release {released}{sampled} with noise multiplier {event.noise_multiplier:g} was made when {paid} of its "
            "kind had been paid: a budget is charged before the noise is drawn"
        )
        self.event, self.released, self.paid = event, released, paid


class Payer(Protocol):
    """A ledger's hold, or a filter."""

    def charge(self, event: Event, stage: str) -> None: ...


class PaymentJournal:
    """Record every charge that a payer admits, and every release as it happens."""

    def __init__(self, payer: Payer) -> None:
        self._payer = payer
        self.paid: Counter[Event] = Counter()
        self.released: Counter[Event] = Counter()

    def charge(self, event: Event, stage: str) -> None:
        """Pass the charge on, and record it once it is admitted."""
        self._payer.charge(event, stage)
        self.paid[dataclasses.replace(event, count=1)] += event.count

    def note_release(self, event: Event) -> None:
        """Record `event.count` releases that are being made now; raise ReleasedUnpaid if fewer were paid."""
        kind = dataclasses.replace(event, count=1)
        self.released[kind] += event.count
        if self.released[kind] > self.paid[kind]:
            raise ReleasedUnpaid(event, self.released[kind], self.paid[kind])
