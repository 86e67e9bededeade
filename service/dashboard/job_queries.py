"""What the pages show of jobs and sweeps. Nothing here writes, and job secrets are never loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, or_, select, text, tuple_
from sqlalchemy.orm import Session

from obscura.wire.schemas import to_the_minute
from obscura.wire.wording import show_silence
from obscura.wire.words import FAILURES, TRAIN, UNFINISHED, HoldState
from service import jobs, ledger
from service.dashboard.queries import Payer, read_payers
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Preview, Release, Sample, Sweep
from service.db.ledger_tables import AccountRow
from service.errors import NotFound
from service.jobs.kinds import KINDS
from service.jobs.kinds.evaluate import newest_on_own_dataset, with_figures
from service.jobs.kinds.preview import forecast_sentence
from service.jobs.silence import SILENT_MINUTES
from service.jobs.sweeps import sweeps_measured

JOBS_A_PAGE = 50
UNFINISHED_MAX = 100
RECENT_JOBS = 6
RECENT_SWEEPS = 6
RESERVING = (HoldState.HELD, HoldState.ARMED)
# Spelt out, for SQLite uses the index on open jobs only where it sees the states.
_IS_UNFINISHED = text("jobs.state IN ('queued', 'running')")


# What lists show of a job, without its plan, which is long. Built once: that costs more than running it.
_JOBS = (
    select(
        Job.id,
        Job.kind,
        Job.state,
        Job.attempt,
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
        Job.account_id,
        Job.dataset_id,
        Job.created_at,
        Job.started_at,
        Job.finished_at,
        Job.hold_id,
        AccountRow.name.label("account_name"),
        Dataset.name.label("dataset_name"),
    )
    .outerjoin(AccountRow, AccountRow.id == Job.account_id)
    .outerjoin(Dataset, Dataset.id == Job.dataset_id)
)


@dataclass(frozen=True)
class JobView:
    """A job, as _JOBS finds it, with what it has said about itself, what it has charged, and what it made."""

    job: Row[Any]
    now: datetime
    sample: Sample | None = None
    payer: Payer | None = None  # of a single job's page, where the job has a hold
    hold: ledger.Hold | None = None  # likewise
    preview: Preview | None = None  # likewise
    publishes: bool = False  # likewise: whether it goes on and has paid for something that could be published now

    @property
    def title(self) -> str:
        """What the job does, in words."""
        return KINDS[self.job.kind].title(self.job, self.sample)

    @property
    def active(self) -> bool:
        """Queued or running."""
        return self.job.state in UNFINISHED

    @property
    def forecast(self) -> str:
        """What a preview that has ended found, in words."""
        return forecast_sentence(**self.preview.results) if self.preview and self.preview.results else ""

    @property
    def stage(self) -> str | None:
        """Name of the plan's stage."""
        stage: str | None = self.job.progress.get("stage")
        return stage

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
    def epsilons(self) -> tuple[float, float] | None:
        """What was charged and what is held in all, at the account's delta; None where it is free or in doubt."""
        if self.hold is None or self.payer is None or self.payer.balance is None:
            return None
        epsilon_of = ledger.filter_of(self.payer.account).epsilon_of
        return epsilon_of(self.hold.charged_nano), epsilon_of(self.hold.amount_nano)

    @property
    def silence(self) -> str | None:
        """What is said of a runner that gives no sign of life."""
        minutes = self.job.progress.get(SILENT_MINUTES)
        return None if minutes is None else show_silence(minutes)

    @property
    def charged_share(self) -> float | None:
        """Part of the hold that has been charged, 0 to 1; None for jobs that cost nothing."""
        return None if self.hold is None else self.hold.charged_nano / self.hold.amount_nano

    @property
    def took(self) -> timedelta | None:
        """Time since the start, or from start to end in minutes, at least one."""
        began: datetime | None = self.job.started_at
        if began is None:
            return None
        if self.job.finished_at is None:
            return self.now - began
        return max(to_the_minute(self.job.finished_at) - to_the_minute(began), timedelta(minutes=1))

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
    """A hyper-parameter search, and the shares of its account's lifetime budget that it was priced at, holds and spent.

    Lists show no trials, only how many there are. Where the payer is in doubt, so are the shares.
    """

    sweep: Sweep
    payer: Payer
    count: int
    ended: int
    held_nano: int
    spent_nano: int
    dataset: Dataset | None = None
    trials: Sequence[TrialView] = ()
    measuring: bool = False

    @property
    def active(self) -> bool:
        """Whether a trial, or the evaluation of one, is queued or running."""
        return self.measuring or self.ended < self.count

    @property
    def price_share(self) -> float:
        """What was held at the start."""
        return self.sweep.price_nano / self.payer.account.capacity_nano

    @property
    def held_share(self) -> float:
        """What is still held."""
        return self.held_nano / self.payer.account.capacity_nano

    @property
    def spent_share(self) -> float:
        """What was spent."""
        return self.spent_nano / self.payer.account.capacity_nano


