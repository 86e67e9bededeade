"""How a training pays from its hold.

A charge is a transaction, committed before the release that it pays for; between the two a line goes to the job's
journal (`service.storage.journals`).
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from obscura.wire.words import EntryKind
from privacy.accounting.events import Event
from privacy.errors import BudgetExceeded, EventRefused
from service import ledger
from service.db.session import transaction
from service.errors import HoldExhausted
from service.failpoints import failpoint
from service.storage.journals import Journal
from workers.train.orders import Context, Training

_PAGE_ROWS = 1000


class HeldBudget:
    """The hold of one job, as its recipe sees it (`workers.recipes.interface.Budget`).

    A recipe may only privatise what its plan announced: an event with other noise or sensitivity is refused.

    It is closed from the start where this attempt is there to publish what was paid for.

    Args:
        context: of the attempt, which has armed the hold.
        training: whose journal gets a line for every charge before anything is released for it.
    """

    def __init__(self, context: Context, training: Training) -> None:
        self._context, self._training = context, training
        self._journal = Journal(context.storage, training.job.id, context.attempt.number, training.account.id)
        self.charged_nano = training.charged_nano
        self.closed = training.job.ended_early is not None

    def close(self) -> None:
        """Refuse every further charge: the training ends early, with what it has."""
        self.closed = True

    def charge(self, event: Event, stage: str) -> None:
        """Pay for `event.count` releases; durable when this returns.

        Raises:
            BudgetExceeded: the hold does not cover the event, or the budget is closed; nothing was charged.
            EventRefused: the plan has no such stage, or announced it with another event.
            OSError: the journal cannot be written; nothing may be released.
        """
        training, planned = self._training, self._training.plan.stage(stage)
        if planned is None or not planned.announces(event):
            raise EventRefused(stage, event)
        amount_nano = planned.price_of(event.count)
        if self.closed:
            raise BudgetExceeded(amount_nano, 0)
        try:
            with transaction(self._context.factory) as session:
                charged_nano = ledger.charge(
                    session,
                    hold_id=training.hold_id,
                    attempt=self._context.attempt.number,
                    amount_nano=amount_nano,
                    stage=stage,
                    event=event.to_json(),
                    paid_as_whole=planned.paid_as_whole,
                    now=datetime.now(UTC),
                )
                failpoint("charge.before")
        except HoldExhausted as error:
            left_nano = error.numbers.get("left_nano")
            raise BudgetExceeded(amount_nano, left_nano if isinstance(left_nano, int) else 0) from None
        failpoint("charge.after")
        paid_nano, self.charged_nano = charged_nano - self.charged_nano, charged_nano
        self._journal.write(stage=stage, count=event.count, price_nano=paid_nano)
        failpoint("journal.after")

    def in_numbers(self) -> dict[str, float]:
        """Return what was charged and what is planned, as reports show it."""
        charged_nano, planned_nano = self.charged_nano, self._training.plan.price_nano
        return {
            "charged_nano": charged_nano,
            "planned_nano": planned_nano,
            "charged_epsilon": self._training.privacy_filter.epsilon_of(charged_nano),
            "planned_epsilon": self._training.privacy_filter.epsilon_of(planned_nano),
        }


def charged_by_stage(session: Session, training: Training) -> Counter[str]:
    """Return the nano-units that all attempts of a training have charged, by stage, from its account's entries."""
    charged: Counter[str] = Counter()
    after = 0
    while rows := ledger.entries(session, training.account.id, after, _PAGE_ROWS):
        for entry in rows:
            if entry.kind is EntryKind.CHARGE and entry.hold_id == training.hold_id:
                charged[entry.details["stage"]] += entry.amount_nano
        after = rows[-1].sequence
    return charged
