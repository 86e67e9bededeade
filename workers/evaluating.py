"""One attempt at an evaluation: measure a release on a public dataset and end the job. Costs nothing.

It reads a release and a public dataset and nothing else. The release does not change.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from privacy.plans.plan import Plan, PublicFacts, plan_from_json
from service import artifacts, jobs, ledger
from service.datasets.vault import open_dataset
from service.db.dataset_tables import Dataset
from service.db.job_tables import Evaluation, Release
from service.db.session import transaction
from service.db.words import ReleaseKind, Visibility
from service.errors import LedgerCorruption, NotFound
from service.failpoints import failpoint
from service.jobs.planning import facts_of
from workers.context import Context
from workers.measuring import Measured, measure_classifier, measure_generator, public_images
from workers.planned_work import evaluation_work
from workers.sampling import SampleRequest
from workers.spending import ReportedProgress

_CONFUSION_CLASSES_MAX = 100  # a larger table is nothing to read


def run_evaluation(context: Context, job_id: str) -> None:
    """Measure a release and end the job.

    Raises:
        Cancelled: the attempt was told to stop.
        StaleAttempt: another attempt has taken over.
        NotFound: the public dataset's content is gone.
    """
    with transaction(context.factory, read_only=True) as session:
        evaluation = jobs.evaluation_of(session, job_id)
        release = jobs.get_release(session, evaluation.release_id)
        plan = plan_from_json(jobs.get_job(session, release.job_id).plan)
        account = ledger.get_account(session, release.account_id)
        facts = facts_of(session.get_one(Dataset, release.dataset_id), account)
        dataset = session.get_one(Dataset, evaluation.dataset_id)
    if dataset.visibility is not Visibility.PUBLIC:
        raise LedgerCorruption("An evaluation's dataset is not public.", job_id=job_id)
    if dataset.unchecked:
        raise NotFound("The dataset of the evaluation has not been compared with the private ones.")
    began = time.monotonic()
    measured, train_images, test_images = _measure(context, evaluation, release, plan, facts, dataset)
    results = {
        "accuracy": measured.accuracy,
        "accuracy_warm_start_only": measured.warm_start_only,
        "evaluation": {
            "dataset": dataset.name,
            "dataset_id": dataset.id,
            "train_images": train_images,
            "test_images": test_images,
            "seeds": [evaluation.seed],
            "seconds": round(time.monotonic() - began, 1),
        },
    }
    with transaction(context.factory) as session:
        jobs.finish_evaluation(
            session,
            job_id=job_id,
            attempt=context.attempt.number,
            results=results,
            confusion=measured.confusion if len(dataset.classes) <= _CONFUSION_CLASSES_MAX else None,
            now=datetime.now(UTC),
        )
        failpoint("evaluated.before")
    failpoint("evaluated.after")


def _measure(
    context: Context, evaluation: Evaluation, release: Release, plan: Plan, facts: PublicFacts, dataset: Dataset
) -> tuple[Measured, int | None, int]:
    """Return what was measured, with how many synthetic and how many public images."""
    test = public_images(*open_dataset(context.settings, dataset.id))
    directory = artifacts.directory_of(context.settings.data_dir, release.id)
    progress = ReportedProgress(
        context.factory,
        context.attempt,
        stop=context.stop,
        work=() if evaluation.samples is None else evaluation_work(plan, facts, evaluation.samples),
    )
    look: dict[str, Any] = {"device": context.device, "progress": progress}
    try:
        if release.kind is ReleaseKind.CLASSIFIER:
            return measure_classifier(directory, test, **look), None, len(test.labels)
        samples = evaluation.samples
        assert samples is not None
        request = SampleRequest(count=samples, seed=evaluation.seed, names=tuple(dataset.classes))
        warm_start = plan.config.get("warm_start") is True
        return measure_generator(directory, test, request, warm_start=warm_start, **look), samples, len(test.labels)
    except (FileNotFoundError, ValueError):
        if directory.is_dir():
            raise
        raise NotFound("The files of this release cannot be read.", release_id=release.id) from None
