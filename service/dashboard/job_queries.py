"""What the pages show of jobs and sweeps. Nothing here writes, and job secrets are never loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, bindparam, case, func, or_, select, text, tuple_
from sqlalchemy.orm import Session, defer, joinedload

from privacy.plans.registry import plan_from_json, useful_from_nano
from service import ledger
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release, Sample, Sweep
from service.db.ledger_tables import AccountRow, HoldRow
from service.db.words import UNFINISHED, EarlyEnd, FailureCode, HoldState, JobKind, JobState
from service.errors import NotFound
from service.jobs.evaluations import newest_on_own_dataset, with_figures
from service.jobs.sweeps import sweeps_measured
from service.times import to_the_minute
from service.wording import FAILURES, RECIPE_TITLES

JOBS_A_PAGE = 50
UNFINISHED_MAX = 100
RECENT_JOBS = 6
RECENT_SWEEPS = 6
# Spelt out, for SQLite uses the index on open jobs only where it sees the states.
_IS_UNFINISHED = text("jobs.state IN ('queued', 'running')")


@dataclass(frozen=True, slots=True)
class Named:
    """An account or a dataset, as a list shows it."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class HoldFacts:
    """What a job's hold reserves, and what became of it."""

    state: HoldState
    amount_nano: int
    charged_nano: int
    captured_nano: int


@dataclass(frozen=True, slots=True)
class JobRow:
    """What lists show of a job: fields of `Job` by their names there, without its plan, which is long."""

    id: str
    kind: JobKind
    state: JobState
    recipe: str
    epsilon: float | None
    options: dict[str, Any]
    progress: dict[str, Any]
    cancel_requested: bool
    ended_early: EarlyEnd | None
    failure_code: FailureCode | None
    evaluation_dataset_id: str | None
    release_id: str | None
    sweep_id: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    account: Named | None
    dataset: Named | None
    hold: HoldFacts | None


_JOB = (
    Job.id,
    Job.kind,
    Job.state,
    Job.recipe,
    Job.epsilon,
    Job.options,
    Job.progress,
    Job.cancel_requested,
    Job.ended_early,
    Job.failure_code,
    Job.evaluation_dataset_id,
    Job.release_id,
    Job.sweep_id,
    Job.created_at,
    Job.started_at,
    Job.finished_at,
)
# Built once: that costs more than running it.
_ROWS = (
    select(
        *_JOB,
        *(AccountRow.id, AccountRow.name),
        *(Dataset.id, Dataset.name),
        *(HoldRow.state, HoldRow.amount_nano, HoldRow.charged_nano, HoldRow.captured_nano),
    )
    .outerjoin(AccountRow, AccountRow.id == Job.account_id)
    .outerjoin(Dataset, Dataset.id == Job.dataset_id)
    .outerjoin(HoldRow, HoldRow.id == Job.hold_id)
)


@dataclass(frozen=True)
class JobView:
    """A job with what it has said about itself, what it has charged, and what it made."""

    job: Job | JobRow
    now: datetime
    sample: Sample | None
    epsilon_charged: float = 0.0  # of a single job's page
    epsilon_held: float = 0.0
    publishes: bool = False  # likewise: whether it goes on and has paid for something that could be published now

    @property
    def title(self) -> str:
        """What the job does, in words."""
        if self.job.kind is JobKind.SAMPLE:
            return f"Draw {self.sample.count:,} images" if self.sample else "Draw images"
        if self.job.kind is JobKind.EVALUATE:
            return "Evaluate a release"
        return RECIPE_TITLES.get(self.job.recipe, f"Train {self.job.recipe}")

    @property
    def active(self) -> bool:
        """Queued or running."""
        return self.job.state in UNFINISHED

    @property
    def stage(self) -> str | None:
        """Name of the plan's stage."""
        return self.job.progress.get("stage")

    @property
    def step(self) -> int:
        """Steps done in this stage."""
        return int(self.job.progress.get("step") or 0)

    @property
    def steps(self) -> int:
        """Steps of this stage; 0 when it is not known."""
        return int(self.job.progress.get("steps") or 0)

    @property
    def eta(self) -> timedelta | None:
        """Time still needed, as the job estimates it."""
        seconds = self.job.progress.get("eta_seconds")
        return None if seconds is None else timedelta(seconds=float(seconds))

    @property
    def charged_share(self) -> float | None:
        """Part of the hold that has been charged, 0 to 1; None for jobs that cost nothing."""
        return None if self.job.hold is None else self.job.hold.charged_nano / self.job.hold.amount_nano

    @property
    def took(self) -> timedelta | None:
        """Time since the start, or from start to end in minutes, at least one."""
        if self.job.started_at is None:
            return None
        if self.job.finished_at is None:
            return self.now - self.job.started_at
        return max(to_the_minute(self.job.finished_at) - to_the_minute(self.job.started_at), timedelta(minutes=1))

    @property
    def failure(self) -> str | None:
        """Why it failed, from the closed set."""
        return None if self.job.failure_code is None else FAILURES[self.job.failure_code]


