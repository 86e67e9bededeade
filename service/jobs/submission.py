"""Submit jobs idempotently: insert the idempotency key, the job and its notification in one transaction."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from obscura.wire.words import JobState
from privacy.plans.plan import Plan
from service import queue, quotas
from service.db.access_tables import Idempotency
from service.db.base import new_id
from service.db.job_tables import Job, Made
from service.errors import IdempotencyMismatch, InvalidInput
from service.identity.access import project_of
from service.jobs.kind import SAMPLES_MAX, Ask, Kind
from service.jobs.lifecycle import get_job
from service.jobs.planning import TrainingSet
from service.ledger.chain import body_hash

SECRET_BYTES = 32
KEY_CHARACTERS_MAX = 200


def submit(
    session: Session,
    kind: Kind,
    *,
    principal: str,
    idempotency_key: str | None,
    now: datetime,
    samples_max: int = SAMPLES_MAX,
    **order: Any,
) -> Job:
    """Accept a job of the given kind. Write nothing if it cannot be accepted.

    `order` has the keyword arguments for the kind's `accept`. The same idempotency key and order return the same job.
    Without a key, each call creates a new job.
    """
    ask = Ask(new_id("job"), now, samples_max)
    body = {"kind": kind.name, **order}
    first_id = remember(session, principal, idempotency_key, body, ask.job_id, now)
    if first_id is not None:
        return get_job(session, first_id)
    job = kind.accept(session, ask, **order)
    quotas.require_jobs(session, job.project_id)
    return job


def require_drawable(what: str, count: int | None, count_max: int, seed: int | None) -> None:
    if count is not None and (isinstance(count, bool) or not 1 <= count <= count_max):
        numbers = {what: count, f"{what}_max": count_max}
        raise InvalidInput(f"{what} must be 1 to {count_max}; {count} was given.", **numbers)
    if seed is not None and (isinstance(seed, bool) or not 0 <= seed < 2**63):
        raise InvalidInput("seed must be a whole number from 0 to 2^63 - 1.")


def remember(
    session: Session, principal: str, key: str | None, body: Mapping[str, Any], resource_id: str, now: datetime
) -> str | None:
    """Claim an idempotency key. Return the resource id of the first request with this key; None for a new key."""
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
        except IntegrityError:  # a concurrent request with this key has committed
            first = session.get(Idempotency, (principal, key))
            if first is None:
                raise
        else:
            return None
    if first.body_hash != digest:
        raise IdempotencyMismatch(
            "This idempotency key was used before with another request. Use a new key for a new request."
        )
    return first.resource_id


def new_job(ask: Ask, kind: str, **columns: Any) -> Job:
    """Return the row of a queued job, for `queue_job`."""
    return Job(
        id=ask.job_id,
        kind=kind,
        state=JobState.QUEUED,
        attempt=0,
        cancel_requested=False,
        progress={},
        progress_version=0,
        secret=secrets.token_hex(SECRET_BYTES),
        created_at=ask.now,
        **{"plan": {}, **columns},
    )


def planned_job(
    ask: Ask,
    kind: str,
    trained: TrainingSet,
    plan: Plan,
    *,
    epsilon: float,
    options: Mapping[str, Any],
    **named: str | None,
) -> Job:
    """Return the row of a job that carries out or rehearses a plan, for `queue_job`; `named` has further columns."""
    columns = {"recipe": plan.recipe, "options": dict(options), "epsilon": float(epsilon), "plan": plan.to_json()}
    return new_job(ask, kind, account_id=trained.account.id, dataset_id=trained.dataset.id, **columns, **named)


def queue_job(session: Session, job: Job, *made: Made) -> Job:
    """Add a job and its result rows. Workers are notified after the caller's transaction has committed."""
    job.project_id = project_of(session, job.account_id)
    session.add(job)
    session.flush()
    session.add_all(made)
    session.flush()
    queue.ring(session, job.id, now=job.created_at)
    return job
