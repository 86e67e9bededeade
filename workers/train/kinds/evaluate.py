"""One attempt at an evaluation: measure a release on a public dataset and end the job. Costs no budget."""

from __future__ import annotations

import time
from typing import Any

from models.extractor import ExtractorUnusable
from privacy.plans.registry import plan_from_json
from service import jobs, ledger
from service.datasets.vault import Vault
from service.db.job_tables import Evaluation, Release
from service.db.session import transaction
from service.errors import Conflict, NotFound
from service.identity.access import find
from service.jobs.kinds import evaluate
from service.storage.interface import key_of
from workers.evaluation.similarity import find_extractor
from workers.evaluation.utility import accuracy_by_class, are_uneven
from workers.recipes.interface import Piece
from workers.train import drawing, measuring, orders
from workers.train.progress import ReportedProgress

_CONFUSION_CLASSES_MAX = 100  # a larger table is unreadable


def run(context: orders.Context) -> None:
    job_id = context.attempt.job_id
    with transaction(context.factory, read_only=True) as session:
        evaluation = jobs.made_by(session, Evaluation, job_id)
        release = find(session, Release, evaluation.release_id)
        plan = plan_from_json(jobs.get_job(session, release.job_id).plan)
        account = ledger.get_account(session, release.account_id)
        facts = jobs.facts_of(jobs.trained_on(session, release), account)
        dataset = orders.public_dataset(session, evaluation.dataset_id)
        kept = evaluate.kept_reference(session, dataset.id, evaluation.seed)
    began = time.monotonic()
    test = measuring.public_images(*Vault.of(context.settings).open_dataset(dataset.id))
    pieces: tuple[Piece, ...] = ()
    if evaluation.samples is not None:
        pieces = measuring.evaluation_work(plan, facts, evaluation.samples, len(test.labels), kept)
    progress = ReportedProgress(context, pieces)
    try:
        extractor = find_extractor(context.settings.extractors_path)
    except ExtractorUnusable as error:
        raise Conflict(f"Distances cannot be measured: {error}.") from None
    try:
        directory = context.storage.open(key_of(release.id))
        if evaluation.samples is None:
            measured = measuring.measure_classifier(directory, test, device=context.device, progress=progress)
        else:
            request = drawing.SampleRequest(count=evaluation.samples, seed=evaluation.seed, names=facts.classes)
            warm_start = plan.config.changes_its_start
            how: dict[str, Any] = {"device": context.device, "warm_start": warm_start, "reference": kept}
            measured = measuring.measure_generator(directory, test, extractor, request, progress=progress, **how)
    except (NotFound, FileNotFoundError, ValueError):
        if context.storage.holds(key_of(release.id)):
            raise
        raise NotFound("The files of this release cannot be read.", release_id=release.id) from None
    listed = len(dataset.classes) <= _CONFUSION_CLASSES_MAX
    each = zip(dataset.classes, accuracy_by_class(measured.confusion), strict=True)
    shares = {name: share for name, share in each if share is not None}
    results = {
        "accuracy": measured.accuracy,
        "balanced_accuracy": measured.balanced,
        "accuracy_by_class": shares if listed else None,
        "accuracy_warm_start_only": measured.warm_start_only,
        "accuracy_real": measured.real,
        "similarity": None if measured.similarity is None else measured.similarity.model_dump(),
        "evaluation": {
            "dataset": dataset.name,
            "dataset_id": dataset.id,
            "train_images": evaluation.samples,
            "test_images": len(test.labels),
            "uneven_classes": are_uneven(measured.confusion),
            "seeds": [evaluation.seed],
            **({} if measured.seen is None else {"classifiers_see": measured.seen}),
            "seconds": round(time.monotonic() - began, 1),
        },
    }
    confusion = measured.confusion if listed else None
    context.end(evaluate.KIND.finish, at="evaluated", results=results, confusion=confusion)
