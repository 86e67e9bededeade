"""Charts as coordinates for templates: an account's spending, and a sweep's accuracies by epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from obscura.wire.schemas import to_the_minute
from obscura.wire.sweep_schemas import SweepRecord
from service.views.accounts import SpendPoint

WIDTH, HEIGHT = 640, 200
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 20, 26


@dataclass(frozen=True)
class SpendChart:
    """A step line of spent budget with a band of held budget on top; the limit is 100%."""

    spent_line: str
    spent_area: str
    held_area: str
    begin: datetime
    end: datetime
    ticks: tuple[tuple[int, float], ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def spend_chart(points: Sequence[SpendPoint], now: datetime) -> SpendChart | None:
    """Draw the balances up to now; None before anything was held or spent."""
    if not any(point.spent or point.held for point in points):
        return None
    begin, end = points[0].at, max(to_the_minute(now), points[-1].at)
    span = max((end - begin).total_seconds(), 1.0)

    def x(moment: datetime) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (moment - begin).total_seconds() / span, 1)

    def y(share: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(max(share, 0.0), 1.0), 1)

    moments = [*(point.at for point in points[1:]), end]
    edges = [x(moment) for moment in (begin, *moments)]
    spent = _steps([(*pair, y(p.spent)) for p, pair in zip(points, pairwise(edges), strict=True)])
    total = _steps([(*pair, y(p.spent + p.held)) for p, pair in zip(points, pairwise(edges), strict=True)])
    floor = y(0.0)
    return SpendChart(
        spent_line="M" + " L".join(spent),
        spent_area=f"M{x(begin)} {floor} L" + " L".join(spent) + f" L{x(end)} {floor} Z",
        held_area="M" + " L".join(total) + " L" + " L".join(reversed(spent)) + " Z",
        begin=begin,
        end=end,
        ticks=tuple((percent, y(percent / 100)) for percent in (0, 50, 100)),
    )


def _steps(levels: Sequence[tuple[float, float, float]]) -> list[str]:
    return [f"{x} {y}" for begin, end, y in levels for x in (begin, end)]


@dataclass(frozen=True)
class SweepChart:
    """Accuracy of trials by epsilon, from zero to the largest. Coordinates as in `SpendChart`.

    Attributes:
        dots: x, y, and whether the trial is the best.
        percents: Horizontal lines with their heights.
        epsilons: Axis labels with their places.
        chance: Height of the line of random guessing.
    """

    dots: tuple[tuple[float, float, bool], ...]
    percents: tuple[tuple[int, float], ...]
    epsilons: tuple[tuple[float, float], ...]
    chance: float
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM


def sweep_chart(sweep: SweepRecord, classes: int) -> SweepChart | None:
    """Draw the measured trials; None without any."""
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

    def y(accuracy: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(max(accuracy, 0.0), 1.0), 1)

    return SweepChart(
        dots=tuple((x(epsilon), y(accuracy), best) for epsilon, accuracy, best in measured),
        percents=tuple((percent, y(percent / 100)) for percent in (0, 50, 100)),
        epsilons=tuple((epsilon, x(epsilon)) for epsilon in (0.0, most / 2, most)),
        chance=y(1 / classes),
    )
