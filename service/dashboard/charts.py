"""Charts as coordinates for templates: an account's spending, and a sweep's accuracies by epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from obscura.wire.job_schemas import SweepRecord
from obscura.wire.schemas import to_the_minute
from service.views.accounts import SpendPoint

WIDTH, HEIGHT = 640, 200
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 20, 26


def _y(fraction: float) -> float:
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(max(fraction, 0.0), 1.0), 1)


class Chart:
    width, height, left, right, top, bottom = WIDTH, HEIGHT, LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    percents = tuple((percent, _y(percent / 100)) for percent in (0, 50, 100))  # horizontal lines with their positions


@dataclass(frozen=True)
class SpendChart(Chart):
    """A step line of spent budget with a band of held budget on top; the limit is 100%."""

    spent_line: str
    spent_area: str
    held_area: str
    begin: datetime
    end: datetime


def spend_chart(points: Sequence[SpendPoint], now: datetime) -> SpendChart | None:
    """Return the chart of balances up to now; None if no budget was ever held or spent."""
    if not any(point.spent or point.held for point in points):
        return None
    begin, end = points[0].at, max(to_the_minute(now), points[-1].at)
    span = max((end - begin).total_seconds(), 1.0)

    def x(moment: datetime) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (moment - begin).total_seconds() / span, 1)

    moments = [*(point.at for point in points[1:]), end]
    steps = list(zip(points, pairwise([x(moment) for moment in (begin, *moments)]), strict=True))
    spent = [f"{edge} {_y(point.spent)}" for point, edges in steps for edge in edges]
    total = [f"{edge} {_y(point.spent + point.held)}" for point, edges in steps for edge in edges]
    floor = _y(0.0)
    return SpendChart(
        spent_line="M" + " L".join(spent),
        spent_area=f"M{x(begin)} {floor} L" + " L".join(spent) + f" L{x(end)} {floor} Z",
        held_area="M" + " L".join(total) + " L" + " L".join(reversed(spent)) + " Z",
        begin=begin,
        end=end,
    )


@dataclass(frozen=True)
class SweepChart(Chart):
    """Accuracy of trials by epsilon, from zero to the largest."""

    dots: tuple[tuple[float, float, bool], ...]  # x, y, and True for the best trial
    epsilons: tuple[tuple[float, float], ...]  # axis labels with their positions
    chance: float  # position of the line for random guessing


def sweep_chart(sweep: SweepRecord, classes: int) -> SweepChart | None:
    """Return the chart of measured trials; None if no trial was measured."""
    measured = [
        (trial.epsilon, figure, trial.job_id == sweep.best_job_id)
        for trial in sweep.trials
        if (figure := trial.compared_by) is not None
    ]
    if not measured:
        return None
    most = max(epsilon for epsilon, _, _ in measured)

    def x(epsilon: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT - 12) * epsilon / most, 1)

    return SweepChart(
        dots=tuple((x(epsilon), _y(accuracy), best) for epsilon, accuracy, best in measured),
        epsilons=tuple((epsilon, x(epsilon)) for epsilon in (0.0, most / 2, most)),
        chance=_y(1 / classes),
    )
