"""Evaluations: releases measured on public datasets, as often as anybody likes. They cost nothing.

Functions take a session and never commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, undefer

from obscura.wire.words import JobKind, JobState, ReleaseKind
from privacy.plans.registry import plan_from_json
from service import ledger
from service.db.base import new_id
from service.db.job_tables import Evaluation, Job, Release
from service.errors import Conflict, InvalidInput
from service.jobs.endings import end_job, lock_attempt
from service.jobs.lookup import evaluation_of, get_dataset, get_job, get_release, secret_of, stale_attempt
from service.jobs.planning import evaluation_set
from service.jobs.submission import SAMPLE_COUNT_MAX, new_job, queue_job, remember, require_drawable
from service.ledger.commitments import columns_of, evaluation_digest, keyed_digest

LISTED_MAX = 50
# Of a release's summary, what comes from evaluations.
_FIGURES = ("accuracy", "accuracy_warm_start_only", "accuracy_real", "evaluation")


def submit_evaluation(
    session: Session,
    *,
    principal: str,
    idempotency_key: str | None,
    release_id: str,
    dataset_id: str,
    samples: int | None,
    seed: int | None,
    now: datetime,
    samples_max: int = SAMPLE_COUNT_MAX,
) -> Job:
    """Accept the measuring of a release on public images. It costs nothing, however often it is asked for.

    Args:
        session: in a writing transaction.
        principal: id of the caller; idempotency keys are his own.
        idempotency_key: the same key and body give the same job; None makes a new one each time.
        release_id: a generator or a classifier.
        dataset_id: a public dataset that is ready, with the classes and the shape of the training's.
        samples: synthetic images that classifiers are trained on, for a generator; None takes the training's option.
        seed: public, of the samples and the classifiers; None takes the training's option. 0 <= seed < 2^63.
        now: aware.
        samples_max: the service's limit.

    Raises:
        InvalidInput: an argument is out of range, or the dataset is private or of another kind.
        NotFound: no such release or dataset.
        Conflict: the release is a histogram, or the dataset's content is not there.
    """
    body = {"kind": "evaluate", "release_id": release_id, "dataset_id": dataset_id, "samples": samples, "seed": seed}
    job_id = new_id("job")
    first_id = remember(session, principal, idempotency_key, body, job_id, now)
    if first_id is not None:
        return get_job(session, first_id)
    release = get_release(session, release_id)
    if release.kind is ReleaseKind.HISTOGRAM:
        raise Conflict(
            f"Release *{release.name}* is a histogram, which is not measured on images.", release_id=release.id
        )
    if samples is not None and release.kind is not ReleaseKind.GENERATOR:
        raise InvalidInput("A classifier is tested as it is: leave the number of samples out.")
    require_drawable("samples", samples, samples_max, seed)
    evaluation_set(session, dataset_id, get_dataset(session, release.dataset_id))
    return queue_evaluation(
        session,
        release,
        get_job(session, release.job_id),
        dataset_id,
        job_id=job_id,
        samples=samples,
        seed=seed,
        now=now,
    )


def queue_evaluation(
    session: Session,
    release: Release,
    training: Job,
    dataset_id: str,
    *,
    job_id: str,
    now: datetime,
    samples: int | None = None,
    seed: int | None = None,
) -> Job:
    """Queue the evaluation of a release that is there, or is published in this transaction.

    An evaluation belongs to the sweep that its training is a trial of. Without numbers it takes the training's options.
    """
    config = plan_from_json(training.plan).config
    if release.kind is not ReleaseKind.GENERATOR:
        samples = None
    elif samples is None:
        samples = config.measured_samples
    seed = config.measuring_seed if seed is None else seed
    job = new_job(
        job_id,
        JobKind.EVALUATE,
        recipe=training.recipe,
        options={"samples": samples, "seed": seed},
        now=now,
        account_id=release.account_id,
        dataset_id=release.dataset_id,
        evaluation_dataset_id=dataset_id,
        release_id=release.id,
        sweep_id=training.sweep_id,
    )
    evaluation = Evaluation(
        id=new_id("evl"),
        job_id=job.id,
        release_id=release.id,
        dataset_id=dataset_id,
        samples=samples,
        seed=seed,
        created_at=now,
    )
    queue_job(session, job, evaluation)
    return job


def finish_evaluation(
    session: Session,
    *,
    job_id: str,
    attempt: int,
    results: Mapping[str, Any],
    confusion: Sequence[Sequence[int]] | None,
    now: datetime,
) -> Evaluation:
    """End an evaluation with what it measured. Replaying it changes nothing.

    Args:
        session: in a writing transaction.
        job_id: a running evaluation.
        attempt: the current one.
        results: what lists and reports show, JSON.
        confusion: counts (classes, classes), a row for each true class.
        now: aware.

    Raises:
        StaleAttempt: the attempt has been superseded or the job has ended otherwise.
    """
    job = lock_attempt(session, job_id, attempt, JobKind.EVALUATE, replay=JobState.SUCCEEDED)
    evaluation = evaluation_of(session, job_id)
    if job.state is JobState.SUCCEEDED:
        if evaluation.results != dict(results):
            raise stale_attempt(job, attempt)
        return evaluation
    evaluation.results, evaluation.finished_at = dict(results), now
    evaluation.confusion = None if confusion is None else [list(row) for row in confusion]
    secret = secret_of(session, job_id=job_id, attempt=attempt).hex()
    end_job(session, job, JobState.SUCCEEDED, now=now)
    digest = keyed_digest(evaluation_digest(columns_of(evaluation), columns_of(job)), secret)
    fact = {"table": "evaluations", "id": evaluation.id, "hmac_sha256": digest}
    account_id = get_release(session, evaluation.release_id).account_id
    ledger.record_fact(session, account_id=account_id, fact=fact, now=now)
    return evaluation


def finished_evaluations(session: Session, release_id: str) -> Sequence[Evaluation]:
    """Return the finished evaluations of a release, with their confusions, newest first, at most LISTED_MAX."""
    found = select(Evaluation).where(Evaluation.release_id == release_id, Evaluation.finished_at.is_not(None))
    newest_first = found.order_by(Evaluation.finished_at.desc(), Evaluation.id.desc()).limit(LISTED_MAX)
    return session.scalars(newest_first.options(undefer(Evaluation.confusion))).all()


def newest_evaluations(session: Session, release_ids: Sequence[str]) -> dict[str, Evaluation]:
    """Return the newest finished evaluation of each release that has one. One query, whatever their number."""
    return {
        evaluation.release_id: evaluation for evaluation in _finished_of(session, release_ids)
    }  # the last one stays


def newest_on_own_dataset(session: Session, trials: Sequence[Any]) -> dict[str, Evaluation]:
    """Return, by release, its newest finished evaluation on the dataset that its training named.

    Trainings are jobs, or rows of their columns.

    What was asked for later, perhaps on other images, does not decide between the trials of a sweep.
    """
    named = {job.release_id: job.evaluation_dataset_id for job in trials if job.release_id is not None}
    found = _finished_of(session, list(named))
    return {row.release_id: row for row in found if row.dataset_id == named[row.release_id]}


def _finished_of(session: Session, release_ids: Sequence[str]) -> Sequence[Evaluation]:
    """Return the finished evaluations of some releases, the newest last."""
    found = select(Evaluation).where(Evaluation.release_id.in_(release_ids), Evaluation.finished_at.is_not(None))
    return session.scalars(found.order_by(Evaluation.finished_at, Evaluation.id)).all() if release_ids else []


def with_figures(summary: Mapping[str, Any], newest: Evaluation | None) -> dict[str, Any]:
    """Return a release's summary with the accuracies of its newest evaluation.

    Releases from before evaluations were jobs of their own have theirs in the summary itself.
    """
    if newest is None or newest.results is None:
        return dict(summary)
    return {
        **{name: value for name, value in summary.items() if name not in _FIGURES},
        **{name: newest.results[name] for name in _FIGURES if newest.results.get(name) is not None},
    }
