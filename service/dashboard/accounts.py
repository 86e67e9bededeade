"""The overview, the pages of an account, and the parts that pages refresh."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from obscura.wire import budgets
from obscura.wire.schemas import RECORDS_MAX, AccountRequest, EntryRecord, record_of
from obscura.wire.words import DatasetState, Visibility
from privacy.accounting.filter import attacker_certainty_max, open_filter
from privacy.errors import InvalidParameter
from privacy.plans.registry import RECIPES
from service import errors, ledger, wording
from service.api.deps import Running
from service.dashboard.access import Viewer, find_viewer
from service.dashboard.charts import spend_chart
from service.dashboard.forms import FieldsRefused, Text, read_body
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


ACCOUNTS_A_PAGE = 25
RECENT = 6  # number of jobs and releases shown on other pages
JOBS_OF_ACCOUNT = 25
OFFERED = {0.5: "Strong", 1.0: "Usual", 3.0: "Weak", 8.0: "Very weak"}  # epsilons of a new account
UNITS_ASSUMED = 10_000  # for the odds on the form that opens an account, before a number is entered
ENTRIES_A_BLOCK = 1000  # of an exported ledger
FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # first characters of formulas in spreadsheets
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
    if name not in _PARTS:
        raise errors.NotFound("There is no such part of a page.")
    with transaction(service.factory, read_only=True) as session:
        values = _PARTS[name](session, service.clock(), after)
    return page(request, f"_{name}.html", **values)


@dataclass(frozen=True)
class NewAccount:
    """The form that opens an account, as query parameters. Empty fields are missing."""

    name: Text = ""
    owner: Text = ""
    epsilon: Text = "1"
    other_epsilon: Text = ""  # if epsilon is "other"
    units: Text = ""  # expected number of images, or of people
    other_delta: Text = ""
    unit: Text = ""
    project_id: Text = ""
    review: Text = ""  # not empty if the form is complete

    def request_fields(self) -> dict[str, Any]:
        """Return the fields of the API request; delta follows from the number of units unless it is stated."""
        units = _number(self.units, 1, RECORDS_MAX)
        delta = self.other_delta or (budgets.usual_delta(int(units)) if units else None)
        epsilon = self.other_epsilon if self.epsilon == "other" else self.epsilon
        fields = {"name": self.name, "owner": self.owner, "epsilon": epsilon, "delta": delta, "unit": self.unit}
        return fields | {"adjacency": "add_remove", "project_id": self.project_id}


@router.get("/accounts/new")
def new_account(request: Request, form: Annotated[NewAccount, Depends()]) -> HTMLResponse:
    """Show the form that opens an account with the odds of each budget, or the complete form for review."""
    fields, wrong, terms = form.request_fields(), dict[str, str](), None
    if form.review:
        try:
            terms = read_body(AccountRequest, fields)
        except FieldsRefused as error:
            wrong = error.fields
    delta = _number(fields["delta"], budgets.DELTA_LEAST, budgets.DELTA_MOST) or budgets.usual_delta(UNITS_ASSUMED)
    odds = {}
    for epsilon in (*OFFERED, _number(form.other_epsilon, budgets.EPSILON_LEAST, budgets.EPSILON_MOST)):
        if epsilon is not None:
            with suppress(InvalidParameter):  # too small to buy anything
                odds[epsilon] = attacker_certainty_max(open_filter(epsilon, delta))
    values: dict[str, Any] = {"form": vars(form), "terms": terms, "wrong": wrong, "delta": delta, "odds": odds}
    large = (delta if terms is None else terms.delta) > budgets.DELTA_USUAL_MOST
    return page(request, "account_new.html", **values, offered=OFFERED, other=epsilon, large=large)


def _number(text: object, least: float, most: float) -> float | None:
    try:
        value = float(str(text))
    except ValueError:
        return None
    return value if least <= value <= most else None


@router.get("/accounts/{account_id}/ledger.csv")
def ledger_csv(service: Running, account_id: str) -> StreamingResponse:
    """Stream all entries of an account, with the columns of the API."""

    def read(after: int) -> list[EntryRecord]:
        with transaction(service.factory, read_only=True) as session:
            rows = ledger.entries(session, account_id, after, ENTRIES_A_BLOCK)
            return [record_of(EntryRecord, row) for row in rows]

    def blocks(entries: list[EntryRecord]) -> Iterator[str]:
        yield write_csv([list(EntryRecord.model_fields)])
        while entries:
            yield write_csv(list(entry.model_dump(mode="json").values()) for entry in entries)
            entries = read(entries[-1].sequence)

    headers = {"Content-Disposition": f'attachment; filename="{account_id}-ledger.csv"'}
    return StreamingResponse(blocks(read(0)), media_type="text/csv", headers=headers)


def write_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Format rows as CSV, objects as JSON. A cell that a spreadsheet would run as a formula gets a leading quote."""
    text = io.StringIO()
    writer = csv.writer(text)
    for row in rows:
        cells = [json.dumps(cell) if isinstance(cell, dict) else cell for cell in row]
        writer.writerow(f"'{cell}" if str(cell).startswith(FORMULAS) else cell for cell in cells)
    return text.getvalue()


@router.get("/accounts/{account_id}")
@router.get("/accounts/{account_id}/{part}")
def account(
    request: Request,
    service: Running,
    account_id: str,
    part: str = "overview",
    before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
    epsilon: Annotated[float | None, Query(description="A new limit, whose effect is shown.")] = None,
) -> HTMLResponse:
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
                values["chart"] = spend_chart(*accounts.recent_costs(session, account_id))
                ready = Dataset.state == DatasetState.READY, Dataset.visibility == Visibility.PRIVATE
                query = visible(session, Dataset, select(Dataset.id)).where(Dataset.account_id == account_id, *ready)
                values["ready"] = session.scalar(query.order_by(Dataset.created_at.desc()).limit(1))
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
                values["groups"], values["older"] = accounts.log_groups(session, account_id, before)
                values["before"] = before
            case "controls":
                values["holds"] = accounts.open_holds(session, account_id)
                values["odds_of"] = accounts.effects_of(session, values["requests"])
                values["effect"], row = None, ledger.get_account(session, account_id)
                if epsilon is not None and epsilon != row.epsilon:
                    with suppress(InvalidParameter):
                        values["effect"] = ledger.balance_of(row, epsilon)
                waiting = Dataset.state.in_((DatasetState.DECLARED, DatasetState.RECEIVING))
                count = visible(session, Dataset, select(func.count(Dataset.id)))
                values["uploads"] = session.scalar(count.where(Dataset.account_id == account_id, waiting))
            case _:
                raise errors.NotFound("There is no such part of an account's page.")
    return page(request, f"account_{part}.html", **values)


def _budgets(session: Session, _now: datetime, after: str | None) -> dict[str, Any]:
    shown, next_after = accounts.page(session, after=after, limit=ACCOUNTS_A_PAGE)
    return {"accounts": shown, "after": after, "next_after": next_after}


_PARTS: dict[str, Callable[[Session, datetime, str | None], dict[str, Any]]] = {
    "budgets": _budgets,
    "jobs": lambda session, now, _: {"jobs": jobs.page(session, now, limit=RECENT, in_total=True)[0]},
    "releases": lambda session, _now, _: {"releases": releases.views(session, limit=RECENT)[0]},
}
