"""Jobs: records for the API, and views for pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, select, text
from sqlalchemy.orm import Session

from obscura.wire.job_schemas import EventRecord, JobRecord, ProgressFacts
from obscura.wire.schemas import minutes_between, record_of
from obscura.wire.words import TRAIN, UNFINISHED, JobState
from service import ledger
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Sample
from service.db.ledger_tables import Account
from service.errors import NotFound
from service.identity.access import visible
from service.jobs import KINDS, charged_before_useful, get_job, made_by
from service.jobs.kind import failure_of
from service.jobs.lifecycle import SILENT_MINUTES, blocked
from service.views import newest
from service.views.accounts import Payer, Payments

UNFINISHED_MAX = 100  # shown on a page
AnyJob = Job | Row[Any]

# Without the plan, which is long, and the secret. Built once, because building it costs more than running it.
_COLUMNS = (
    *("id", "kind", "state", "account_id", "dataset_id", "evaluation_dataset_id", "recipe", "epsilon", "options"),
    *("attempt", "cancel_requested", "ended_early", "progress", "failure_code", "hold_id", "sweep_id", "release_id"),
    *("created_at", "started_at", "finished_at"),
)
JOBS = select(*[getattr(Job, name) for name in _COLUMNS])
ON_PAGES = (
    JOBS.add_columns(Account.name.label("account_name"), Dataset.name.label("dataset_name"))
    .outerjoin(Account, Account.id == Job.account_id)
    .outerjoin(Dataset, Dataset.id == Job.dataset_id)
)


def records(session: Session, rows: Sequence[AnyJob]) -> list[JobRecord]:
    """Return the records of jobs (or rows of JOBS). Raise LedgerCorruption if an account contradicts its log."""
    paid = payments_of(session, rows).require_sound()
    return _records(session, rows, paid, samples_of(session, rows), with_plans=True)


def made(session: Session, row: Job) -> Any:
    """Return the record of a job's result, or of the job itself."""
    kind = KINDS[row.kind]
    if kind.makes is None or kind.show is None:
        return records(session, [row])[0]
    return kind.show(made_by(session, kind.makes, row.id), row)


def event(session: Session, row: Job) -> EventRecord:
    """Return the data of one server-sent event."""
    sample = samples_of(session, [row]).get(row.id)
    facts = progress(row, payments_of(session, [row]).require_sound())
    named = {"job_id": row.id, "progress": facts, "failure": failure_of(row), "sample_id": sample and sample.id}
    return record_of(EventRecord, row, **named)


def payments_of(session: Session, rows: Sequence[AnyJob]) -> Payments:
    return Payments.read(session, [row.account_id for row in rows], [row.hold_id for row in rows])


def samples_of(session: Session, rows: Sequence[AnyJob]) -> dict[str, Sample]:
    """Return the samples that jobs generate, by job id."""
    ids = [row.id for row in rows if KINDS[row.kind].makes is Sample]
    if not ids:
        return {}
    return {row.job_id: row for row in session.scalars(visible(session, Sample).where(Sample.job_id.in_(ids)))}


def progress(row: AnyJob, paid: Payments) -> ProgressFacts:
    """Return progress and charges: the only fields that a running job may report."""
    reported: dict[str, Any] = row.progress or {}
    charged_nano = planned_nano = 0
    charged_epsilon = planned_epsilon = 0.0
    if row.hold_id is not None and row.account_id is not None:
        hold, epsilon_of = paid.holds[row.hold_id], paid.epsilon_of(row.account_id)
        charged_nano, planned_nano = hold.charged_nano, hold.amount_nano
        charged_epsilon, planned_epsilon = epsilon_of(charged_nano), epsilon_of(planned_nano)
    return ProgressFacts(
        **{name: reported.get(name) for name in ("stage", "step", "steps", "eta_seconds")},
        silent_minutes=reported.get(SILENT_MINUTES) if row.state is JobState.RUNNING else None,
        charged_nano=charged_nano,
        planned_nano=planned_nano,
        charged_epsilon=charged_epsilon,
        planned_epsilon=planned_epsilon,
    )


