"""What trainings of benchmarks pay with: there is no ledger, and no account is charged for public images."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privacy.accounting.events import Event


class NoLedger:
    """Lets everything pass."""

    def charge(self, event: Event, stage: str) -> None:
        """Charge nothing."""


class CountedBudget:
    """Lets everything pass and counts it by stage, to be compared with the plan."""

    def __init__(self) -> None:
        self.releases: Counter[str] = Counter()

    def charge(self, event: Event, stage: str) -> None:
        """Add to the stage's count."""
        self.releases[stage] += event.count
