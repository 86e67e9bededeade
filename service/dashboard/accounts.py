"""The overview, the pages about accounts, and the parts that pages refresh."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from obscura.wire.words import DecisionAction
from service.dashboard import job_queries, queries, release_queries
from service.dashboard.access import Running, find_viewer
from service.dashboard.charts import spend_chart
from service.dashboard.pages import PageRoute, page
from service.db.access_tables import Decision
from service.db.session import transaction
from service.decisions import list_decisions
from service.errors import NotFound
from service.ledger.stops import arming_stops

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])


REQUESTS_MAX = 8
ACCOUNT_PARTS = ("overview", "data", "jobs", "ledger", "controls")
Place = Annotated[str | None, Query(max_length=64, description="Id of the last account of the page before.")]


@router.get("/")
def overview(request: Request, dashboard: Running, after: Place = None) -> HTMLResponse:
    """Show the accounts' budgets, the jobs under way and the latest releases."""
    with transaction(dashboard.factory, read_only=True) as session:
        now = dashboard.clock()
        values = _budgets(session, now, after) | _jobs(session, now, after) | _releases(session, now, after)
        raises = list_decisions(session, now, Decision.action == DecisionAction.RAISE, limit=REQUESTS_MAX)
        values["requests"] = [asked for asked in raises if asked.waiting]
        values["stopped"] = bool(arming_stops(session))
        values["steps"] = queries.first_steps(session)
        values["release_count"] = release_queries.count_releases(session)
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
@router.get("/accounts/{account_id}/{part}")
def account(
    request: Request,
    dashboard: Running,
    account_id: str,
    part: str = "overview",
    before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
) -> HTMLResponse:
    """Show one part of an account: its budget over time, its datasets, its jobs, its ledger, or its controls."""
    if part not in ACCOUNT_PARTS:
        raise NotFound("There is no such part of an account's page.")
    now = dashboard.clock()
    with transaction(dashboard.factory, read_only=True) as session:
        view = queries.read_account(session, account_id)
        requests = list_decisions(session, now, Decision.account_id == account_id, limit=REQUESTS_MAX)
        values: dict[str, Any] = {
            "view": view,
            "stopped": bool(arming_stops(session)),
            "requests": requests,
            "waiting": sum(asked.waiting for asked in requests),
            "now": now,
        }
        match part:
            case "overview":
                values["chart"] = spend_chart(queries.read_spending(session, view.account), now)
                values["holds"] = queries.list_open_holds(session, account_id)
                values["releases"] = release_queries.list_releases(
                    session, limit=release_queries.RECENT_RELEASES, account_id=account_id
                )
            case "data":
                values["datasets"] = queries.list_datasets(session, account_id)
            case "jobs":
                values["sweeps"] = job_queries.list_sweeps(session, account_id=account_id)
                values["jobs"] = job_queries.list_jobs(
                    session, now, limit=job_queries.JOBS_A_PAGE, account_id=account_id
                )
            case "ledger":
                values["log"] = queries.list_entries(session, view.account, before)
    return page(request, f"account_{part}.html", **values)


def _budgets(session: Session, _now: datetime, after: str | None) -> dict[str, Any]:
    accounts, next_after = queries.list_accounts(session, after=after)
    return {"accounts": accounts, "after": after, "next_after": next_after}


def _jobs(session: Session, now: datetime, _after: str | None) -> dict[str, Any]:
    return {"jobs": job_queries.list_jobs(session, now, limit=job_queries.RECENT_JOBS)}


def _releases(session: Session, _now: datetime, _after: str | None) -> dict[str, Any]:
    return {"releases": release_queries.list_releases(session, limit=release_queries.RECENT_RELEASES)}


_PARTS = {"budgets": _budgets, "jobs": _jobs, "releases": _releases}