@dataclass(frozen=True)
class TrialView:
    """One training of a sweep: its job, its options that differ between trials, and its accuracies on public data."""

    view: JobView
    options: dict[str, Any]
    accuracy: dict[str, float]
    best: bool


@dataclass(frozen=True)
class SweepView:
    """A hyper-parameter search, and shares of the account's lifetime budget that it was priced at and has spent."""

    sweep: Sweep
    account: ledger.Account
    dataset: Dataset
    trials: list[TrialView]
    price_share: float
    held_share: float
    spent_share: float
    measuring: bool

    @property
    def active(self) -> bool:
        """Whether a trial, or the evaluation of one, is queued or running."""
        return self.measuring or any(trial.view.active for trial in self.trials)

    @property
    def count(self) -> int:
        """How many trials there are."""
        return len(self.trials)

    @property
    def ended(self) -> int:
        """How many trials have ended."""
        return sum(not trial.view.active for trial in self.trials)


@dataclass(frozen=True)
class SweepRow:
    """What lists show of a sweep: see `SweepView`."""

    sweep: Sweep
    account: Named
    count: int
    ended: int
    price_share: float
    held_share: float
    spent_share: float


_SWEEP_SUMS = (
    select(
        Job.sweep_id,
        func.count(),
        func.sum(case((Job.state.in_(UNFINISHED), 0), else_=1)),
        func.sum(case((HoldRow.state.in_((HoldState.HELD, HoldState.ARMED)), HoldRow.amount_nano), else_=0)),
        func.sum(HoldRow.captured_nano),
    )
    .join(HoldRow, HoldRow.id == Job.hold_id)
    .where(Job.sweep_id.in_(bindparam("sweeps", expanding=True)))
    .group_by(Job.sweep_id)
)


def list_sweeps(session: Session, *, account_id: str | None = None) -> list[SweepRow]:
    """Return the latest sweeps, newest first, with the sums over their trials."""
    latest = select(Sweep).order_by(Sweep.created_at.desc(), Sweep.id).limit(RECENT_SWEEPS)
    if account_id is not None:
        latest = latest.where(Sweep.account_id == account_id)
    sweeps = session.scalars(latest).all()
    if not sweeps:
        return []
    sums = session.execute(_SWEEP_SUMS, {"sweeps": [sweep.id for sweep in sweeps]})
    found = {sweep_id: tuple(map(int, numbers)) for sweep_id, *numbers in sums}
    accounts = ledger.get_accounts(session, {sweep.account_id for sweep in sweeps})
    rows = []
    for sweep in sweeps:
        account = accounts[sweep.account_id]
        count, ended, held_nano, spent_nano = found.get(sweep.id, (0, 0, 0, 0))
        shares = (nano / account.capacity_nano for nano in (sweep.price_nano, held_nano, spent_nano))
        rows.append(SweepRow(sweep, Named(account.id, account.name), count, ended, *shares))
    return rows


def read_sweep(session: Session, sweep_id: str, now: datetime) -> SweepView:
    """Return a sweep with its trials in their order.

    Raises:
        NotFound: There is none.
    """
    sweep = session.get(Sweep, sweep_id)
    if sweep is None:
        raise NotFound("There is no such sweep.")
    account = ledger.get_account(session, sweep.account_id)
    rows = _rows(session, Job.sweep_id == sweep_id, Job.kind == JobKind.TRAIN, order=Job.created_at)
    found = session.execute(
        select(Release.job_id, Release.id, Release.summary).where(Release.job_id.in_([row.id for row in rows]))
    ).all()
    newest = newest_on_own_dataset(session, rows)
    measured = {each.job_id: with_figures(each.summary, newest.get(each.id)).get("accuracy", {}) for each in found}
    best = max(
        (job_id for job_id in measured if "cnn" in measured[job_id]), key=lambda id: measured[id]["cnn"], default=None
    )
    options = [row.options for row in rows]
    differing = {name for each in options for name in each if any(other.get(name) != each[name] for other in options)}
    held = [row.hold for row in rows if row.hold is not None]
    open_nano = sum(hold.amount_nano for hold in held if hold.state in (HoldState.HELD, HoldState.ARMED))
    return SweepView(
        sweep=sweep,
        account=account,
        dataset=session.get_one(Dataset, sweep.dataset_id),
        trials=[
            TrialView(
                JobView(row, now, None),
                {name: value for name, value in row.options.items() if name in differing},
                measured.get(row.id, {}),
                best=row.id == best,
            )
            for row in rows
        ],
        price_share=sweep.price_nano / account.capacity_nano,
        held_share=open_nano / account.capacity_nano,
        spent_share=sum(hold.captured_nano for hold in held) / account.capacity_nano,
        measuring=bool(sweeps_measured(session, [sweep_id])),
    )


