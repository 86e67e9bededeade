"""What trainings of benchmarks pay with, where there is no ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privacy.errors import BudgetExceeded

if TYPE_CHECKING:
    from privacy.accounting.events import Event
    from privacy.accounting.filters import Filter


class NoLedger:
    """Lets every release pass: the images are public, and no account is charged."""

    def charge(self, event: Event, stage: str) -> None:
        """Charge nothing."""


class FilterBudget:
    """An account of its own for one training: a filter and what may be spent."""

    def __init__(self, privacy_filter: Filter, capacity_nano: int) -> None:
        self._filter, self._capacity_nano = privacy_filter, capacity_nano
        self.spent_nano = 0
        self.stages: list[str] = []  # in the order of payment

    def charge(self, event: Event, stage: str) -> None:
        """Admit the event if its price still fits.

        Raises:
            BudgetExceeded: it does not.
        """
        price_nano = self._filter.price_nano(event)
        if self.spent_nano + price_nano > self._capacity_nano:
            raise BudgetExceeded(price_nano, self._capacity_nano - self.spent_nano)
        self.spent_nano += price_nano
        self.stages.append(stage)
