"""Evaluations of releases on public datasets. They cost nothing and may be repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select
from sqlalchemy.orm import Session, undefer

from obscura.wire.release_schemas import EvaluationRecord, EvaluationRequest
from obscura.wire.schemas import record_of
from obscura.wire.words import ReleaseKind
from privacy.plans.registry import plan_from_json
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import Evaluation, FailureCode, Job, Release
from service.errors import Conflict, InvalidInput
from service.identity.access import find, visible
from service.jobs.kind import Ask, Kind, Order, failure_of
from service.jobs.planning import evaluation_set
from service.jobs.releases import payer_of, trained_on, training_of
from service.jobs.submission import new_job, queue_job, require_drawable

LISTED_MAX = 50
SAMPLES_MIN, SAMPLES_PER_TEST_IMAGE = 1000, 3
# Fields of a release's summary that come from evaluations.
_FIGURES = (
    "accuracy",
    "balanced_accuracy",
    "accuracy_by_class",
    "accuracy_warm_start_only",
    "accuracy_real",
    "similarity",
    "evaluation",
)


def accept(
    session: Session, ask: Ask, *, release_id: str, dataset_id: str, samples: int | None, seed: int | None
) -> Job:
    """Accept the evaluation of a release on public images."""
    release = find(session, Release, release_id)
    if release.kind is ReleaseKind.HISTOGRAM:
        raise Conflict(
            f"Release '{release.name}' is a histogram, which is not measured on images.", release_id=release.id
        )
    if samples is not None and release.kind is not ReleaseKind.GENERATOR:
        raise InvalidInput("A classifier generates no images: leave the number of samples out.")
    require_drawable("samples", samples, ask.samples_max, seed)
    evaluation_set(session, dataset_id, trained_on(session, release))
    return queue_evaluation(session, ask, release, dataset_id, samples=samples, seed=seed)


def samples_for(test_images: int) -> int:
    """Return the default number of images to generate, from the size of the public test set."""
    return max(SAMPLES_MIN, SAMPLES_PER_TEST_IMAGE * test_images)


def queue_evaluation(
    session: Session,
    ask: Ask,
    release: Release,
    dataset_id: str,
    *,
    samples: int | None = None,
    seed: int | None = None,
) -> Job:
    """Queue the evaluation of a release, which may be published in the same transaction.

    The evaluation belongs to the sweep of the release's training, unless another project requests it. The defaults of
    `samples` and `seed` come from the training's options; the default of `samples` is at most `samples_for(...)`.
    """
    training, payer = training_of(session, release), payer_of(session, release)
    config = plan_from_json(training.plan).config
    if release.kind is not ReleaseKind.GENERATOR:
        samples = None
    elif samples is None:
        asked = getattr(config, "evaluation_samples", 30_000)
        samples = min(asked, samples_for(find(session, Dataset, dataset_id).records_declared))
    seed = getattr(config, "evaluation_seed", 0) if seed is None else seed
    measured = {"samples": samples, "seed": seed}
    job = new_job(
        ask,
        KIND.name,
        recipe=training.recipe,
        options=measured,
        evaluation_dataset_id=dataset_id,
        release_id=release.id,
        sweep_id=None if payer["account_id"] is None else training.sweep_id,
        **payer,
    )
    of = {"release_id": release.id, "dataset_id": dataset_id}
    return queue_job(session, job, Evaluation(id=new_id("evl"), job_id=job.id, created_at=ask.now, **of, **measured))


def finished_evaluations(session: Session, release_id: str) -> Sequence[Evaluation]:
    """Return up to LISTED_MAX finished evaluations of a release, newest first, with their confusion matrices."""
    newest_first = _finished(session, Evaluation.release_id == release_id).limit(LISTED_MAX)
    return session.scalars(newest_first.options(undefer(Evaluation.confusion))).all()


def kept_reference(session: Session, dataset_id: str, seed: int) -> float | None:
    """Return the accuracy of a classifier trained on public images, from an earlier evaluation with this seed, or None.

    It does not depend on the release: the classifier is trained on one half of the public images, tested on the other.
    """
    same = Evaluation.dataset_id == dataset_id, Evaluation.seed == seed
    newest = session.scalars(_finished(session, *same, Evaluation.samples.is_not(None)).limit(1)).first()
    return None if newest is None or newest.results is None else newest.results.get("accuracy_real")


def newest_evaluations(
    session: Session, release_ids: Iterable[str], named: Mapping[str, str] | None = None
) -> dict[str, Evaluation]:
    """Return the newest finished evaluation of each evaluated release, by release id, in one query.

    Args:
        named: the evaluation dataset that a training named, by release. Evaluations on other datasets are ignored,
            because they do not decide between the trials of a sweep. None: all datasets count.
    """
    newest_first = session.scalars(_finished(session, Evaluation.release_id.in_(release_ids))).all()
    if named is not None:
        newest_first = [row for row in newest_first if row.dataset_id == named.get(row.release_id)]
    return {row.release_id: row for row in reversed(newest_first)}


def _finished(session: Session, *conditions: ColumnElement[bool]) -> Select[Evaluation]:
    found = visible(session, Evaluation).where(Evaluation.finished_at.is_not(None), *conditions)
    return found.order_by(Evaluation.finished_at.desc(), Evaluation.id.desc())


def with_figures(summary: Mapping[str, Any], newest: Evaluation | None) -> dict[str, Any]:
    """Return a release's summary, completed with the accuracies of its newest evaluation."""
    results = (newest.results if newest is not None else None) or {}
    return {**summary, **{name: results[name] for name in _FIGURES if results.get(name) is not None}}


def show(made: Evaluation, job: Job) -> EvaluationRecord:
    measured = {name: (made.results or {}).get(name) for name in _FIGURES if name != "evaluation"}
    return record_of(EvaluationRecord, made, state=job.state, failure=failure_of(job), **measured)


KIND = Kind(
    name="evaluate",
    many="evaluations",
    title=lambda _job, _made: "Evaluate a release",
    accept=accept,
    failed=FailureCode.EVALUATION_FAILED,
    order=Order(
        path="/v1/releases/{release_id}/evaluations",
        tag="releases",
        summary="Evaluate a release",
        description="Measure a release on a public dataset. It costs nothing, may be repeated, and adds its section to "
        "the report.",
        request=EvaluationRequest,
    ),
    makes=Evaluation,
    record=EvaluationRecord,
    show=show,
    gives_way=True,
)
