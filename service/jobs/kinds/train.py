"""Trainings, the only kind of job that costs budget. Acceptance holds the price; publication captures the charges."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from obscura.wire.job_schemas import JobRequest
from obscura.wire.schemas import to_the_minute
from obscura.wire.words import TRAIN, EarlyEnd, EntryKind, JobState, ReleaseKind
from privacy.plans.plan import Plan
from service import ledger
from service.audit import proofs, signing
from service.db.base import is_id, new_id
from service.db.job_tables import FailureCode, Job, Release
from service.errors import InsufficientBudget, InvalidInput, LedgerCorruption, StaleAttempt
from service.failpoints import failpoint
from service.identity.access import visible
from service.jobs import endings, planning, submission
from service.jobs.kind import Ask, Kind, Order
from service.jobs.kinds.evaluate import queue_evaluation
from service.ledger.chain import body_hash, canonical_json, columns_of, row_digest

PRICINGS_MAX = 3  # per request: raises are rare, so few happen while a price is computed
Held = TypeVar("Held")


def accept(
    session: Session,
    ask: Ask,
    *,
    dataset_id: str,
    recipe: str,
    epsilon: float,
    options: Mapping[str, Any],
    evaluation_dataset_id: str | None,
) -> Job:
    """Accept a training, and hold its price in the dataset's account."""

    def price_and_hold(trained: planning.TrainingSet) -> Job:
        planning.require_content(session, trained, recipe, evaluation_dataset_id)
        account = trained.account
        ledger.require_unfrozen(account)
        budget_nano = trained.budget_nano(epsilon)
        if budget_nano > account.left_nano:  # rejected even if the plan's rounded price would fit
            raise ledger.insufficient(account, budget_nano, float(epsilon)).suggesting(newest_release(session, account))
        plan = planning.plan_on(session, trained, recipe, epsilon, options)
        planning.require_anchors_ready(session, plan)
        named = {"evaluation_dataset_id": evaluation_dataset_id}
        return hold_price(session, ask, trained, plan, epsilon=epsilon, options=options, **named)

    return hold_at_current_rate(session, dataset_id, price_and_hold)


def hold_at_current_rate(
    session: Session, dataset_id: str, price_and_hold: Callable[[planning.TrainingSet], Held]
) -> Held:
    """Price trainings on a locked dataset, then hold the price. Retry if the account's limit was raised in between."""
    for left in reversed(range(PRICINGS_MAX)):
        try:
            with session.begin_nested():  # a rollback releases the account's lock before prices are computed again
                return price_and_hold(planning.training_set(session, dataset_id, lock=True))
        except ledger.RateChanged:
            if not left:
                raise
    raise AssertionError("it returns or raises")


def hold_price(
    session: Session,
    ask: Ask,
    trained: planning.TrainingSet,
    plan: Plan,
    *,
    epsilon: float,
    options: Mapping[str, Any],
    **named: str | None,
) -> Job:
    """Queue a planned training and hold its price; raise RateChanged if the limit was raised since `trained` was read.

    The HOLD entry records the facts from which the price follows, and digests of the job and the rows that it uses.
    `named` has the ids of the sweep and the evaluation dataset, by column of the job.
    """
    job = submission.planned_job(ask, TRAIN, trained, plan, epsilon=epsilon, options=options, **named)
    details: dict[str, Any] = {
        "recipe": plan.recipe,
        "dataset_id": job.dataset_id,
        "epsilon": job.epsilon,
        "plan_sha256": body_hash(job.plan),
        "order": ledger.order_of(session, job, job.secret),
        "stages": [stage.to_json() for stage in plan.stages],
    }
    try:
        held = ledger.hold(
            session,
            account_id=trained.account.id,
            job_id=job.id,
            amount_nano=plan.cost_nano,
            priced_by=trained.privacy_filter,
            details=details,
            now=job.created_at,
        )
    except InsufficientBudget as error:  # a concurrent job took the budget first
        raise error.suggesting(newest_release(session, trained.account)) from None
    job.hold_id = held.id
    failpoint("hold.after")
    return submission.queue_job(session, job)


