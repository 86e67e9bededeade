"""Table rows as wire records, field by field: what is not named here does not leave the service.

Functions take rows that were read in the caller's transaction; those that need more rows take the session too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from privacy.plans.plan import Plan
from service import ledger
from service.api.schemas import (
    FINAL_STATES,
    AccountRecord,
    BalanceFacts,
    BudgetFacts,
    DatasetRecord,
    EntryRecord,
    EventRecord,
    FailureFacts,
    HistogramFacts,
    JobRecord,
    KeyRecord,
    LimitRequestRecord,
    PlanRecord,
    PlanRequest,
    ProgressFacts,
    ReleaseRecord,
    SampleRecord,
    StageFacts,
    SweepRecord,
    SweepTotals,
    TrialFacts,
)
from service.db.tables import (
    ApiKey,
    Dataset,
    FailureCode,
    Job,
    JobKind,
    LimitRequest,
    Release,
    ReleaseKind,
    Sample,
    Sweep,
    Visibility,
)
from service.errors import LedgerCorruption

FAILURES: dict[FailureCode, str] = {
    FailureCode.TRAINING_FAILED: "The training did not finish.",
    FailureCode.EVALUATION_FAILED: "The evaluation on public data did not finish.",
    FailureCode.SAMPLING_FAILED: "The sampling did not finish.",
    FailureCode.DATASET_UNAVAILABLE: "The dataset's content was not available.",
    FailureCode.RELEASE_UNAVAILABLE: "The release's files were not available.",
    FailureCode.HOLD_EXHAUSTED: "The budget held for this job was used up before it could finish.",
    FailureCode.OUT_OF_MEMORY: "The job needed more memory than there is.",
    FailureCode.OUT_OF_DISK: "The disk was full.",
    FailureCode.TIME_LIMIT: "The job took longer than the service allows.",
    FailureCode.WORKER_LOST: "The process that ran the job was lost too often.",
    FailureCode.LEDGER_UNAVAILABLE: "The ledger could not be reached, so nothing more was released.",
    FailureCode.INTERNAL: "Something broke on our side.",
}


def account(row: ledger.Account) -> AccountRecord:
    """An account with its balance."""
    balance = ledger.balance_of(row)
    return AccountRecord(
        id=row.id,
        name=row.name,
        owner=row.owner,
        epsilon=row.epsilon,
        delta=row.delta,
        unit=row.unit.value,
        adjacency=row.adjacency.value,
        filter=row.filter.value,
        filter_order=row.filter_order,
        frozen=row.frozen,
        balance=BalanceFacts(**{name: getattr(balance, name) for name in BalanceFacts.model_fields}),
        created_at=row.created_at,
    )


def limit_request(row: LimitRequest, now: datetime) -> LimitRequestRecord:
    """A request to raise a limit."""
    return LimitRequestRecord(
        id=row.id,
        account_id=row.account_id,
        epsilon_before=row.epsilon_before,
        epsilon=row.epsilon,
        reason=row.reason,
        state="expired" if ledger.has_expired(row, now) else row.state.value,
        requested_by=row.requested_by,
        requested_at=row.requested_at,
        expires_at=row.requested_at + ledger.REQUEST_LIFETIME,
        decided_by=row.decided_by,
        decided_at=row.decided_at,
    )


def entry(row: ledger.Entry) -> EntryRecord:
    """A ledger row."""
    return EntryRecord(
        account_id=row.account_id,
        sequence=row.sequence,
        kind=row.kind.value,
        hold_id=row.hold_id,
        job_id=row.job_id,
        amount_nano=row.amount_nano,
        capacity_nano=row.capacity_nano,
        spent_nano=row.spent_nano,
        held_nano=row.held_nano,
        details=row.details,
        previous_hash=row.previous_hash,
        hash=row.hash,
        created_at=row.created_at,
    )


def dataset(row: Dataset) -> DatasetRecord:
    """A dataset. Size and digest of private content are functions of private data and stay inside."""
    public = row.visibility is Visibility.PUBLIC
    return DatasetRecord(
        id=row.id,
        name=row.name,
        account_id=row.account_id,
        visibility=row.visibility.value,
        classes=row.classes,
        height=row.height,
        width=row.width,
        channels=row.channels,
        records_declared=row.records_declared,
        subjects_declared=row.subjects_declared,
        state=row.state.value,
        joined=row.joined,
        format=row.format,
        content_sha256=row.content_sha256 if public else None,
        content_bytes=row.content_bytes if public else None,
        failure_code=row.failure_code,
        created_at=row.created_at,
        ready_at=row.ready_at,
    )


def plan(made: Plan, payer: ledger.Account, asked: PlanRequest) -> PlanRecord:
    """A plan with its price, what it buys, and the account before and after."""
    before = ledger.balance_of(payer)
    epsilon_of = ledger.filter_of(payer).epsilon_of
    left_after_nano = max(before.left_nano - made.price_nano, 0)
    affordable = not payer.frozen and made.budget_nano <= before.left_nano
    return PlanRecord(
        recipe=made.recipe,
        dataset_id=asked.dataset_id,
        epsilon=asked.epsilon,
        delta=payer.delta,
        unit=payer.unit.value,
        adjacency=payer.adjacency.value,
        filter=payer.filter.value,
        price_nano=made.price_nano,
        price_epsilon=epsilon_of(made.price_nano),
        stages=[
            StageFacts(
                name=stage.name,
                releases=stage.event.count,
                noise_multiplier=stage.event.noise_multiplier,
                price_nano=stage.price_nano,
            )
            for stage in made.stages
        ],
        buys=made.facts,
        notes=list(made.notes),
        config=made.config,
        budget=BudgetFacts(
            account_id=payer.id,
            limit_epsilon=before.limit_epsilon,
            left_epsilon=before.left_epsilon,
            left_nano=before.left_nano,
            left_after_epsilon=epsilon_of(left_after_nano) if affordable else before.left_epsilon,
            left_after_nano=left_after_nano if affordable else before.left_nano,
            affordable=affordable,
        ),
    )


def progress(session: Session, row: Job) -> ProgressFacts:
    """Where a job is and what it has charged: the allow-list of what a running job may say."""
    said: dict[str, Any] = row.progress or {}
    charged_nano = planned_nano = 0
    charged_epsilon = planned_epsilon = 0.0
    if row.hold_id is not None and row.account_id is not None:
        hold = ledger.get_hold(session, row.hold_id)
        payer = ledger.get_account(session, row.account_id)
        charged_nano, planned_nano = hold.charged_nano, hold.amount_nano
        epsilon_of = ledger.filter_of(payer).epsilon_of
        charged_epsilon, planned_epsilon = epsilon_of(charged_nano), epsilon_of(planned_nano)
    return ProgressFacts(
        stage=said.get("stage"),
        step=said.get("step"),
        steps=said.get("steps"),
        eta_seconds=said.get("eta_seconds"),
        charged_nano=charged_nano,
        planned_nano=planned_nano,
        charged_epsilon=charged_epsilon,
        planned_epsilon=planned_epsilon,
    )


def failure(row: Job) -> FailureFacts | None:
    """Why a job failed, from the closed set."""
    if row.failure_code is None:
        return None
    return FailureFacts(code=row.failure_code.value, message=FAILURES[row.failure_code])


def jobs(session: Session, rows: Sequence[Job]) -> list[JobRecord]:
    """Jobs with their progress and what they made."""
    drawn = dict(_sample_ids(session, [row.id for row in rows if row.kind is JobKind.SAMPLE]))
    return [_job(session, row, drawn.get(row.id)) for row in rows]


def sweep(session: Session, row: Sweep, trials: Sequence[Job]) -> SweepRecord:
    """A sweep with its trials and what they cost together."""
    payer = ledger.get_account(session, row.account_id)
    epsilon_of = ledger.filter_of(payer).epsilon_of
    found = select(Release.id, Release.summary).where(Release.job_id.in_([job.id for job in trials]))
    accuracies = {release_id: summary.get("accuracy") for release_id, summary in session.execute(found)}
    shown = [_trial(session, job, accuracies.get(job.release_id or ""), epsilon_of) for job in trials]
    held_nano, spent_nano = sum(trial.held_nano for trial in shown), sum(trial.spent_nano for trial in shown)
    measured = {trial.job_id: trial.accuracy["cnn"] for trial in shown if trial.accuracy and "cnn" in trial.accuracy}
    return SweepRecord(
        id=row.id,
        name=row.name,
        account_id=row.account_id,
        dataset_id=row.dataset_id,
        recipe=row.recipe,
        state="ended" if all(trial.state in FINAL_STATES for trial in shown) else "open",
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


def event(session: Session, row: Job) -> EventRecord:
    """What one server-sent event says about a job."""
    drawn = dict(_sample_ids(session, [row.id])) if row.kind is JobKind.SAMPLE else {}
    return EventRecord(
        job_id=row.id,
        state=row.state.value,
        cancel_requested=row.cancel_requested,
        progress=progress(session, row),
        failure=failure(row),
        release_id=row.release_id,
        sample_id=drawn.get(row.id),
    )


def release(row: Release) -> ReleaseRecord:
    """A release; its card and files have addresses of their own."""
    summary = dict(row.summary)
    histogram = summary.pop("histogram", None) if row.kind is ReleaseKind.HISTOGRAM else None
    return ReleaseRecord(
        id=row.id,
        kind=row.kind.value,
        job_id=row.job_id,
        account_id=row.account_id,
        dataset_id=row.dataset_id,
        name=row.name,
        artifact_sha256=row.artifact_sha256,
        summary=summary,
        histogram=None if histogram is None else HistogramFacts(**histogram),
        created_at=row.created_at,
    )


def sample(row: Sample, job: Job) -> SampleRecord:
    """A sample; its state is its job's."""
    return SampleRecord(
        id=row.id,
        release_id=row.release_id,
        job_id=row.job_id,
        state=job.state.value,
        count=row.count,
        classes=row.classes,
        seed=row.seed,
        format=row.format.value,
        sha256=row.sha256,
        bytes=row.bytes,
        failure=failure(job),
        created_at=row.created_at,
    )


