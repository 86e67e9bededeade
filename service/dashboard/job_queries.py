"""What the pages show of jobs and sweeps. Nothing here writes, and job secrets are never loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session, defer, joinedload

from service import ledger
from service.dashboard.wording import FAILURES, RECIPE_TITLES
from service.db.tables import Dataset, HoldState, Job, JobKind, JobState, Release, Sample, Sweep
from service.errors import NotFound

ROWS_MAX = 200
RECENT_JOBS = 6
RECENT_SWEEPS = 6
ACTIVE = (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True)
class JobView:
    """A job with what it has said about itself, what it has charged, and what it made."""

    job: Job
    now: datetime
    sample: Sample | None

    @property
    def title(self) -> str:
        """What the job does, in words."""
        if self.job.kind is JobKind.SAMPLE:
            return f"Draw {self.sample.count:,} images" if self.sample else "Draw images"
        return RECIPE_TITLES.get(self.job.recipe, f"Train {self.job.recipe}")

    @property
    def active(self) -> bool:
        """Queued or running."""
        return self.job.state in ACTIVE

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
        """Time since the start, or from start to end."""
        if self.job.started_at is None:
            return None
        return (self.job.finished_at or self.now) - self.job.started_at

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

    @property
    def active(self) -> bool:
        """Whether a trial is queued or running."""
        return any(trial.view.active for trial in self.trials)

    @property
    def ended(self) -> int:
        """How many trials have ended."""
        return sum(not trial.view.active for trial in self.trials)


def list_sweeps(session: Session, now: datetime, *, account_id: str | None = None) -> list[SweepView]:
    """Return the latest sweeps, newest first."""
    query = select(Sweep.id).order_by(Sweep.created_at.desc(), Sweep.id).limit(RECENT_SWEEPS)
    if account_id is not None:
        query = query.where(Sweep.account_id == account_id)
    return [read_sweep(session, sweep_id, now) for sweep_id in session.scalars(query).all()]


def read_sweep(session: Session, sweep_id: str, now: datetime) -> SweepView:
    """Return a sweep with its trials in their order.

    Raises:
        NotFound: There is none.
    """
    sweep = session.get(Sweep, sweep_id)
    if sweep is None:
        raise NotFound("There is no such sweep.")
    account = ledger.get_account(session, sweep.account_id)
    views = _job_views(
        session, session.scalars(_jobs().where(Job.sweep_id == sweep_id).order_by(Job.created_at)).all(), now
    )
    found = select(Release.job_id, Release.summary).where(Release.job_id.in_([view.job.id for view in views]))
    measured = {job_id: summary.get("accuracy", {}) for job_id, summary in session.execute(found)}
    best = max(
        (job_id for job_id in measured if "cnn" in measured[job_id]), key=lambda id: measured[id]["cnn"], default=None
    )
    options = [view.job.options for view in views]
    differing = {name for each in options for name in each if any(other.get(name) != each[name] for other in options)}
    held = [view.job.hold for view in views if view.job.hold is not None]
    open_nano = sum(hold.amount_nano for hold in held if hold.state in (HoldState.HELD, HoldState.ARMED))
    return SweepView(
        sweep=sweep,
        account=account,
        dataset=session.get_one(Dataset, sweep.dataset_id),
        trials=[
            TrialView(
                view,
                {name: value for name, value in view.job.options.items() if name in differing},
                measured.get(view.job.id, {}),
                best=view.job.id == best,
            )
            for view in views
        ],
        price_share=sweep.price_nano / account.capacity_nano,
        held_share=open_nano / account.capacity_nano,
        spent_share=sum(hold.captured_nano for hold in held) / account.capacity_nano,
    )


def list_jobs(
    session: Session, now: datetime, *, limit: int, account_id: str | None = None, dataset_id: str | None = None
) -> list[JobView]:
    """Return jobs, of an account or a dataset or of any, those under way first, then the newest."""
    query = _jobs()
    if dataset_id is not None:
        query = query.where(or_(Job.dataset_id == dataset_id, Job.evaluation_dataset_id == dataset_id))
    if account_id is not None:
        query = query.where(Job.account_id == account_id)
    active = session.scalars(query.where(Job.state.in_(ACTIVE)).order_by(Job.created_at).limit(ROWS_MAX)).all()
    ended = session.scalars(query.where(Job.state.not_in(ACTIVE)).order_by(Job.created_at.desc()).limit(limit)).all()
    return _job_views(session, [*active, *ended][: max(limit, len(active))], now)


def read_job(session: Session, job_id: str, now: datetime) -> JobView:
    """Return one job.

    Raises:
        NotFound: There is none.
    """
    job = session.scalar(_jobs().where(Job.id == job_id))
    if job is None:
        raise NotFound("There is no such job.")
    return _job_views(session, [job], now)[0]


def _jobs() -> Select[Any]:
    return select(Job).options(
        defer(Job.secret, raiseload=True), joinedload(Job.account), joinedload(Job.dataset), joinedload(Job.hold)
    )


def _job_views(session: Session, jobs: Sequence[Job], now: datetime) -> list[JobView]:
    ids = [job.id for job in jobs if job.kind is JobKind.SAMPLE]
    rows = session.scalars(select(Sample).where(Sample.job_id.in_(ids))).all() if ids else []
    samples = {sample.job_id: sample for sample in rows}
    return [JobView(job, now, samples.get(job.id)) for job in jobs]
