"""The overview, the pages of an account, and the parts that pages refresh."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from obscura.wire.words import DatasetState, Visibility
from privacy.plans.registry import RECIPES
from service import errors, wording
from service.api.deps import Running
from service.dashboard.access import Viewer, find_viewer
from service.dashboard.charts import spend_chart
from service.dashboard.pages import AccountInDoubt, PageRoute, page
from service.db.access_tables import Decision
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release
from service.db.ledger_tables import Account
from service.db.session import transaction
from service.identity.access import visible
from service.ledger.stops import arming_stops
from service.views import ROWS_MAX, accounts, admins, jobs, releases, sweeps

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])


ACCOUNT_PARTS = ("overview", "data", "jobs", "ledger", "controls")
ACCOUNTS_A_PAGE = 25
RECENT = 6  # number of jobs and releases shown on other pages
JOBS_OF_ACCOUNT = 25
Place = Annotated[str | None, Query(max_length=64, description="Id of the last account on the previous page.")]


@router.get("/")
def overview(request: Request, service: Running, after: Place = None) -> HTMLResponse:
    with transaction(service.factory, read_only=True) as session:
        now = service.clock()
        values = {name: value for part in _PARTS.values() for name, value in part(session, now, after).items()}
        values["requests"] = admins.pending_raises(session, now)
        values["stopped"] = bool(arming_stops(session))
        viewer: Viewer = request.state.viewer
        values["disk_short"] = viewer.runs_installation and service.disks.is_short()
        values["release_count"] = session.scalar(visible(session, Release, select(func.count(Release.id)))) or 0
        values["steps"] = None
        if not values["release_count"]:  # the steps to a first release, and the completed ones
            private = Dataset.state == DatasetState.READY, Dataset.visibility == Visibility.PRIVATE
            steps = {
                "account": visible(session, Account, select(Account.id)),
                "images": visible(session, Dataset, select(Dataset.id)).where(*private),
                "training": visible(session, Job, select(Job.id)).where(Job.recipe.in_(list(RECIPES))),
            }
            values["steps"] = {name: session.scalar(query.limit(1)) is not None for name, query in steps.items()}
    return page(request, "overview.html", **values)


@router.get("/parts/{name}")
def overview_part(request: Request, service: Running, name: str, after: Place = None) -> HTMLResponse:
    """Render one part of the overview, for the script that refreshes it."""
    if name not in _PARTS:
        raise errors.NotFound("There is no such part of a page.")
    with transaction(service.factory, read_only=True) as session:
        values = _PARTS[name](session, service.clock(), after)
    return page(request, f"_{name}.html", **values)


@router.get("/accounts/new")
def new_account(request: Request, service: Running) -> HTMLResponse:
    with transaction(service.factory, read_only=True) as session:
        choices = list(admins.project_names(session).items())
    return page(request, "account_new.html", projects=choices)


@router.get("/accounts/{account_id}")
@router.get("/accounts/{account_id}/{part}")
def account(
    request: Request,
    service: Running,
    account_id: str,
    part: str = "overview",
    before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
) -> HTMLResponse:
    """Show one tab of an account: overview, data, jobs, ledger or controls."""
    if part not in ACCOUNT_PARTS:
        raise errors.NotFound("There is no such part of an account's page.")
    now = service.clock()
    with transaction(service.factory, read_only=True) as session:
        shown = accounts.read(session, account_id)
        if isinstance(shown, accounts.DoubtfulAccount):
            raise AccountInDoubt(f"The figures of account {shown.name} contradict its log. {wording.NONE_SHOWN}")
        values: dict[str, Any] = {
            "account": shown,
            "stopped": bool(arming_stops(session)),
            "requests": admins.pending_raises(session, now, Decision.account_id == account_id),
            "now": now,
        }
        match part:
            case "overview":
                values["chart"] = spend_chart(accounts.spending(session, account_id), now)
                values["holds"] = accounts.open_holds(session, account_id)
                values["releases"], _ = releases.views(session, Release.account_id == account_id, limit=RECENT)
            case "data":
                private = Dataset.account_id == account_id, Dataset.visibility == Visibility.PRIVATE
                first = visible(session, Dataset).where(*private).order_by(Dataset.created_at).limit(ROWS_MAX)
                values["datasets"] = [releases.dataset_record(row) for row in session.scalars(first)]
            case "jobs":
                values["sweeps"] = sweeps.newest_rows(session, account_id)
                of_account = Job.account_id == account_id
                values["jobs"], _ = jobs.page(session, now, of_account, limit=JOBS_OF_ACCOUNT, in_total=True)
            case "ledger":
                values["log"] = accounts.newest_entries(session, account_id, before)
    return page(request, f"account_{part}.html", **values)


def _budgets(session: Session, _now: datetime, after: str | None) -> dict[str, Any]:
    shown, next_after = accounts.page(session, after=after, limit=ACCOUNTS_A_PAGE)
    return {"accounts": shown, "after": after, "next_after": next_after}


_PARTS: dict[str, Callable[[Session, datetime, str | None], dict[str, Any]]] = {
    "budgets": _budgets,
    "jobs": lambda session, now, _: {"jobs": jobs.page(session, now, limit=RECENT, in_total=True)[0]},
    "releases": lambda session, _now, _: {"releases": releases.views(session, limit=RECENT)[0]},
}