def key(row: ApiKey) -> KeyRecord:
    """A key without its hash."""
    return KeyRecord(
        id=row.id,
        name=row.name,
        scopes=row.scopes,
        created_by=row.created_by,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
    )


def _job(session: Session, row: Job, sample_id: str | None) -> JobRecord:
    facts = progress(session, row)
    return JobRecord(
        id=row.id,
        kind=row.kind.value,
        state=row.state.value,
        account_id=row.account_id,
        dataset_id=row.dataset_id,
        evaluation_dataset_id=row.evaluation_dataset_id,
        recipe=row.recipe if row.kind is JobKind.TRAIN else None,
        epsilon=row.epsilon,
        options=row.options,
        price_nano=facts.planned_nano,
        price_epsilon=facts.planned_epsilon,
        cancel_requested=row.cancel_requested,
        progress=facts,
        failure=failure(row),
        release_id=row.release_id,
        sample_id=sample_id,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def _trial(
    session: Session, row: Job, accuracy: dict[str, float] | None, epsilon_of: Callable[[int], float]
) -> TrialFacts:
    if row.hold_id is None or row.epsilon is None:
        raise LedgerCorruption("A trial of a sweep lacks its hold or its epsilon.", job_id=row.id)
    hold = ledger.get_hold(session, row.hold_id)
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
        accuracy=accuracy,
        failure=failure(row),
        release_id=row.release_id,
    )


def _sample_ids(session: Session, job_ids: Sequence[str]) -> list[tuple[str, str]]:
    if not job_ids:
        return []
    rows = session.execute(select(Sample.job_id, Sample.id).where(Sample.job_id.in_(job_ids)))
    return [(job_id, sample_id) for job_id, sample_id in rows]
