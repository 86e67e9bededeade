"""Accepting a job: idempotency row, hold, job and doorbell, in the caller's one transaction."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from privacy.plans.plan import Plan
from privacy.plans.registry import RECIPES
from service import ledger, queue
from service.db.access_tables import Idempotency
from service.db.base import new_id
from service.db.job_tables import Job, Release, Sample
from service.db.words import JobKind, JobState, ReleaseKind, SampleFormat
from service.errors import AccountFrozen, Conflict, IdempotencyMismatch, InsufficientBudget, InvalidInput
from service.failpoints import failpoint
from service.jobs.lookup import get_job, get_release
from service.jobs.planning import (
    budget_of,
    evaluation_set,
    get_dataset,
    plan_job,
    require_anchors_ready,
    require_ready,
    training_set,
)
from service.ledger import Account
from service.ledger.chain import body_hash

SECRET_BYTES = 32
KEY_CHARACTERS_MAX = 200
SAMPLE_COUNT_MAX = 200_000


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
    dataset, account = training_set(session, dataset_id)
    require_ready(session, dataset, "training dataset")
    if evaluation_dataset_id is not None:
        require_measurable(recipe)
        evaluation_set(session, evaluation_dataset_id, dataset)
    _require_affordable(session, account, epsilon)
    plan = plan_job(session, dataset_id=dataset_id, recipe=recipe, epsilon=epsilon, options=options)
    require_anchors_ready(session, plan)
    return accept(
        session,
        account,
        plan,
        job_id=job_id,
        dataset_id=dataset_id,
        evaluation_dataset_id=evaluation_dataset_id,
        epsilon=epsilon,
        options=options,
        now=now,
    )


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
        format: "imagefolder" or "npz".
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
    if isinstance(count, bool) or not 1 <= count <= count_max:
        raise InvalidInput(f"count must be 1 to {count_max}; {count} was given.", count=count, count_max=count_max)
    if isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise InvalidInput("seed must be a whole number from 0 to 2^63 - 1.")
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
    session.add(job)
    session.flush()
    session.add(
        Sample(
            id=new_id("smp"),
            job_id=job.id,
            release_id=release.id,
            count=count,
            classes=body["classes"],
            seed=seed,
            format=SampleFormat(format),
            created_at=now,
        )
    )
    session.flush()
    queue.ring(session, job.id, now=now)
    return job


def _require_affordable(session: Session, account: Account, epsilon: float) -> None:
    """Refuse an epsilon above the account's rest, even where the plan's rounded price would fit."""
    if account.frozen:
        raise AccountFrozen(f"Account *{account.name}* is frozen and takes no new jobs. Ask its owner.")
    budget_nano = budget_of(account, epsilon)
    if budget_nano > ledger.balance_of(account).left_nano:
        raise ledger.insufficient(account, budget_nano, float(epsilon)).suggesting(newest_release(session, account))


def require_measurable(recipe: str) -> None:
    """Let a recipe pass whose release can be measured on public images.

    Raises:
        InvalidInput: it publishes a histogram.
    """
    if recipe in RECIPES and RECIPES[recipe].publishes == "histogram":
        raise InvalidInput(
            f"The recipe {recipe} publishes counts, which are not measured on images: leave the evaluation dataset out."
        )


def accept(
    session: Session,
    account: Account,
    plan: Plan,
    *,
    job_id: str,
    dataset_id: str,
    evaluation_dataset_id: str | None,
    epsilon: float,
    options: Mapping[str, Any],
    now: datetime,
    sweep_id: str | None = None,
) -> Job:
    """Hold the price of a planned training and queue it.

    Args:
        session: in a writing transaction.
        account: whose budget.
        plan: of the training, made for `epsilon`.
        job_id: of the new job.
        dataset_id: to train on; checked.
        evaluation_dataset_id: to measure on; checked.
        epsilon: what was asked for.
        options: as they were asked for.
        now: aware; of two jobs the older one is taken first.
        sweep_id: of the sweep that this is a trial of.

    Raises:
        InsufficientBudget: the account has too little left; carries every number.
        AccountFrozen: the account takes no new jobs.
    """
    job = new_job(
        job_id,
        JobKind.TRAIN,
        recipe=plan.recipe,
        options=dict(options),
        now=now,
        account_id=account.id,
        dataset_id=dataset_id,
        evaluation_dataset_id=evaluation_dataset_id,
        epsilon=float(epsilon),
        plan=plan.to_json(),
        sweep_id=sweep_id,
    )
    job.hold_id = _reserve(session, account, job, plan)
    failpoint("hold.after")
    session.add(job)
    session.flush()
    queue.ring(session, job.id, now=now)
    return job


def _reserve(session: Session, account: Account, job: Job, plan: Plan) -> str:
    """Hold the plan's price under the account's lock, with what is needed to recompute it, and bound to the order."""
    details = {
        "recipe": plan.recipe,
        "dataset_id": job.dataset_id,
        "epsilon": job.epsilon,
        "plan_sha256": body_hash(job.plan),
        "stages": [stage.to_json() for stage in plan.stages],
        "order": ledger.order_of(session, job, job.secret),
    }
    try:
        reserved = ledger.hold(
            session,
            account_id=account.id,
            job_id=job.id,
            amount_nano=plan.price_nano,
            details=details,
            now=job.created_at,
        )
    except InsufficientBudget as error:  # another job was faster
        raise error.suggesting(newest_release(session, account)) from None
    return reserved.id


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
