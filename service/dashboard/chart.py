"""The line of spending over time: from balances to the coordinates of an SVG path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from service.dashboard.queries import SpendPoint

WIDTH, HEIGHT = 640, 200
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 20, 26


@dataclass(frozen=True)
class SpendChart:
    """A step line of what is spent and a band of what is held on top, against the limit at 100%.

    Coordinates are in a box of WIDTH x HEIGHT.
    """

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
    begin, end = points[0].at, max(now, points[-1].at)
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
