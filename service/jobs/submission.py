"""Accepting a job: idempotency row, hold, job and doorbell, in the caller's one transaction."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from obscura.wire.words import JobKind, JobState, ReleaseKind, SampleFormat
from privacy.plans.plan import Plan
from service import ledger, queue
from service.db.access_tables import Idempotency
from service.db.base import new_id
from service.db.job_tables import Evaluation, Job, Preview, Release, Sample
from service.errors import Conflict, IdempotencyMismatch, InsufficientBudget, InvalidInput
from service.failpoints import failpoint
from service.jobs.lookup import get_dataset, get_job, get_release
from service.jobs.planning import TrainingSet, plan_on, require_anchors_ready, require_content, training_set
from service.ledger import Account
from service.ledger.chain import body_hash

SECRET_BYTES = 32
KEY_CHARACTERS_MAX = 200
SAMPLE_COUNT_MAX = 200_000
PRICINGS_MAX = 3  # of one request: a raise takes two people, and seldom comes while a price is found
Accepted = TypeVar("Accepted")


def submit_training(
    session: Session,
    *,
    principal: str,
    idempotency_key: str | None,
    dataset_id: str,
    recipe: str,
    epsilon: float,
    options: Mapping[str, Any],
    evaluation_dataset_id: str | None,
    now: datetime,
) -> Job:
    """Accept a training: its price is held from now on. Nothing is written unless everything is right.

    Args:
        session: in a writing transaction.
        principal: id of the caller; idempotency keys are his own.
        idempotency_key: the same key and body give the same job; None makes a new job each time.
        dataset_id: a private dataset that is ready.
        recipe: name of a training loop.
        epsilon: what the job may spend at the account's delta, > 0 and finite.
        options: of the recipe.
        evaluation_dataset_id: a public dataset like it to measure the release on, or None.
        now: aware.

    Raises:
        InvalidInput: an argument is out of range (IdempotencyMismatch: the key was used with another body).
        NotFound: no such dataset.
        Conflict: a dataset's content has not arrived.
        InsufficientBudget: the account has too little left; carries every number.
        AccountFrozen: the account takes no new jobs.
        RateChanged: the account's limit was raised again and again while this was priced.
    """
    body = {
        "kind": JobKind.TRAIN.value,
        "dataset_id": dataset_id,
        "recipe": recipe,
        "epsilon": epsilon,
        "options": dict(options),
        "evaluation_dataset_id": evaluation_dataset_id,
    }
    job_id = new_id("job")
    first_id = remember(session, principal, idempotency_key, body, job_id, now)
    if first_id is not None:
        return get_job(session, first_id)

    def held_on(trained: TrainingSet) -> Job:
        require_content(session, trained, recipe, evaluation_dataset_id)
        _require_affordable(session, trained, epsilon)
        plan = plan_on(session, trained, recipe, epsilon, options)
        require_anchors_ready(session, plan)
        job = new_training(trained, plan, job_id, epsilon=epsilon, options=options, now=now)
        job.evaluation_dataset_id = evaluation_dataset_id
        accept(session, trained, plan, job)
        return job

    return at_the_present_rate(session, dataset_id, held_on)


def submit_sample(
    session: Session,
    *,
    principal: str,
    idempotency_key: str | None,
    release_id: str,
    count: int,
    classes: Sequence[str] | None,
    seed: int,
    format: str,
    now: datetime,
    count_max: int = SAMPLE_COUNT_MAX,
) -> Job:
    """Accept the drawing of synthetic images from a release. It costs nothing, however often it is asked for.

    Args:
        session: in a writing transaction.
        principal: id of the caller.
        idempotency_key: as for a training.
        release_id: to draw from.
        count: of images, 1 to count_max.
        classes: names to draw, in equal shares; None draws all.
        seed: public; the same request gives the same bytes. 0 <= seed < 2^63.
        format: one of `obscura.wire.formats`.
        now: aware.
        count_max: the service's limit.

    Raises:
        InvalidInput: an argument is out of range.
        NotFound: no such release.
        Conflict: the release is no generator.
    """
    body = {
        "kind": JobKind.SAMPLE.value,
        "release_id": release_id,
        "count": count,
        "classes": None if classes is None else list(classes),
        "seed": seed,
        "format": format,
    }
    job_id = new_id("job")
    first_id = remember(session, principal, idempotency_key, body, job_id, now)
    if first_id is not None:
        return get_job(session, first_id)
    release = get_release(session, release_id)
    require_drawable("count", count, count_max, seed)
    if format not in set(SampleFormat):
        raise InvalidInput(f"format must be one of {', '.join(SampleFormat)}.")
    if release.kind is not ReleaseKind.GENERATOR:
        raise Conflict(
            f"Release *{release.name}* is a {release.kind.value}, not a generator: no images can be drawn from it. "
            f"GET /v1/releases/{release.id} shows it.",
            release_id=release.id,
            kind=release.kind.value,
        )
    known = get_dataset(session, release.dataset_id).classes
    if classes is not None and (not classes or len(set(classes)) != len(classes) or not set(classes) <= set(known)):
        raise InvalidInput(f"classes must be different names out of: {', '.join(known)}.")
    job = new_job(
        job_id,
        JobKind.SAMPLE,
        recipe=get_job(session, release.job_id).recipe,
        options={name: value for name, value in body.items() if name not in ("kind", "release_id")},
        now=now,
        account_id=release.account_id,
        dataset_id=release.dataset_id,
        release_id=release.id,
    )
    sample = Sample(
        id=new_id("smp"),
        job_id=job.id,
        release_id=release.id,
        count=count,
        classes=body["classes"],
        seed=seed,
        format=SampleFormat(format),
        created_at=now,
    )
    queue_job(session, job, sample)
    return job


def require_drawable(what: str, count: int | None, count_max: int, seed: int | None) -> None:
    """Let numbers of images and seeds pass that are in their range, or left out.

    Raises:
        InvalidInput: one is not; `what` names the count.
    """
    if count is not None and (isinstance(count, bool) or not 1 <= count <= count_max):
        numbers = {what: count, f"{what}_max": count_max}
        raise InvalidInput(f"{what} must be 1 to {count_max}; {count} was given.", **numbers)
    if seed is not None and (isinstance(seed, bool) or not 0 <= seed < 2**63):
        raise InvalidInput("seed must be a whole number from 0 to 2^63 - 1.")


def _require_affordable(session: Session, trained: TrainingSet, epsilon: float) -> None:
    """Refuse an epsilon above the account's rest, even where the plan's rounded price would fit."""
    account = trained.account
    ledger.require_unfrozen(account)
    budget_nano = trained.budget_nano(epsilon)
    if budget_nano > account.left_nano:
        raise ledger.insufficient(account, budget_nano, float(epsilon)).suggesting(newest_release(session, account))


def new_training(
    trained: TrainingSet, plan: Plan, job_id: str, *, epsilon: float, options: Mapping[str, Any], now: datetime
) -> Job:
    """Return the row of a planned training, which still has to be accepted. Of two jobs the older is taken first."""
    return new_job(
        job_id,
        JobKind.TRAIN,
        recipe=plan.recipe,
        options=dict(options),
        now=now,
        account_id=trained.account.id,
        dataset_id=trained.dataset.id,
        epsilon=float(epsilon),
        plan=plan.to_json(),
    )


def at_the_present_rate(session: Session, dataset_id: str, held_on: Callable[[TrainingSet], Accepted]) -> Accepted:
    """Price trainings on a dataset and hold the price, anew where a raise of the limit came between the two.

    Args:
        session: in a writing transaction.
        dataset_id: a private dataset.
        held_on: plans and holds on a dataset that stays as it is and an account that may be raised meanwhile.

    Raises:
        RateChanged: as often as this tries, a raise came in between.
    """
    for left in reversed(range(PRICINGS_MAX)):
        try:
            with session.begin_nested():  # rolled back, it gives back the account's lock: prices are found without it
                return held_on(training_set(session, dataset_id, lock=True))
        except ledger.RateChanged:
            if not left:
                raise
    raise AssertionError("it returns or raises")


def accept(session: Session, trained: TrainingSet, plan: Plan, job: Job) -> None:
    """Hold the price of a planned training, with what is needed to recompute it and bound to the order, and queue it.

    Raises:
        RateChanged: the account's limit was raised since `trained` was read.
        InsufficientBudget: the account has too little left; carries every number.
        AccountFrozen: the account takes no new jobs.
    """
    details = {
        "recipe": plan.recipe,
        "dataset_id": job.dataset_id,
        "epsilon": job.epsilon,
        "plan_sha256": body_hash(job.plan),
        "stages": [stage.to_json() for stage in plan.stages],
        "order": ledger.order_of(session, job, job.secret),
    }
    try:
        held = ledger.hold(
            session,
            account_id=trained.account.id,
            job_id=job.id,
            amount_nano=plan.price_nano,
            priced_by=trained.privacy_filter,
            details=details,
            now=job.created_at,
        )
    except InsufficientBudget as error:  # another job was faster
        raise error.suggesting(newest_release(session, trained.account)) from None
    job.hold_id = held.id
    failpoint("hold.after")
    queue_job(session, job)


def newest_release(session: Session, account: Account) -> str | None:
    """Return the id of the newest release of an account, which can be sampled at no cost."""
    newest = select(Release.id).where(Release.account_id == account.id).order_by(Release.created_at.desc(), Release.id)
    return session.scalar(newest.limit(1))


def remember(
    session: Session, principal: str, key: str | None, body: Mapping[str, Any], resource_id: str, now: datetime
) -> str | None:
    """Claim an idempotency key. Returns the resource of the first request with it, or None for the first."""
    if key is None:
        return None
    if not 1 <= len(key) <= KEY_CHARACTERS_MAX:
        raise InvalidInput(f"An idempotency key has 1 to {KEY_CHARACTERS_MAX} characters.")
    try:
        digest = body_hash(body)
    except (TypeError, ValueError):
        raise InvalidInput("The request must be JSON with finite numbers.") from None
    first = session.get(Idempotency, (principal, key))
    if first is None:
        try:
            with session.begin_nested():
                session.add(
                    Idempotency(principal=principal, key=key, body_hash=digest, resource_id=resource_id, created_at=now)
                )
        except IntegrityError:  # the same key was used at the same moment, and that request has committed
            first = session.get(Idempotency, (principal, key))
            if first is None:
                raise
        else:
            return None
    if first.body_hash != digest:
        raise IdempotencyMismatch(
            "This idempotency key was used before with another request. Use a fresh key for a new request."
        )
    return first.resource_id


def new_job(job_id: str, kind: JobKind, *, recipe: str, options: dict[str, Any], now: datetime, **facts: Any) -> Job:
    """Return the row of a queued job; it still has to be added and rung for."""
    return Job(
        id=job_id,
        kind=kind,
        recipe=recipe,
        options=options,
        plan=facts.pop("plan", {}),
        state=JobState.QUEUED,
        attempt=0,
        cancel_requested=False,
        progress={},
        progress_version=0,
        secret=secrets.token_hex(SECRET_BYTES),
        created_at=now,
        **facts,
    )


def queue_job(session: Session, job: Job, *made: Sample | Evaluation | Preview) -> None:
    """Add a job, with the row of what it makes, and ring for it once the caller's transaction has committed."""
    session.add(job)
    session.flush()
    session.add_all(made)
    session.flush()
    queue.ring(session, job.id, now=job.created_at)
