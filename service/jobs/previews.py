"""Previews: what a plan would make, tried on a public stand-in before anything is held. They cost nothing.

The recipe, the noise and what it is paid with are those of the plan; the images are public, generated if need be, so
nothing private is read and the ledger is not asked. Functions take a session and never commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from obscura.wire.words import JobKind, JobState, Visibility
from privacy.plans.registry import RECIPES
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Preview
from service.errors import InvalidInput
from service.jobs.endings import end_job, lock_attempt
from service.jobs.lookup import get_dataset, get_job, preview_of, stale_attempt
from service.jobs.planning import plan_on, require_anchors_ready, require_ready, training_set
from service.jobs.submission import new_job, queue_job, remember

STAND_IN_NUMBERS_MAX = 2**32  # pixels times channels times records: bytes of memory


def submit_preview(
    session: Session,
    *,
    principal: str,
    idempotency_key: str | None,
    dataset_id: str,
    recipe: str,
    epsilon: float,
    options: Mapping[str, Any],
    stand_in_dataset_id: str | None,
    now: datetime,
) -> Job:
    """Accept the preview of a training. It needs no budget, and no content of the dataset: only what was declared.

    Args:
        session: in a writing transaction.
        principal: id of the caller; idempotency keys are his own.
        idempotency_key: the same key and body give the same job; None makes a new one each time.
        dataset_id: a private dataset, whose declaration is previewed.
        recipe: name of a training loop.
        epsilon: that the training would be given.
        options: of the recipe.
        stand_in_dataset_id: a public dataset with at least as many classes, or None for the worker's choice.
        now: aware.

    Raises:
        InvalidInput: the training cannot be planned, publishes nothing to look at or is too large to be rehearsed, or
            the stand-in is of no use.
        NotFound: no such dataset.
        Conflict: the stand-in's content has not arrived.
    """
    body = {
        "kind": JobKind.PREVIEW.value,
        "dataset_id": dataset_id,
        "recipe": recipe,
        "epsilon": epsilon,
        "options": dict(options),
        "stand_in_dataset_id": stand_in_dataset_id,
    }
    job_id = new_id("job")
    first_id = remember(session, principal, idempotency_key, body, job_id, now)
    if first_id is not None:
        return get_job(session, first_id)
    trained = training_set(session, dataset_id)
    plan = plan_on(session, trained, recipe, epsilon, options)
    require_anchors_ready(session, plan)
    if RECIPES[recipe].publishes == "histogram":
        raise InvalidInput(f"The recipe {recipe} publishes counts: its plan says how far they may be off.")
    _require_room(trained.dataset)
    if stand_in_dataset_id is not None:
        _require_stand_in(session, stand_in_dataset_id, trained.dataset)
    job = new_job(
        job_id,
        JobKind.PREVIEW,
        recipe=recipe,
        options=dict(options),
        now=now,
        account_id=trained.account.id,
        dataset_id=dataset_id,
        evaluation_dataset_id=stand_in_dataset_id,
        epsilon=float(epsilon),
        plan=plan.to_json(),
    )
    queue_job(session, job, Preview(id=new_id("prv"), job_id=job.id, created_at=now))
    return job


def _require_room(declared: Dataset) -> None:
    numbers = declared.records_declared * declared.height * declared.width * declared.channels
    if numbers > STAND_IN_NUMBERS_MAX:
        raise InvalidInput(
            f"A stand-in for {declared.records_declared} images of this size needs {numbers / 2**30:.1f} GiB of "
            f"memory; a preview may take {STAND_IN_NUMBERS_MAX / 2**30:.0f}. With so many records noise is small.",
            numbers=numbers,
            numbers_max=STAND_IN_NUMBERS_MAX,
        )


def _require_stand_in(session: Session, dataset_id: str, declared: Dataset) -> None:
    dataset = get_dataset(session, dataset_id)
    if dataset.visibility is not Visibility.PUBLIC:
        raise InvalidInput("A stand-in must be a public dataset: a preview costs nothing, so it may read nothing else.")
    if len(dataset.classes) < len(declared.classes):
        raise InvalidInput(
            f"The stand-in has {len(dataset.classes)} classes and the dataset {len(declared.classes)}: name one that "
            "has as many, or none.",
            classes=len(dataset.classes),
            classes_min=len(declared.classes),
        )
    require_ready(session, dataset, "stand-in")


def finish_preview(
    session: Session, *, job_id: str, attempt: int, results: Mapping[str, Any], grid: bytes | None, now: datetime
) -> Preview:
    """End a preview with what it found. Replaying it changes nothing.

    Args:
        session: in a writing transaction.
        job_id: a running preview.
        attempt: the current one.
        results: JSON; see `workers.train.previewing.Forecast`.
        grid: a PNG picture of what a generator drew; None of a classifier.
        now: aware.

    Raises:
        StaleAttempt: the attempt has been superseded or the job has ended otherwise.
    """
    job = lock_attempt(session, job_id, attempt, JobKind.PREVIEW, replay=JobState.SUCCEEDED)
    preview = preview_of(session, job_id)
    if job.state is JobState.SUCCEEDED:
        if preview.results != dict(results):
            raise stale_attempt(job, attempt)
        return preview
    preview.results, preview.grid, preview.finished_at = dict(results), grid, now
    end_job(session, job, JobState.SUCCEEDED, now=now)
    return preview
