"""Charts as coordinates for templates: an account's spending, accuracies by cost, and a plan's expectation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

from obscura.wire.job_schemas import PlanRecord
from service.views.accounts import JobCost

WIDTH, HEIGHT = 640, 200
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 20, 26
LABEL_WIDTH = 44


def _y(fraction: float) -> float:
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(max(fraction, 0.0), 1.0), 1)


class Chart:
    width, height, left, right, top, bottom = WIDTH, HEIGHT, LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    percents = tuple((percent, _y(percent / 100)) for percent in (0, 50, 100))  # horizontal lines with their positions


@dataclass(frozen=True)
class SpendBar:
    """One job's share of a budget, on top of the shares before it."""

    label: str  # number of the job on this chart; "…" for what was spent before
    cost: JobCost | None
    share: float
    total: float  # with all bars before
    x: float
    y: float
    tall: float


@dataclass(frozen=True)
class SpendChart(Chart):
    """A bar for each job in order, from the total before it to the total after it."""

    bars: tuple[SpendBar, ...]
    thick: float
    percents: tuple[tuple[int, float], ...]


def spend_chart(costs: Sequence[JobCost], earlier: float) -> SpendChart | None:
    """Return the chart of the jobs' shares; None if nothing was spent. `earlier` is the share before them."""
    shares: list[tuple[str, JobCost | None, float]] = [("…", None, earlier)] if round(earlier, 4) else []
    shares += [(str(number), cost, cost.share) for number, cost in enumerate(costs, 1)]
    if not shares:
        return None
    totals = list(accumulate(share for _, _, share in shares))
    scale = max(*totals, 1.0)  # above 1 if the limit was lowered below the spent budget
    step = (WIDTH - LEFT - RIGHT) / max(len(shares), 4)
    bars = []
    for number, ((label, cost, share), total) in enumerate(zip(shares, totals, strict=True)):
        top = _y(total / scale)
        x = round(LEFT + step * (number + 0.15), 1)
        bars.append(SpendBar(label, cost, share, total, x, top, round(_y((total - share) / scale) - top, 1)))
    percents = tuple((percent, _y(percent / 100 / scale)) for percent in (0, 50, 100))
    return SpendChart(tuple(bars), round(0.7 * step, 1), percents)


class Point(NamedTuple):
    """A measured training; `cost` is its position on the horizontal axis, in any unit."""

    cost: float
    accuracy: float
    epsilon: float
    is_best: bool = False


@dataclass(frozen=True)
class AccuracyChart(Chart):
    """Accuracies of trainings by cost, from zero to the largest cost."""

    dots: tuple[tuple[float, float, Point, bool], ...]  # with their positions, and whether there is room for a label
    costs: tuple[tuple[float, float], ...]  # axis labels with their positions
    chance: float  # position of the line for random guessing


def accuracy_chart(points: Sequence[Point], classes: int) -> AccuracyChart | None:
    """Return the chart of trainings with `classes` classes; None if there is none."""
    most = max((point.cost for point in points), default=0.0)
    if not most:
        return None

    def x(cost: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT - 12) * cost / most, 1)

    dots, labelled = list[tuple[float, float, Point, bool]](), 0.0
    for point in sorted(points):
        at = x(point.cost)
        has_room = at - labelled >= LABEL_WIDTH
        labelled = at if has_room else labelled
        dots.append((at, _y(point.accuracy), point, has_room))
    return AccuracyChart(
        dots=tuple(dots),
        costs=tuple((cost, x(cost)) for cost in (0.0, most / 2, most)),
        chance=_y(1 / classes),
    )


@dataclass(frozen=True)
class PlanChart(Chart):
    """Expected detail and accuracy of a plan, by the part of the remaining budget that it spends."""

    zones: tuple[tuple[str, float, float], ...]  # band, left edge and width
    accuracies: str  # area between the lowest and the highest measured accuracy; empty if there are fewer than two
    here: float  # position of the plan's cost
    marks: tuple[tuple[float, float, float], ...]  # part of the lifetime budget, epsilon and position
    height: int
    bottom: int


def plan_chart(plan: PlanRecord, left_fraction: float) -> PlanChart | None:
    """Return the chart of a plan's expectation; None if nothing is known about any cost."""
    curve, left_nano = plan.expectation.curve, plan.budget.left_nano
    if not any(point.band or point.accuracy for point in curve):
        return None

    def x(nano: int) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * min(nano / left_nano, 1.0), 1)

    bands = groupby(curve, key=lambda point: point.band)
    edges = [*((band, x(next(points).cost_nano)) for band, points in bands if band), ("", WIDTH - RIGHT)]
    known = [(x(point.cost_nano), point.accuracy) for point in curve if point.accuracy is not None]
    edge = [f"{at} {_y(low)}" for at, (low, _) in known] + [f"{at} {_y(high)}" for at, (_, high) in reversed(known)]
    marked = [min(curve, key=lambda point: abs(point.cost_nano - left_nano * third / 3)) for third in (1, 2, 3)]
    height = HEIGHT if len(known) > 1 else TOP + 2 * BOTTOM  # without accuracies, only the zones
    return PlanChart(
        zones=tuple((band, at, round(end - at, 1)) for (band, at), (_, end) in pairwise(edges)),
        accuracies=f"M{' L'.join(edge)} Z" if len(known) > 1 else "",
        here=x(plan.cost_nano),
        marks=tuple((left_fraction * p.cost_nano / left_nano, p.epsilon, x(p.cost_nano)) for p in marked),
        height=height,
        bottom=height - BOTTOM,
    )
