"""What a training without a ledger pays with: the same rules, in memory."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from privacy.errors import BudgetExceeded, EventRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privacy.accounting.events import Event
    from privacy.plans.plan import Stage


class PlanBudget:
    """Pays for what a plan announces, as its hold would: each release at its price, stages priced as a whole once.

    Args:
        stages: of the training's plan.
        capacity_nano: what may be spent; None is the plan's price.

    Attributes:
        spent_nano: so far.
        releases: paid for so far, by stage.
    """

    def __init__(self, stages: Sequence[Stage], capacity_nano: int | None = None) -> None:
        price_nano = sum(stage.price_nano for stage in stages)
        self._stages = {stage.name: stage for stage in stages}
        self._left_nano = price_nano if capacity_nano is None else capacity_nano
        self.spent_nano = 0
        self.releases: Counter[str] = Counter()

    def charge(self, event: Event, stage: str) -> None:
        """Pay for `event.count` releases.

        Raises:
            BudgetExceeded: they cost more than is left, or are more than were priced.
            EventRefused: the plan has no such stage, or announced it with another event.
        """
        planned = self._stages.get(stage)
        if planned is None or not planned.announces(event):
            raise EventRefused(stage, event)
        made, whole = self.releases[stage], planned.paid_as_whole
        price_nano = 0 if whole is not None and made else planned.price_of(event.count)
        if price_nano > self._left_nano or (whole is not None and made + event.count > whole):
            raise BudgetExceeded(price_nano, self._left_nano)
        self._left_nano -= price_nano
        self.spent_nano += price_nano
        self.releases[stage] += event.count
