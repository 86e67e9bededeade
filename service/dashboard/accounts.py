"""The overview, the pages about accounts with their chart, and the parts that pages refresh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from service.dashboard import job_queries, queries
from service.dashboard.access import Running, find_viewer
from service.dashboard.pages import PageRoute, page
from service.dashboard.queries import SpendPoint
from service.db.session import transaction
from service.errors import NotFound
from service.ledger.stops import arming_stops

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


router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])


Place = Annotated[str | None, Query(max_length=64, description="Id of the last account of the page before.")]


@router.get("/")
def overview(request: Request, dashboard: Running, after: Place = None) -> HTMLResponse:
    """Show the accounts' budgets, the jobs under way and the latest releases."""
    with transaction(dashboard.factory, read_only=True) as session:
        now = dashboard.clock()
        values = _budgets(session, now, after) | _jobs(session, now, after) | _releases(session, now, after)
        values["requests"] = [view for view in queries.list_limit_requests(session, now) if view.pending]
        values["stopped"] = bool(arming_stops(session))
        values["steps"] = queries.first_steps(session)
        values["release_count"] = queries.count_releases(session)
    return page(request, "overview.html", **values)


@router.get("/parts/{name}")
def overview_part(request: Request, dashboard: Running, name: str, after: Place = None) -> HTMLResponse:
    """Render one part of the overview again, for the script that keeps it fresh."""
    if name not in _PARTS:
        raise NotFound("There is no such part of a page.")
    with transaction(dashboard.factory, read_only=True) as session:
        values = _PARTS[name](session, dashboard.clock(), after)
    return page(request, f"_{name}.html", **values)


@router.get("/accounts/{account_id}")
def account(
    request: Request,
    dashboard: Running,
    account_id: str,
    before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
) -> HTMLResponse:
    """Show one account: budget, odds, spending over time, holds, datasets, jobs and the ledger's entries."""
    now = dashboard.clock()
    with transaction(dashboard.factory, read_only=True) as session:
        view = queries.read_account(session, account_id)
        values: dict[str, Any] = {
            "view": view,
            "stopped": bool(arming_stops(session)),
            "chart": spend_chart(queries.read_spending(session, view.account), now),
            "holds": queries.list_open_holds(session, account_id),
            "requests": queries.list_limit_requests(session, now, account_id=account_id),
            "sweeps": job_queries.list_sweeps(session, account_id=account_id),
            "datasets": queries.list_datasets(session, account_id),
            "jobs": job_queries.list_jobs(session, now, limit=job_queries.RECENT_JOBS, account_id=account_id),
            "releases": queries.list_releases(session, limit=queries.RECENT_RELEASES, account_id=account_id),
            "log": queries.list_entries(session, view.account, before),
            "now": now,
        }
    return page(request, "account.html", **values)


def _budgets(session: Session, _now: datetime, after: str | None) -> dict[str, Any]:
    accounts, next_after = queries.list_accounts(session, after=after)
    return {"accounts": accounts, "after": after, "next_after": next_after}


def _jobs(session: Session, now: datetime, _after: str | None) -> dict[str, Any]:
    return {"jobs": job_queries.list_jobs(session, now, limit=job_queries.RECENT_JOBS)}


def _releases(session: Session, _now: datetime, _after: str | None) -> dict[str, Any]:
    return {"releases": queries.list_releases(session, limit=queries.RECENT_RELEASES)}


_PARTS = {"budgets": _budgets, "jobs": _jobs, "releases": _releases}
