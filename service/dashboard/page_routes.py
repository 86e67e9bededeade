"""Pages about accounts, the overview, the parts that pages refresh."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from service.dashboard import job_queries, queries, wording
from service.dashboard.access import Dashboard, Running, find_viewer
from service.dashboard.chart import spend_chart
from service.dashboard.pages import PageRoute, page
from service.db.session import transaction
from service.errors import NotFound
from service.ledger.arming import arming_stops

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])


@router.get("/")
def overview(request: Request, dashboard: Running) -> HTMLResponse:
    """Show every account's budget, the jobs under way and the latest releases."""
    return page(request, "overview.html", **_overview(dashboard))


@router.get("/parts/{name}")
def overview_part(request: Request, dashboard: Running, name: str) -> HTMLResponse:
    """Render one part of the overview again, for the script that keeps it fresh."""
    if name not in ("budgets", "jobs", "releases"):
        raise NotFound("There is no such part of a page.")
    return page(request, f"_{name}.html", **_overview(dashboard))


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
        values = _labels() | {
            "view": view,
            "stopped": bool(arming_stops(session)),
            "chart": spend_chart(queries.read_spending(session, view.account), now),
            "holds": queries.list_open_holds(session, account_id),
            "requests": queries.list_limit_requests(session, now, account_id=account_id),
            "sweeps": job_queries.list_sweeps(session, now, account_id=account_id),
            "datasets": queries.list_datasets(session, account_id),
            "jobs": job_queries.list_jobs(session, now, limit=job_queries.RECENT_JOBS, account_id=account_id),
            "releases": queries.list_releases(session, limit=queries.RECENT_RELEASES, account_id=account_id),
            "log": queries.list_entries(session, view.account, before),
            "now": now,
        }
    return page(request, "account.html", **values)


def _overview(dashboard: Dashboard) -> dict[str, Any]:
    now = dashboard.clock()

    def read(session: Session) -> dict[str, Any]:
        return _labels() | {
            "accounts": queries.list_accounts(session),
            "requests": [view for view in queries.list_limit_requests(session, now) if view.pending],
            "stopped": bool(arming_stops(session)),
            "jobs": job_queries.list_jobs(session, now, limit=job_queries.RECENT_JOBS),
            "releases": queries.list_releases(session, limit=queries.RECENT_RELEASES),
            "release_count": queries.count_releases(session),
        }

    with transaction(dashboard.factory, read_only=True) as session:
        return read(session)


def _labels() -> dict[str, Any]:
    return {
        "units": wording.UNITS,
        "adjacencies": wording.ADJACENCIES,
        "filters": wording.FILTERS,
        "entry_words": wording.ENTRIES,
        "hold_words": wording.HOLDS,
        "state_words": wording.JOB_STATES,
        "request_words": wording.REQUESTS,
    }
