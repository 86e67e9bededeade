"""Progress and remaining time of a job, from public numbers alone: its plan and whole seconds.

A job is a sequence of pieces whose relative work is known before it starts (`workers.recipes.registry.work_of`). The
remaining time follows from the completed share of the work and the elapsed time. If the relative work of the pieces is
right, the estimate falls steadily.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.exc import InterfaceError, OperationalError

from service import jobs
from service.db.session import transaction
from workers.recipes.interface import Cancelled, Piece
from workers.train.inputs import HeldBudget
from workers.train.orders import Context

REPORTS_MAX = 100  # of one stage


@dataclass
class ReportedProgress:
    """Progress that is stored in the job's row (`workers.recipes.interface.Progress`).

    At most a hundred evenly spaced steps of a stage are reported. They depend only on the stage's number of steps,
    never on speed. So the sequence of reports is public if the plan is.

    When the context's `stop` is set, the job must stop or end early; the job's row states which. `work` has the pieces
    of the job, in order, for estimating the remaining time. Only trainings have a budget.
    """

    context: Context
    work: Sequence[Piece] = ()
    budget: HeldBudget | None = None
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    _winding_up: bool = field(default=False, init=False)  # must end early
    _reported: tuple[str, int, int] | None = field(default=None, init=False)  # stage, steps and reported hundredth
    _began: tuple[float, Place] | None = field(default=None, init=False)
    _place: Place | None = field(default=None, init=False)
    _left: int | None = field(default=None, init=False)

    def __call__(self, *, stage: str, step: int, steps: int) -> bool:
        """Report that `step` of `steps` of `stage` are done; return whether the training must end early.

        Raises:
            Cancelled: the job must stop at once; or it was told to stop again while it ended early; or the database is
                unavailable, so that the kind of stop is unknown.
        """
        self.context.alive()
        stop, factory, budget = self.context.stop, self.context.factory, self.budget
        attempt: dict[str, Any] = {"job_id": self.context.attempt.job_id, "attempt": self.context.attempt.number}
        if stop.is_set():
            stop.clear()  # cleared before the query, because a later request sets it again
            request = None
            if budget is not None and not self._winding_up:
                with suppress(OperationalError, InterfaceError), transaction(factory, read_only=True) as session:
                    request = jobs.stop_request(session, **attempt)
            if budget is None or request is not jobs.StopRequest.WIND_UP:
                stop.set()
                raise Cancelled
            budget.closed = True  # of a training that must publish its partial result
            self._winding_up = True
        hundredth = step * REPORTS_MAX // max(steps, 1)
        if self._reported != (stage, steps, hundredth):
            self._reported = stage, steps, hundredth
            report = {"stage": stage, "step": step, "steps": steps, "eta_seconds": self._eta(stage, step, steps)}
            spent = {} if budget is None else budget.in_numbers()
            # If the database is briefly unavailable, a report is lost but the training continues; charges are stricter.
            with suppress(OperationalError, InterfaceError), transaction(factory) as session:
                jobs.report_progress(session, **attempt, progress={**report, **spent})
        return budget is not None and budget.closed

    def _eta(self, stage: str, step: int, steps: int) -> int | None:
        place = find_place(self.work, self._place, stage, step, steps)
        if place is None:
            return self._left
        self._place = place
        now = self.clock()
        if self._began is None:
            self._began = now, place
        began, first = self._began
        self._left = seconds_left(self.work, first, place, int(now - began), self._left)
        return self._left


_KNOWN_SECONDS = 5  # minimum time to measure a pace, because time is in whole seconds
_STEADY = 1.5  # smaller rises are due to uneven pace and are not shown
_LONGEST_SECONDS = 10**9  # thirty years; a larger estimate has no meaning
# (limit, step) in seconds: up to the limit, an estimate is rounded up to a multiple of the step.
_COARSE = ((60, 5), (600, 15), (3600, 60), (math.inf, 300))


@dataclass(frozen=True)
class Place:
    """A position in a job: the current piece and its finished steps. All earlier pieces are done."""

    piece: int
    step: int


def find_place(pieces: Sequence[Piece], last: Place | None, stage: str, step: int, steps: int) -> Place | None:
    """Return the position in the job that a report describes, or None if it matches no remaining piece.

    If the step is lower than in the stage's last report, another piece of that name has begun.
    """
    start = 0 if last is None else last.piece
    if last is not None and step < last.step and (stage, steps) == (pieces[start].stage, pieces[start].steps):
        start += 1
    for index in range(start, len(pieces)):
        if (pieces[index].stage, pieces[index].steps) == (stage, steps):
            return Place(index, min(max(step, 0), steps))
    return None


def work_done(pieces: Sequence[Piece], place: Place) -> float:
    """Return the work that is completed at a position, in the pieces' unit."""
    piece = pieces[place.piece]
    return sum(earlier.work for earlier in pieces[: place.piece]) + piece.work * place.step / max(piece.steps, 1)


def seconds_left(
    pieces: Sequence[Piece], first: Place, now: Place, elapsed_seconds: int, before: int | None = None
) -> int | None:
    """Estimate the seconds until all pieces are done, coarsely rounded up.

    `first` is the position at which this attempt began, `elapsed_seconds` ago. `before` is the last shown estimate,
    which is returned while the pace is unknown.
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
