"""Audit the order of payment: every release must have been admitted by the account before its noise was drawn."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Protocol

from privacy.accounting.events import Event, GaussianEvent
from privacy.errors import PrivacyError


class ReleasedUnpaid(PrivacyError):
    """A release was made that nothing had paid for.

    Attributes:
        event: one such release.
        released: how many releases of its kind there were, this one included.
        paid: how many had been paid by then.
    """

    def __init__(self, event: Event, released: int, paid: int) -> None:
        sampled = "" if isinstance(event, GaussianEvent) else f" of a sample with chance {event.sampling_probability:g}"
        super().__init__(
            f"release {released}{sampled} with noise multiplier {event.noise_multiplier:g} was made when {paid} of its "
            "kind had been paid: a budget is charged before the noise is drawn"
        )
        self.event, self.released, self.paid = event, released, paid


class Payer(Protocol):
    """What takes payment: a ledger's hold, or a filter."""

    def charge(self, event: Event, stage: str) -> None: ...


class PaymentJournal:
    """Stands directly before whoever admits charges, and is told of every release as it happens.

    Args:
        payer: admits or refuses each charge; what it refuses is not written down as paid.
    """

    def __init__(self, payer: Payer) -> None:
        self._payer = payer
        self.paid: Counter[Event] = Counter()
        self.released: Counter[Event] = Counter()

    def charge(self, event: Event, stage: str) -> None:
        """Hand the charge on and write it down once it has been admitted.

        Raises:
            BudgetExceeded: from the payer.
        """
        self._payer.charge(event, stage)
        self.paid[dataclasses.replace(event, count=1)] += event.count

    def note_release(self, event: Event) -> None:
        """Write down `event.count` releases that are being made now.

        Raises:
            ReleasedUnpaid: fewer were paid.
        """
        kind = dataclasses.replace(event, count=1)
        self.released[kind] += event.count
        if self.released[kind] > self.paid[kind]:
            raise ReleasedUnpaid(event, self.released[kind], self.paid[kind])
