"""Progress and time left of a job, from public numbers alone: its plan and whole seconds.

A job is a sequence of pieces whose relative work is known before it starts (`workers.recipes.registry.work_of`). The
time left follows from the share that is done and the time that it took. So an estimate falls from piece to piece where
the weights are right.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import InterfaceError, OperationalError

from service import jobs
from service.db.session import transaction
from workers.recipes.interface import Cancelled, Piece
from workers.train.inputs import HeldBudget
from workers.train.orders import Context

REPORTS_MAX = 100  # of one stage


class ReportedProgress:
    """Progress that is stored in the job's row (`workers.recipes.interface.Progress`).

    The reported steps follow from the number of steps of the stage alone, never from their speed: at most a hundred,
    evenly spaced. So the sequence of reports is public when the plan is.

    When the context's `stop` is set, it should stop, or end early; the job's row says which. `work` are the pieces of
    the job, in order, for the estimate of the time left. Only trainings have a budget.
    """

    def __init__(
        self,
        context: Context,
        work: Sequence[Piece] = (),
        budget: HeldBudget | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context, self._work, self._budget, self._clock = context, work, budget, clock
        self._attempt: dict[str, Any] = {"job_id": context.attempt.job_id, "attempt": context.attempt.number}
        self._winding_up = False  # was told to end early
        self._reported: tuple[str, int, int] | None = None  # stage, steps and hundredth
        self._began: tuple[float, Place] | None = None
        self._place: Place | None = None
        self._left: int | None = None

    def __call__(self, *, stage: str, step: int, steps: int) -> bool:
        """Report that `step` of `steps` of `stage` are done; return whether the training is to end early.

        Raises:
            Cancelled: it is to stop at once, or was told to end early before; or the database is away.
        """
        self._context.alive()
        stop, factory, budget = self._context.stop, self._context.factory, self._budget
        if stop.is_set():
            stop.clear()  # before the question: whoever wants more after the answer sets it again
            request = None
            if budget is not None and not self._winding_up:
                with suppress(OperationalError, InterfaceError), transaction(factory, read_only=True) as session:
                    request = jobs.stop_request(session, **self._attempt)
            if budget is None or request is not jobs.StopRequest.WIND_UP:
                stop.set()
                raise Cancelled
            budget.closed = True  # of a training that is to publish what it has
            self._winding_up = True
        hundredth = step * REPORTS_MAX // max(steps, 1)
        if self._reported != (stage, steps, hundredth):
            self._reported = stage, steps, hundredth
            report = {"stage": stage, "step": step, "steps": steps, "eta_seconds": self._eta(stage, step, steps)}
            spent = {} if budget is None else budget.in_numbers()
            # A database that is away for a moment costs a report, not the training; charges are not so lenient.
            with suppress(OperationalError, InterfaceError), transaction(factory) as session:
                jobs.report_progress(session, **self._attempt, progress={**report, **spent})
        return budget is not None and budget.closed

    def _eta(self, stage: str, step: int, steps: int) -> int | None:
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


_KNOWN_SECONDS = 5  # a pace that was watched for less is not known: whole seconds are counted
_STEADY = 1.5  # an estimate that rises by less is uneven pace, and is not shown
_LONGEST_SECONDS = 10**9  # thirty years: a larger estimate says no more
# Up to so many seconds, an estimate is a multiple of so many: about a tenth of it, as people say it.
_COARSE = ((60, 5), (600, 15), (3600, 60), (math.inf, 300))


@dataclass(frozen=True)
class Place:
    """How far a job is: steps done in one of its pieces, all earlier pieces being done."""

    piece: int
    step: int


def find_place(pieces: Sequence[Piece], last: Place | None, stage: str, step: int, steps: int) -> Place | None:
    """Return the place in the job that a report means; None if no remaining piece reports like this.

    A step lower than in the last report of this stage means that another piece of that name began.
    """
    start = 0 if last is None else last.piece
    if last is not None and step < last.step and (stage, steps) == (pieces[start].stage, pieces[start].steps):
        start += 1
    for index in range(start, len(pieces)):
        if (pieces[index].stage, pieces[index].steps) == (stage, steps):
            return Place(index, min(max(step, 0), steps))
    return None


def work_done(pieces: Sequence[Piece], place: Place) -> float:
    """Return the work done at a place, in the pieces' unit."""
    piece = pieces[place.piece]
    return sum(earlier.work for earlier in pieces[: place.piece]) + piece.work * place.step / max(piece.steps, 1)


def seconds_left(
    pieces: Sequence[Piece], first: Place, now: Place, elapsed_seconds: int, before: int | None = None
) -> int | None:
    """Estimate the seconds until all pieces are done, rounded up to a coarse number; None while the pace is unknown.

    `first` is where this attempt began, `elapsed_seconds` ago; `before` is the last shown estimate.
    """
    done = work_done(pieces, now)
    mine = done - work_done(pieces, first)
    if mine <= 0 or elapsed_seconds < _KNOWN_SECONDS:
        return before
    left = max(sum(piece.work for piece in pieces) - done, 0.0)
    seconds = min(elapsed_seconds * left / mine, _LONGEST_SECONDS)
    multiple = next(step for most, step in _COARSE if seconds <= most)
    estimate = multiple * math.ceil(seconds / multiple - 1e-9)
    return before if before is not None and before < estimate <= _STEADY * before else estimate
