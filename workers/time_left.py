"""How much longer a job takes, from what was planned and whole seconds: pure functions of public numbers.

A job is a sequence of pieces whose relative work is known before it starts (`workers.planned_work`). What is left
follows from the share that is done and the time that it took, so an estimate falls from piece to piece where the
weights are right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_KNOWN_SECONDS = 5  # a pace that was watched for less is not known: whole seconds are counted
_STEADY = 1.5  # an estimate that rises by less is uneven pace, and is not shown
_LONGEST_SECONDS = 10**9  # thirty years: a larger estimate says no more
# Up to so many seconds, an estimate is a multiple of so many: about a tenth of it, as people say it.
_COARSE = ((60, 5), (600, 15), (3600, 60), (math.inf, 300))


@dataclass(frozen=True)
class Piece:
    """A part of a job.

    Attributes:
        stage: its name in reports.
        steps: how many steps it reports.
        work: what it costs, in a unit that all pieces of a job share.
    """

    stage: str
    steps: int
    work: float


@dataclass(frozen=True)
class Place:
    """How far a job is: steps done in one of its pieces, all earlier pieces being done."""

    piece: int
    step: int


def find_place(pieces: Sequence[Piece], last: Place | None, stage: str, step: int, steps: int) -> Place | None:
    """Return where a report says that the job is; None when no piece that is still to come reports like this.

    Args:
        pieces: of the job, in order.
        last: the place of the report before.
        stage: reported.
        step: reported; where it is lower than in the last report of this stage, another piece of that name began.
        steps: reported.
    """
    start = 0 if last is None else last.piece
    if last is not None and step < last.step and (stage, steps) == (pieces[start].stage, pieces[start].steps):
        start += 1
    for index in range(start, len(pieces)):
        if (pieces[index].stage, pieces[index].steps) == (stage, steps):
            return Place(index, min(max(step, 0), steps))
    return None


def work_done(pieces: Sequence[Piece], place: Place) -> float:
    """Return the work that is done at a place, in the pieces' unit."""
    piece = pieces[place.piece]
    return sum(earlier.work for earlier in pieces[: place.piece]) + piece.work * place.step / max(piece.steps, 1)


def seconds_left(
    pieces: Sequence[Piece], first: Place, now: Place, elapsed_seconds: int, before: int | None = None
) -> int | None:
    """Estimate the seconds until all pieces are done.

    Args:
        pieces: of the job, in order.
        first: where this attempt began.
        now: where it is.
        elapsed_seconds: whole seconds between the two.
        before: the estimate that was shown last.

    Returns:
        At least 0, rounded up to a coarse number; None while the pace is not known.
    """
    done = work_done(pieces, now)
    mine = done - work_done(pieces, first)
    if mine <= 0 or elapsed_seconds < _KNOWN_SECONDS:
        return before
    left = max(sum(piece.work for piece in pieces) - done, 0.0)
    estimate = _coarse(min(elapsed_seconds * left / mine, _LONGEST_SECONDS))
    return before if before is not None and before < estimate <= _STEADY * before else estimate


def _coarse(seconds: float) -> int:
    multiple = next(step for most, step in _COARSE if seconds <= most)
    return multiple * math.ceil(seconds / multiple - 1e-9)
