"""How a training pays: its holds, one of each account, which are armed and charged together or not at all.

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
from workers.train.orders import Context, Payer, Training

_PAGE_ROWS = 1000


def arm_all(session: Session, training: Training, attempt: int) -> None:
    """Open the private data of all accounts to an attempt, or of none."""
    for position, payer in enumerate(training.payers):
        if position > 0:
            failpoint("joint.arm")
        ledger.arm(session, hold_id=payer.hold_id, attempt=attempt, now=datetime.now(UTC))


class HeldBudget:
    """The holds of one job, as its recipe sees them (`workers.recipes.interface.Budget`): one, or one of each account.

    A recipe may only privatise what its plan announced: an event with other noise or sensitivity is refused. Every
    account pays for it at its own price, all in one transaction.

    It is closed from the start where this attempt is there to publish what was paid for.

    Args:
        context: of the attempt, which has armed the holds.
        training: whose journal gets a line for every charge before anything is released for it.
    """

    def __init__(self, context: Context, training: Training) -> None:
        self._context, self._training = context, training
        self._journal = Journal(context.storage, training.job.id, context.attempt.number, training.account.id)
        self._charged_nano = {payer.hold_id: payer.charged_nano for payer in training.payers}
        self.closed = training.job.ended_early is not None

    @property
    def charged_nano(self) -> int:
        """What the job's own account has been charged."""
        return self._charged_nano[self._training.payer.hold_id]

    def close(self) -> None:
        """Refuse every further charge: the training ends early, with what it has."""
        self.closed = True

    def charge(self, event: Event, stage: str) -> None:
        """Pay for `event.count` releases; durable when this returns.

        Raises:
            BudgetExceeded: a hold does not cover the event, or the budget is closed; nothing was charged.
            EventRefused: the plan has no such stage, or announced it with another event.
            OSError: the journal cannot be written; nothing may be released.
        """
        training, planned = self._training, self._training.plan.stage(stage)
        if planned is None or not planned.announces(event):
            raise EventRefused(stage, event)
        amount_nano = planned.price_of(event.count)
        if self.closed:
            raise BudgetExceeded(amount_nano, 0)
        charged_nano: dict[str, int] = {}
        try:
            with transaction(self._context.factory) as session:
                for payer in training.payers:
                    if charged_nano:
                        failpoint("joint.charge")
                    charged_nano[payer.hold_id] = self._charge(session, payer, event, stage)
                failpoint("charge.before")
        except HoldExhausted as error:
            left_nano = error.numbers.get("left_nano")
            raise BudgetExceeded(amount_nano, left_nano if isinstance(left_nano, int) else 0) from None
        failpoint("charge.after")
        paid = {
            payer.account.id: charged_nano[payer.hold_id] - self._charged_nano[payer.hold_id]
            for payer in training.payers
        }
        self._charged_nano = charged_nano
        own_nano = paid.pop(training.account.id)
        self._journal.write(stage=stage, count=event.count, price_nano=own_nano, further=paid)
        failpoint("journal.after")

    def _charge(self, session: Session, payer: Payer, event: Event, stage: str) -> int:
        priced = payer.stages[stage]
        return ledger.charge(
            session,
            hold_id=payer.hold_id,
            attempt=self._context.attempt.number,
            amount_nano=priced.price_of(event.count),
            stage=stage,
            event=event.to_json(),
            paid_as_whole=priced.paid_as_whole,
            now=datetime.now(UTC),
        )

    def in_numbers(self) -> dict[str, float]:
        """Return what was charged and what is planned, as reports show it."""
        charged_nano, planned_nano = self.charged_nano, self._training.plan.price_nano
        return {
            "charged_nano": charged_nano,
            "planned_nano": planned_nano,
            "charged_epsilon": self._training.payer.privacy_filter.epsilon_of(charged_nano),
            "planned_epsilon": self._training.payer.privacy_filter.epsilon_of(planned_nano),
        }


def charged_by_stage(session: Session, payer: Payer) -> Counter[str]:
    """Return the nano-units that all attempts of a training have charged to an account, by stage, from its entries."""
    charged: Counter[str] = Counter()
    after = 0
    while rows := ledger.entries(session, payer.account.id, after, _PAGE_ROWS):
        for entry in rows:
            if entry.kind is EntryKind.CHARGE and entry.hold_id == payer.hold_id:
                charged[entry.details["stage"]] += entry.amount_nano
        after = rows[-1].sequence
    return charged