def list_sweeps(session: Session, *, account_id: str | None = None) -> list[SweepView]:
    """Return the latest sweeps, newest first, with the sums over their trials."""
    latest = select(Sweep).order_by(Sweep.created_at.desc(), Sweep.id).limit(RECENT_SWEEPS)
    if account_id is not None:
        latest = latest.where(Sweep.account_id == account_id)
    sweeps = session.scalars(latest).all()
    if not sweeps:
        return []
    trials = select(Job.sweep_id, Job.state, Job.hold_id).where(Job.sweep_id.in_([sweep.id for sweep in sweeps]))
    rows: list[Any] = list(session.execute(trials.where(Job.kind == TRAIN)))
    payers, holds = read_payers(session, {sweep.account_id for sweep in sweeps}, _hold_ids(rows))
    return [
        _sweep(sweep, payers[sweep.account_id], holds, [row for row in rows if row.sweep_id == sweep.id])
        for sweep in sweeps
    ]


def read_sweep(session: Session, sweep_id: str, now: datetime) -> SweepView:
    """Return a sweep with its trials in their order.

    Raises:
        NotFound: There is none.
    """
    sweep = jobs.get_sweep(session, sweep_id)
    rows = _rows(session, Job.sweep_id == sweep_id, Job.kind == TRAIN, order=Job.created_at)
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
    payers, holds = read_payers(session, [sweep.account_id], _hold_ids(rows))
    return replace(
        _sweep(sweep, payers[sweep.account_id], holds, rows),
        dataset=session.get_one(Dataset, sweep.dataset_id),
        trials=[
            TrialView(
                JobView(row, now),
                {name: value for name, value in row.options.items() if name in differing},
                measured.get(row.id, {}),
                best=row.id == best,
            )
            for row in rows
        ],
        measuring=bool(sweeps_measured(session, [sweep_id])),
    )


def list_jobs(
    session: Session, now: datetime, *, limit: int, account_id: str | None = None, dataset_id: str | None = None
) -> list[JobView]:
    """Return jobs, of an account or a dataset or of any, those under way first, then the newest."""
    chosen = _of(account_id, dataset_id)
    active = _rows(session, _IS_UNFINISHED, *chosen, order=Job.created_at, limit=UNFINISHED_MAX)
    ended = _rows(session, Job.state.not_in(UNFINISHED), *chosen, order=Job.created_at.desc(), limit=limit)
    return _views(session, [*active, *ended][: max(limit, len(active))], now)


def list_active_jobs(session: Session, now: datetime, *narrowed: ColumnElement[bool]) -> list[JobView]:
    """Return the jobs that are queued or running, oldest first."""
    return _views(session, _rows(session, _IS_UNFINISHED, *narrowed, order=Job.created_at, limit=UNFINISHED_MAX), now)


