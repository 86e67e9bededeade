"""How a training pays and reports. Each charge is a transaction, committed before the release that it pays for."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy.exc import InterfaceError, OperationalError

from privacy.accounting.events import Event
from privacy.accounting.filters import Filter
from privacy.errors import BudgetExceeded, EventRefused
from service import jobs, ledger
from service.db.session import SessionFactory, transaction
from service.errors import HoldExhausted
from service.failpoints import failpoint
from workers.claims import Attempt
from workers.journal import Journal
from workers.recipes.interface import Cancelled
from workers.time_left import Piece, Place, find_place, seconds_left

REPORTS_MAX = 100  # of one stage


class HeldBudget:
    """The hold of one job, as its recipe sees it (`workers.recipes.interface.Budget`).

    A recipe may only release what its plan announced: an event with other noise or sensitivity is refused.

    Args:
        factory: of sessions.
        attempt: that has armed the hold.
        hold_id: of the job.
        privacy_filter: of the account.
        planned: the event of every stage of the plan, by stage name.
        journal: of the job; gets a line for every charge before anything is released for it.
        charged_nano: what earlier attempts have charged.
    """

    def __init__(
        self,
        factory: SessionFactory,
        attempt: Attempt,
        *,
        hold_id: str,
        privacy_filter: Filter,
        planned: Mapping[str, Event],
        journal: Journal,
        charged_nano: int = 0,
    ) -> None:
        self._factory, self._attempt, self._hold_id = factory, attempt, hold_id
        self._journal = journal
        self._filter, self._planned = privacy_filter, dict(planned)
        self.charged_nano = charged_nano
        self.closed = False
        self.releases: Counter[str] = Counter()  # charged by this attempt, by stage

    def close(self) -> None:
        """Refuse every further charge: the training ends early, with what it has."""
        self.closed = True

    def charge(self, event: Event, stage: str) -> None:
        """Pay for `event.count` releases; durable when this returns.

        Raises:
            BudgetExceeded: the hold does not cover the event, or the budget is closed; nothing was charged.
            EventRefused: the plan has no such stage, or announced it with another event.
            StaleAttempt: another attempt has taken over.
            OSError: the journal cannot be written; nothing may be released.
        """
        announced = self._planned.get(stage)
        if announced is None or replace(announced, count=1) != replace(event, count=1):
            raise EventRefused(self._filter.name, stage, "the plan of this job announced no such release")
        amount_nano = self._filter.price_nano(event)
        if self.closed:
            raise BudgetExceeded(amount_nano, 0)
        try:
            with transaction(self._factory) as session:
                self.charged_nano = ledger.charge(
                    session,
                    hold_id=self._hold_id,
                    attempt=self._attempt.number,
                    amount_nano=amount_nano,
                    stage=stage,
                    event=event.to_json(),
                    now=datetime.now(UTC),
                )
                failpoint("charge.before")
        except HoldExhausted as error:
            left_nano = error.numbers.get("left_nano")
            raise BudgetExceeded(amount_nano, left_nano if isinstance(left_nano, int) else 0) from None
        failpoint("charge.after")
        self._journal.write(stage=stage, count=event.count, price_nano=amount_nano)
        failpoint("journal.after")
        self.releases[stage] += event.count


class ReportedProgress:
    """Progress that stands in the job's row (`workers.recipes.interface.Progress`).

    Which steps are reported follows from the steps of the stage alone, never from how fast they are: at most a hundred,
    evenly spaced. So the sequence of reports is public when the plan is.

    Args:
        factory: of sessions.
        attempt: that runs.
        stop: set when the training should stop, or end early; the job's row says which.
        budget: of a training, which shows what was charged; other jobs cost nothing.
        planned_nano: the plan's price.
        privacy_filter: of a training's account.
        work: the pieces of the job, in order, from which the time left is estimated; without them, it is not.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        factory: SessionFactory,
        attempt: Attempt,
        *,
        stop: threading.Event,
        budget: HeldBudget | None = None,
        planned_nano: int = 0,
        privacy_filter: Filter | None = None,
        work: Sequence[Piece] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._factory, self._attempt, self._budget = factory, attempt, budget
        self._planned_nano, self._filter = planned_nano, privacy_filter
        self._stop, self._clock, self._work = stop, clock, work
        self._winding_up = False  # was told to end early
        self._reported: tuple[str, int, int] | None = None  # stage, steps and hundredth
        self._began: tuple[float, Place] | None = None
        self._place: Place | None = None
        self._left: int | None = None

    def __call__(self, *, stage: str, step: int, steps: int) -> bool:
        """Report that `step` of `steps` of `stage` are done. Returns whether the training is to end early.

        Raises:
            Cancelled: the attempt was told to stop at once.
            StaleAttempt: another attempt has taken over.
        """
        if self._stop.is_set():
            self._heed()
        self._report(stage, step, steps)
        return self._budget is not None and self._budget.closed

    def _heed(self) -> None:
        """Find out why this attempt was told to stop: a training that is to publish what it has goes on without budget.

        Raises:
            Cancelled: it is to stop at once, or was told to end early before; or the database is away.
        """
        self._stop.clear()  # before the question: whoever wants more after the answer sets it again
        wish = None
        if self._budget is not None and not self._winding_up:
            with suppress(OperationalError, InterfaceError), transaction(self._factory, read_only=True) as session:
                wish = jobs.wish_for(session, job_id=self._attempt.job_id, attempt=self._attempt.number)
        if self._budget is None or wish is not jobs.Wish.WIND_UP:
            self._stop.set()
            raise Cancelled
        self._budget.close()
        self._winding_up = True

    def _report(self, stage: str, step: int, steps: int) -> None:
        hundredth = step * REPORTS_MAX // max(steps, 1)
        if self._reported == (stage, steps, hundredth):
            return
        self._reported = stage, steps, hundredth
        report = {"stage": stage, "step": step, "steps": steps, "eta_seconds": self._eta(stage, step, steps)}
        # A database that is away for a moment costs a report, not the training; charges are not so lenient.
        with suppress(OperationalError, InterfaceError), transaction(self._factory) as session:
            jobs.report_progress(
                session,
                job_id=self._attempt.job_id,
                attempt=self._attempt.number,
                progress={**report, **self._spent()},
            )

    def _eta(self, stage: str, step: int, steps: int) -> int | None:
        """Estimate the seconds until the job ends; None before anything is known of its pace."""
        place = find_place(self._work, self._place, stage, step, steps)
        if place is None:
            return self._left
        self._place = place
        now = self._clock()
        if self._began is None:
            self._began = now, place
        began, first = self._began
        self._left = seconds_left(self._work, first, place, int(now - began), self._left)
        return self._left

    def _spent(self) -> dict[str, float]:
        if self._budget is None or self._filter is None:
            return {}
        charged_nano = self._budget.charged_nano
        return {
            "charged_nano": charged_nano,
            "planned_nano": self._planned_nano,
            "charged_epsilon": self._filter.epsilon_of(charged_nano),
            "planned_epsilon": self._filter.epsilon_of(self._planned_nano),
        }