def list_jobs(
    session: Session, now: datetime, *, limit: int, account_id: str | None = None, dataset_id: str | None = None
) -> list[JobView]:
    """Return jobs, of an account or a dataset or of any, those under way first, then the newest."""
    chosen = _of(account_id, dataset_id)
    active = _rows(session, _IS_UNFINISHED, *chosen, order=Job.created_at, limit=UNFINISHED_MAX)
    ended = _rows(session, Job.state.not_in(UNFINISHED), *chosen, order=Job.created_at.desc(), limit=limit)
    return _job_views(session, [*active, *ended][: max(limit, len(active))], now)


def list_active_jobs(session: Session, now: datetime) -> list[JobView]:
    """Return the jobs that are queued or running, oldest first."""
    return _job_views(session, _rows(session, _IS_UNFINISHED, order=Job.created_at, limit=UNFINISHED_MAX), now)


def list_ended_jobs(session: Session, now: datetime, *, before: str | None) -> tuple[list[JobView], str | None]:
    """Return a page of the jobs that have ended, newest first, and the last one's id where there are more.

    Args:
        session: Any transaction.
        now: Aware.
        before: Id of the last job of the page before; None for the first page.

    Raises:
        NotFound: There is no such job.
    """
    conditions: list[ColumnElement[bool]] = [Job.state.not_in(UNFINISHED)]
    if before is not None:
        place = session.execute(select(Job.created_at, Job.id).where(Job.id == before)).first()
        if place is None:
            raise NotFound("There is no such job.")
        conditions.append(tuple_(Job.created_at, Job.id) < tuple_(*place))
    rows = _rows(session, *conditions, order=Job.created_at.desc(), limit=JOBS_A_PAGE + 1)
    shown = rows[:JOBS_A_PAGE]
    return _job_views(session, shown, now), shown[-1].id if len(rows) > len(shown) else None


def read_job(session: Session, job_id: str, now: datetime) -> tuple[JobView, dict[str, Any]]:
    """Return one job and its plan.

    Raises:
        NotFound: There is none.
    """
    query = select(Job).options(
        defer(Job.secret, raiseload=True), joinedload(Job.account), joinedload(Job.dataset), joinedload(Job.hold)
    )
    job = session.scalar(query.where(Job.id == job_id))
    if job is None:
        raise NotFound("There is no such job.")
    view, plan = _job_views(session, [job], now)[0], job.plan or {}
    if job.hold is not None and job.account_id is not None:
        charged_nano = job.hold.charged_nano
        epsilon_of = ledger.filter_of(ledger.get_account(session, job.account_id)).epsilon_of
        view = replace(
            view,
            epsilon_charged=epsilon_of(charged_nano),
            epsilon_held=epsilon_of(job.hold.amount_nano),
            publishes=view.active and charged_nano > 0 and charged_nano >= useful_from_nano(plan_from_json(plan)),
        )
    return view, plan


def _of(account_id: str | None, dataset_id: str | None) -> list[ColumnElement[bool]]:
    chosen = []
    if dataset_id is not None:
        chosen.append(or_(Job.dataset_id == dataset_id, Job.evaluation_dataset_id == dataset_id))
    if account_id is not None:
        chosen.append(Job.account_id == account_id)
    return chosen


def _rows(session: Session, *conditions: Any, order: Any, limit: int | None = None) -> list[JobRow]:
    query = _ROWS.where(*conditions).order_by(order, Job.id.desc()).limit(limit)
    return [_row(tuple(row)) for row in session.execute(query)]


def _row(columns: tuple[Any, ...]) -> JobRow:
    job, (account_id, account, dataset_id, dataset, state, *amounts) = columns[: len(_JOB)], columns[len(_JOB) :]
    return JobRow(
        **{column.key: value for column, value in zip(_JOB, job, strict=True)},
        account=None if account_id is None else Named(account_id, account),
        dataset=None if dataset_id is None else Named(dataset_id, dataset),
        hold=None if state is None else HoldFacts(state, *amounts),
    )


def _job_views(session: Session, jobs: Sequence[Job | JobRow], now: datetime) -> list[JobView]:
    ids = [job.id for job in jobs if job.kind is JobKind.SAMPLE]
    rows = session.scalars(select(Sample).where(Sample.job_id.in_(ids))).all() if ids else []
    samples = {sample.job_id: sample for sample in rows}
    return [JobView(job, now, samples.get(job.id)) for job in jobs]