def list_ended_jobs(
    session: Session, now: datetime, *narrowed: ColumnElement[bool], before: str | None
) -> tuple[list[JobView], str | None]:
    """Return a page of the jobs that have ended, newest first, and the last one's id where there are more.

    Args:
        session: Any transaction.
        now: Aware.
        narrowed: Conditions on the jobs.
        before: Id of the last job of the page before; None for the first page.

    Raises:
        NotFound: There is no such job.
    """
    conditions = [Job.state.not_in(UNFINISHED), *narrowed, *older_than(session, Job, before)]
    rows = _rows(session, *conditions, order=Job.created_at.desc(), limit=JOBS_A_PAGE + 1)
    shown = rows[:JOBS_A_PAGE]
    return _views(session, shown, now), shown[-1].id if len(rows) > len(shown) else None


def read_job(session: Session, job_id: str, now: datetime) -> tuple[JobView, dict[str, Any]]:
    """Return one job and its plan.

    Raises:
        NotFound: There is none.
    """
    row = session.execute(_JOBS.add_columns(Job.plan).where(Job.id == job_id)).one_or_none()
    if row is None:
        raise NotFound("There is no such job.")
    view, plan = _views(session, [row], now)[0], row.plan or {}
    if KINDS[row.kind].makes is Preview:
        view = replace(view, preview=jobs.made_by(session, Preview, job_id))
    if row.hold_id is not None and row.account_id is not None:
        useful_nano = jobs.charged_before_useful(plan)
        payers, holds = read_payers(session, [row.account_id], [row.hold_id])
        charged_nano = holds[row.hold_id].charged_nano
        view = replace(
            view,
            payer=payers[row.account_id],
            hold=holds[row.hold_id],
            publishes=view.active and useful_nano is not None and charged_nano >= max(useful_nano, 1),
        )
    return view, plan


def older_than(session: Session, table: type[Job | Release | Dataset], id: str | None) -> list[ColumnElement[bool]]:
    """Return the condition that a row is older than another one; none for the first page.

    Raises:
        NotFound: There is no such row.
    """
    if id is None:
        return []
    place = session.execute(select(table.created_at, table.id).where(table.id == id)).first()
    if place is None:
        raise NotFound(f"There is no such {table.__name__.lower()}.")
    return [tuple_(table.created_at, table.id) < tuple_(*place)]


def _sweep(sweep: Sweep, payer: Payer, holds: Mapping[str, ledger.Hold], trials: Sequence[Row[Any]]) -> SweepView:
    """Return a sweep with what its trials hold and have spent together."""
    own = [holds[id] for id in _hold_ids(trials)]
    return SweepView(
        sweep=sweep,
        payer=payer,
        count=len(trials),
        ended=sum(row.state not in UNFINISHED for row in trials),
        held_nano=sum(hold.amount_nano for hold in own if hold.state in RESERVING),
        spent_nano=sum(hold.captured_nano for hold in own),
    )


def _hold_ids(trials: Iterable[Row[Any]]) -> list[str]:
    return [row.hold_id for row in trials if row.hold_id is not None]


def _of(account_id: str | None, dataset_id: str | None) -> list[ColumnElement[bool]]:
    chosen = []
    if dataset_id is not None:
        chosen.append(or_(Job.dataset_id == dataset_id, Job.evaluation_dataset_id == dataset_id))
    if account_id is not None:
        chosen.append(Job.account_id == account_id)
    return chosen


def _rows(session: Session, *conditions: Any, order: Any, limit: int | None = None) -> Sequence[Row[Any]]:
    return session.execute(_JOBS.where(*conditions).order_by(order, Job.id.desc()).limit(limit)).all()


def _views(session: Session, rows: Sequence[Row[Any]], now: datetime) -> list[JobView]:
    ids = [row.id for row in rows if KINDS[row.kind].makes is Sample]
    samples = session.scalars(select(Sample).where(Sample.job_id.in_(ids))).all() if ids else []
    drawn = {sample.job_id: sample for sample in samples}
    return [JobView(row, now, drawn.get(row.id)) for row in rows]