def _records(
    session: Session, rows: Sequence[AnyJob], paid: Payments, samples: Mapping[str, Sample], *, with_plans: bool
) -> list[JobRecord]:
    """Return records. For unfinished trainings, `publishes_if_cancelled` needs the plan, which is long."""
    useful_from_nano: dict[str, int | None] = {}
    unfinished = [row.id for row in rows if row.kind == TRAIN and row.state in UNFINISHED]
    if with_plans and unfinished:
        stored = visible(session, Job, select(Job.id, Job.plan)).where(Job.id.in_(unfinished))
        useful_from_nano = {job_id: charged_before_useful(plan) for job_id, plan in session.execute(stored)}
    shown, reasons = [], blocked(session, rows)
    for row in rows:
        facts, sample, least_nano = progress(row, paid), samples.get(row.id), useful_from_nano.get(row.id)
        shown.append(
            record_of(
                JobRecord,
                row,
                recipe=row.recipe if KINDS[row.kind].planned else None,
                cost_nano=facts.planned_nano,
                cost_epsilon=facts.planned_epsilon,
                publishes_if_cancelled=None if least_nano is None else facts.charged_nano >= max(least_nano, 1),
                progress=facts,
                blocked=reasons.get(row.id),
                failure=failure_of(row),
                sample_id=sample and sample.id,
            )
        )
    return shown


@dataclass(frozen=True)
class JobView:
    """A job on a page. If the paying account contradicts its log, no amount may be shown."""

    job: JobRecord
    row: Row[Any]  # selected by ON_PAGES
    title: str
    took: timedelta | None
    payer: Payer | None  # in lists, None unless the account is in doubt
    hold: ledger.Hold | None
    made: Any = None  # on its own page, the record of its result; None if its kind has no table of results


def views(session: Session, rows: Sequence[Row[Any]], now: datetime, *, in_full: bool = False) -> list[JobView]:
    """Return views of rows selected by ON_PAGES; if `in_full`, with payers and `publishes_if_cancelled`."""
    paid, samples, shown = payments_of(session, rows), samples_of(session, rows), []
    payer_ids = {row.account_id for row in rows if row.hold_id is not None}
    payers = {id: paid.payer(id) for id in payer_ids if in_full or id in paid.faults}
    for row, job in zip(rows, _records(session, rows, paid, samples, with_plans=in_full), strict=True):
        took, title = None, KINDS[row.kind].title(row, samples.get(row.id))
        if row.started_at is not None:
            took = max(minutes_between(row.started_at, row.finished_at or now), timedelta(minutes=1))
        payer, hold = (None, None) if row.hold_id is None else (payers.get(row.account_id), paid.holds[row.hold_id])
        shown.append(JobView(job, row, title, took, payer, hold))
    return shown


def view(session: Session, job_id: str, now: datetime) -> JobView:
    """Return a job with its result; its row also has the plan."""
    query = visible(session, Job, ON_PAGES.add_columns(Job.plan)).where(Job.id == job_id)
    row = session.execute(query).one_or_none()
    if row is None:
        raise NotFound("There is no such job.")
    (listed,) = views(session, [row], now, in_full=True)
    return listed if KINDS[row.kind].makes is None else replace(listed, made=made(session, get_job(session, job_id)))


def page(
    session: Session,
    now: datetime,
    *narrowed: ColumnElement[bool],
    limit: int,
    before: str | None = None,
    in_total: bool = False,
) -> tuple[list[JobView], str | None]:
    """Return a page of jobs, and the id of its last job if more follow. The first page starts with unfinished jobs.

    `limit` counts ended jobs, or all if `in_total`. `before` is the id of the last job of the previous page.
    """
    rows, last = list[Row[Any]](), None
    if before is None:
        # Literals, because SQLite uses the partial index on open jobs only if it sees the states.
        unfinished = visible(session, Job, ON_PAGES).where(text("jobs.state IN ('queued', 'running')"), *narrowed)
        rows += session.execute(unfinished.order_by(Job.created_at, Job.id.desc()).limit(UNFINISHED_MAX))
    ended_max = limit - len(rows) if in_total else limit
    if ended_max > 0:
        conditions = Job.state.not_in(UNFINISHED), *narrowed
        ended, last = newest(session, Job, *conditions, limit=ended_max, before=before, columns=ON_PAGES)
        rows += ended
    return views(session, rows, now), last
