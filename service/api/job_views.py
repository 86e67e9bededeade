"""Jobs, sweeps and what they make as wire records; see `service.api.views`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from obscura.wire.job_schemas import (
    FINAL_STATES,
    EventRecord,
    HistogramFacts,
    IncompleteFacts,
    JobRecord,
    ProgressFacts,
    ReleaseRecord,
    SweepRecord,
    SweepTotals,
    TrialFacts,
)
from obscura.wire.schemas import record_of
from obscura.wire.words import TRAIN, JobState, ReleaseKind
from privacy.accounting.filter import Filter
from service import ledger
from service.db.job_tables import Evaluation, Job, Release, Sample, Sweep
from service.errors import LedgerCorruption
from service.jobs import charged_before_useful
from service.jobs.kind import failure_of
from service.jobs.kinds import KINDS
from service.jobs.kinds.evaluate import newest_evaluations, newest_on_own_dataset, with_figures
from service.jobs.lookup import made_by
from service.jobs.silence import SILENT_MINUTES
from service.jobs.sweeps import sweeps_measured

# What is shown of a job; its plan, which is long, and its secret stay in the database. Built once: that costs more than
# running it.
JOBS = select(
    Job.id,
    Job.kind,
    Job.state,
    Job.account_id,
    Job.dataset_id,
    Job.evaluation_dataset_id,
    Job.recipe,
    Job.epsilon,
    Job.options,
    Job.cancel_requested,
    Job.ended_early,
    Job.progress,
    Job.failure_code,
    Job.hold_id,
    Job.release_id,
    Job.created_at,
    Job.started_at,
    Job.finished_at,
)


@dataclass(frozen=True)
class Payments:
    """Holds of some jobs and filters of their accounts, read with three queries however many there are.

    `useful_from_nano` says of each training that goes on what it must have charged to have something to publish.
    """

    holds: Mapping[str, ledger.Hold]
    filters: Mapping[str, Filter]  # by the account's id
    useful_from_nano: Mapping[str, int]

    @classmethod
    def of(cls, session: Session, rows: Sequence[Job | Row[Any]]) -> Payments:
        """Read them, checked against the log.

        Raises:
            LedgerCorruption: The log contradicts one of them.
        """
        accounts = ledger.get_accounts(session, {row.account_id for row in rows if row.account_id is not None})
        going_on = [row.id for row in rows if row.kind == TRAIN and row.state.value not in FINAL_STATES]
        plans = session.execute(select(Job.id, Job.plan).where(Job.id.in_(going_on))).all() if going_on else []
        return cls(
            useful_from_nano={
                job_id: found for job_id, plan in plans if (found := charged_before_useful(plan)) is not None
            },
            holds=ledger.get_holds(session, {row.hold_id for row in rows if row.hold_id is not None}),
            filters={account_id: ledger.filter_of(account) for account_id, account in accounts.items()},
        )


def progress(row: Job | Row[Any], paid: Payments) -> ProgressFacts:
    """Where a job is and what it has charged: the allow-list of what a running job may say."""
    said: dict[str, Any] = row.progress or {}
    charged_nano = planned_nano = 0
    charged_epsilon = planned_epsilon = 0.0
    if row.hold_id is not None and row.account_id is not None:
        hold = paid.holds[row.hold_id]
        charged_nano, planned_nano = hold.charged_nano, hold.amount_nano
        epsilon_of = paid.filters[row.account_id].epsilon_of
        charged_epsilon, planned_epsilon = epsilon_of(charged_nano), epsilon_of(planned_nano)
    return ProgressFacts(
        stage=said.get("stage"),
        step=said.get("step"),
        steps=said.get("steps"),
        eta_seconds=said.get("eta_seconds"),
        silent_minutes=said.get(SILENT_MINUTES) if row.state is JobState.RUNNING else None,
        charged_nano=charged_nano,
        planned_nano=planned_nano,
        charged_epsilon=charged_epsilon,
        planned_epsilon=planned_epsilon,
    )


def job(session: Session, row: Job) -> JobRecord:
    """One job, as `jobs` shows several."""
    return jobs(session, [row])[0]


def jobs(session: Session, rows: Sequence[Job | Row[Any]]) -> list[JobRecord]:
    """Jobs, whole or as JOBS finds them, with their progress and what they made."""
    drawn = _sample_ids(session, [row.id for row in rows if KINDS[row.kind].makes is Sample])
    paid = Payments.of(session, rows)
    return [_job(row, drawn.get(row.id), paid) for row in rows]


def made(session: Session, row: Job) -> Any:
    """What a job makes, or the job itself where that is no row of its own."""
    kind = KINDS[row.kind]
    if kind.makes is None or kind.show is None:
        return job(session, row)
    return kind.show(made_by(session, kind.makes, row.id), row)


def sweeps(session: Session, rows: Sequence[Sweep]) -> list[SweepRecord]:
    """Sweeps with their trials and what they cost together."""
    query = JOBS.add_columns(Job.sweep_id, Release.summary, Release.incomplete)
    query = query.outerjoin(Release, Release.id == Job.release_id)
    query = query.where(Job.sweep_id.in_([row.id for row in rows]), Job.kind == TRAIN)
    trials: dict[str, list[Row[Any]]] = {row.id: [] for row in rows}
    found = session.execute(query.order_by(Job.created_at)).all()
    for job in found:
        trials[job.sweep_id].append(job)
    paid = Payments.of(session, found)
    payers = ledger.get_accounts(session, {row.account_id for row in rows})
    newest = newest_on_own_dataset(session, found)
    measuring = sweeps_measured(session, [row.id for row in rows])
    return [
        _sweep(
            row, trials[row.id], paid, newest, ledger.filter_of(payers[row.account_id]).epsilon_of, row.id in measuring
        )
        for row in rows
    ]


def event(session: Session, row: Job) -> EventRecord:
    """What one server-sent event says about a job."""
    drawn = _sample_ids(session, [row.id]) if KINDS[row.kind].makes is Sample else {}
    return EventRecord(
        job_id=row.id,
        state=row.state.value,
        cancel_requested=row.cancel_requested,
        progress=progress(row, Payments.of(session, [row])),
        failure=failure_of(row),
        release_id=row.release_id,
        sample_id=drawn.get(row.id),
    )


def _publishes_if_cancelled(row: Job | Row[Any], charged_nano: int, paid: Payments) -> bool | None:
    """Whether a training that has charged so much would publish something if it were cancelled now."""
    useful_from = paid.useful_from_nano.get(row.id)
    return None if useful_from is None else charged_nano > 0 and charged_nano >= useful_from


def _job(row: Job | Row[Any], sample_id: str | None, paid: Payments) -> JobRecord:
    facts = progress(row, paid)
    return record_of(
        JobRecord,
        row,
        recipe=row.recipe if KINDS[row.kind].planned else None,
        price_nano=facts.planned_nano,
        price_epsilon=facts.planned_epsilon,
        publishes_if_cancelled=_publishes_if_cancelled(row, facts.charged_nano, paid),
        progress=facts,
        failure=failure_of(row),
        sample_id=sample_id,
    )


def _sweep(
    row: Sweep,
    trials: Sequence[Row[Any]],
    paid: Payments,
    newest: Mapping[str, Evaluation],
    epsilon_of: Callable[[int], float],
    measuring: bool,
) -> SweepRecord:
    shown = [_trial(job, paid, newest.get(job.release_id), epsilon_of) for job in trials]
    held_nano, spent_nano = sum(trial.held_nano for trial in shown), sum(trial.spent_nano for trial in shown)
    measured = {trial.job_id: trial.accuracy["cnn"] for trial in shown if trial.accuracy and "cnn" in trial.accuracy}
    ended = all(trial.state in FINAL_STATES for trial in shown) and not measuring
    return SweepRecord(
        id=row.id,
        name=row.name,
        account_id=row.account_id,
        dataset_id=row.dataset_id,
        recipe=row.recipe,
        state="ended" if ended else "open",
        trials=shown,
        totals=SweepTotals(
            price_nano=row.price_nano,
            held_nano=held_nano,
            spent_nano=spent_nano,
            returned_nano=row.price_nano - held_nano - spent_nano,
            price_epsilon=epsilon_of(row.price_nano),
            spent_epsilon=epsilon_of(spent_nano),
        ),
        best_job_id=max(measured, key=lambda job_id: measured[job_id]) if measured else None,
        created_at=row.created_at,
    )


def _trial(row: Row[Any], paid: Payments, newest: Evaluation | None, epsilon_of: Callable[[int], float]) -> TrialFacts:
    if row.hold_id is None or row.epsilon is None:
        raise LedgerCorruption("A trial of a sweep lacks its hold or its epsilon.", job_id=row.id)
    hold = paid.holds[row.hold_id]
    reserved = hold.state in (ledger.HoldState.HELD, ledger.HoldState.ARMED)
    return TrialFacts(
        job_id=row.id,
        state=row.state.value,
        options=row.options,
        epsilon=row.epsilon,
        held_nano=hold.amount_nano if reserved else 0,
        charged_nano=hold.charged_nano,
        spent_nano=hold.captured_nano,
        spent_epsilon=epsilon_of(hold.captured_nano),
        accuracy=None if row.summary is None else with_figures(row.summary, newest).get("accuracy"),
        failure=failure_of(row),
        release_id=row.release_id,
        incomplete=row.incomplete is not None,
    )


def _sample_ids(session: Session, job_ids: Sequence[str]) -> dict[str, str]:
    if not job_ids:
        return {}
    rows = session.execute(select(Sample.job_id, Sample.id).where(Sample.job_id.in_(job_ids)))
    return {row.job_id: row.id for row in rows}


# What is shown of a release; its card and its receipt, which are long, have addresses of their own.
RELEASES = select(
    Release.id,
    Release.kind,
    Release.job_id,
    Release.account_id,
    Release.dataset_id,
    Release.name,
    Release.artifact_sha256,
    Release.summary,
    Release.incomplete,
    Release.created_at,
)


def releases(session: Session, rows: Sequence[Release | Row[Any]]) -> list[ReleaseRecord]:
    """Releases, whole or as RELEASES finds them, with the figures of their newest evaluations.

    Their cards and files have addresses of their own.
    """
    newest = newest_evaluations(session, [row.id for row in rows])
    return [_release(row, newest.get(row.id)) for row in rows]


def _release(row: Release | Row[Any], newest: Evaluation | None) -> ReleaseRecord:
    summary = with_figures(row.summary, newest)
    histogram = summary.pop("histogram", None) if row.kind is ReleaseKind.HISTOGRAM else None
    return record_of(
        ReleaseRecord,
        row,
        summary=summary,
        incomplete=None if row.incomplete is None else IncompleteFacts(**row.incomplete),
        histogram=None if histogram is None else HistogramFacts(**histogram),
    )