def newest_release(session: Session, account: ledger.Account) -> str | None:
    """Return the id of an account's newest release, which can generate images at no cost."""
    of_account = visible(session, Release, select(Release.id)).where(Release.account_id == account.id)
    return session.scalar(of_account.order_by(Release.created_at.desc(), Release.id).limit(1))


def publish(
    session: Session,
    *,
    job_id: str,
    attempt: int,
    release_id: str,
    name: str,
    artifact_sha256: str,
    artifact_dir: str,
    card: Mapping[str, Any],
    summary: Mapping[str, Any],
    key: signing.SigningKey,
    now: datetime,
    kind: str = ReleaseKind.GENERATOR,
    incomplete: Mapping[str, Any] | None = None,
) -> Release:
    """Publish a release: capture the hold, write receipt and release, end the job, and queue its evaluation, if any.

    All of this is one transaction (I7).

    Args:
        release_id: `rel_...`, chosen when the artifact was written.
        artifact_sha256: hash of the artifact, which is already published in the storage.
        artifact_dir: relative to the data directory.
        incomplete: if the training ended early, JSON with the completed part of the plan and the reason.
    """
    if not is_id(release_id, "rel"):
        raise InvalidInput("A release id is rel_ and 20 base32 characters.")
    if not re.fullmatch("[0-9a-f]{64}", artifact_sha256):
        raise InvalidInput("A SHA-256 is 64 lowercase hex digits.")
    job = endings.lock_attempt(session, job_id, attempt, TRAIN, replay=JobState.SUCCEEDED)
    if job.state is JobState.SUCCEEDED:
        published = session.scalars(visible(session, Release).where(Release.job_id == job_id)).one()
        if (published.id, published.artifact_sha256) != (release_id, artifact_sha256):
            raise ledger.stale_attempt(job, attempt)
        return published
    if job.ended_early is EarlyEnd.DISCARDED:
        raise StaleAttempt("The results of this training were discarded.", attempt=attempt, current_attempt=job.attempt)
    hold_id, account_id, dataset_id = job.hold_id, job.account_id, job.dataset_id
    if hold_id is None or account_id is None or dataset_id is None:
        raise LedgerCorruption("A training job lacks its hold, account or dataset.", job_id=job.id)
    try:
        canonical_json([dict(card), dict(summary), dict(incomplete or {})])
    except (TypeError, ValueError):
        raise InvalidInput("A release's card and summary must be JSON with finite numbers.") from None
    release = Release(
        id=release_id,
        job_id=job_id,
        account_id=account_id,
        dataset_id=dataset_id,
        name=name,
        kind=ReleaseKind(kind),
        artifact_sha256=artifact_sha256,
        artifact_dir=artifact_dir,
        card=dict(card),
        summary=dict(summary),
        incomplete=None if incomplete is None else dict(incomplete),
        created_at=to_the_minute(now),
    )
    ledger.capture(
        session,
        hold_id=hold_id,
        attempt=attempt,
        artifact_sha256=artifact_sha256,
        reason="published",
        now=now,
        release={"id": release_id, "sha256": row_digest("releases", columns_of(release))},
    )
    capture = ledger.entry_of_hold(session, hold_id, EntryKind.CAPTURE)
    release.receipt = proofs.make_receipt(session, capture, release_id=release_id, key=key)
    session.add(release)
    if incomplete is None:  # the plan was complete before the request to end took effect
        job.ended_early = job.salvage_attempt = None
    endings.end_job(session, job, JobState.SUCCEEDED, now=now, release_id=release_id)
    if job.evaluation_dataset_id is not None:
        queue_evaluation(session, Ask(new_id("job"), now), release, job.evaluation_dataset_id)
    return release


KIND = Kind(
    name=TRAIN,
    many="trainings",
    title=lambda job, _made: f"{job.dataset_name} · {job.recipe} · ε {job.epsilon:g}",
    accept=accept,
    failed=FailureCode.TRAINING_FAILED,
    order=Order(
        path="/v1/jobs",
        tag="jobs",
        summary="Ask for a training",
        description="Reserve the plan's cost and queue the training. 409 with all numbers when the account cannot pay."
        "\n\nThe unspent rest of the reservation returns when the job ends; charges stay spent.",
        request=JobRequest,
    ),
    planned=True,
)
