"""An evaluation as a job: what it measures, what it may be asked for, and that nothing paid for hangs on it."""

import itertools
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
import torch

from models.portable.generator import Generator, GeneratorConfig
from models.released import save_released
from obscura.wire.words import DatasetState, JobState
from service.datasets import deletion
from service.db.dataset_tables import Dataset
from service.db.job_tables import FailureCode, Release
from service.errors import Conflict
from service.jobs.kinds.evaluate import newest_evaluations, with_figures
from service.reports import PAGE, read_report
from service.storage import storage_of
from service.storage.interface import digest_directory, key_of
from tests.workers.small_trainings import classifiers_see, evaluated, published_by, work
from tests.workers.tiny_runner import TRAINERS as TINY
from workers.evaluation import utility
from workers.evaluation.similarity import find_extractor
from workers.recipes.interface import Trainer
from workers.recipes.registry import TRAINERS
from workers.train import measuring
from workers.train.drawing import SampleRequest
from workers.train.measuring import EVALUATION
from workers.train.progress import ReportedProgress

KINDS = {"logistic_regression", "mlp", "cnn"}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classifiers see few images: what they learn is tested elsewhere."""
    classifiers_see(monkeypatch, 1000)


def released(workshop: Any, trainers: Mapping[str, Trainer] = TINY, **options: Any) -> Release:
    return published_by(workshop, workshop.train(evaluate=True, **options), trainers)


def ask(workshop: Any, release: Release, **changes: Any) -> str:
    facts = {"dataset_id": workshop.public_id, "samples": None, "seed": None, "release_id": release.id}
    return str(workshop.submit("evaluate", **facts | changes))


def delete(workshop: Any, dataset_id: str, *, cancel_jobs: bool = False) -> Dataset:
    now = datetime.now(UTC)
    return deletion.delete(workshop.settings, workshop.factory, dataset_id, cancel_jobs=cancel_jobs, now=now)


def assert_unavailable(workshop: Any, job_id: str) -> None:
    work(workshop, job_id)
    workshop.assert_failed(job_id, FailureCode.DATASET_UNAVAILABLE)


def test_a_release_is_there_before_it_is_evaluated_and_does_not_change(workshop):
    release = released(workshop, evaluation_samples=200)
    directory = workshop.settings.data_dir / key_of(release.id)
    assert "accuracy" not in release.summary
    waiting = workshop.job(workshop.evaluation(release.id).job_id)
    assert (waiting.state, waiting.hold_id) == (JobState.QUEUED, None)
    spent_nano = workshop.balance().spent_nano

    results = evaluated(workshop, release)
    assert set(results["accuracy"]) == KINDS
    assert (results["evaluation"]["train_images"], results["evaluation"]["test_images"]) == (200, 297)
    assert sum(map(sum, workshop.evaluation(release.id).confusion)) == 297
    assert digest_directory(directory) == release.artifact_sha256
    assert workshop.balance().spent_nano == spent_nano
    page = read_report(storage_of(workshop.settings), workshop.factory, release.id, PAGE).decode()
    assert "200 synthetic images only, then tested once on the 297 images" in page
    assert "was not measured" not in page


@pytest.mark.parametrize("options", [{"texture": False}, {"texture": True}, {"guide": True, "components": 6}], ids=str)
def test_a_guided_generator_is_also_measured_without_its_guide(workshop, options):
    release = released(workshop, TRAINERS, recipe="moments", evaluation_samples=200, **options)
    results = evaluated(workshop, release)
    assert set(results["accuracy"]) == KINDS
    assert set(results["accuracy_warm_start_only"] or ()) == (KINDS if "guide" in options else set())


def test_of_large_images_as_many_are_kept_whole_as_are_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "IMAGES_MAX", 300)
    drawn, request = {}, SampleRequest(count=600, seed=0, names=("a", "b"))
    for side in (60, 80):
        generator = Generator(GeneratorConfig(classes=2, channels=1, height=side, width=side, components=2))
        generator.mean.copy_(torch.linspace(0.1, 0.9, side * side).expand(2, -1))
        save_released(generator, tmp_path)
        drawn[side] = measuring.drawn_images(generator, request, lambda **_: False)
    assert drawn[60][1] is drawn[60][0].images
    seen, whole = drawn[80]
    assert seen.images.shape == (600, 1, 64, 64)
    assert whole.shape == (300, 1, 80, 80)
    assert torch.equal(utility.as_seen(whole), seen.images[:300])
    test = measuring.Images(whole[:40], seen.labels[:40])
    how = {"device": torch.device("cpu"), "warm_start": False, "reference": 0.5, "progress": lambda **_: False}
    measured = measuring.measure_generator(tmp_path, test, find_extractor(tmp_path), request, **how)
    assert measured.seen == (64, 64)
    assert measured.similarity.images == 40


def test_it_can_be_asked_for_again_and_learns_real_images_once_for_a_dataset_and_a_seed(workshop, monkeypatch):
    release, learned = released(workshop, evaluation_samples=200), list[str]()
    train = measuring.train_and_test

    def counted(kind: Any, *images: Any, **options: Any) -> Any:
        learned.append(kind)
        return train(kind, *images, **options)

    monkeypatch.setattr(measuring, "train_and_test", counted)
    first = evaluated(workshop, release)
    assert (first["evaluation"]["seeds"], learned.count("cnn")) == ([0], 2)  # of the release and of real images
    learned.clear()
    work(workshop, ask(workshop, release))
    same = workshop.evaluation(release.id).results
    assert same["accuracy"] == first["accuracy"]
    assert same["accuracy_real"] == first["accuracy_real"] is not None
    assert learned.count("cnn") == 1
    learned.clear()
    work(workshop, ask(workshop, release, samples=300, seed=5))
    other = workshop.evaluation(release.id).results
    assert (other["evaluation"]["train_images"], other["evaluation"]["seeds"]) == (300, [5])
    assert learned.count("cnn") == 2
    newest = workshop.do(newest_evaluations, [release.id])[release.id]
    assert with_figures(release.summary, newest)["accuracy"] == other["accuracy"]


def test_a_broken_evaluation_fails_alone_and_can_be_repeated(workshop):
    release = released(workshop, evaluation_samples=200)
    images = workshop.settings.data_dir / key_of(workshop.public_id) / "images.npy.sealed"
    content = images.read_bytes()
    images.unlink()
    assert_unavailable(workshop, workshop.evaluation(release.id).job_id)
    images.write_bytes(content)
    again = ask(workshop, release)
    work(workshop, again)
    assert workshop.job(again).state is JobState.SUCCEEDED


def test_a_public_dataset_that_was_deleted_before_its_evaluation_costs_only_that(workshop):
    job_id = workshop.train(evaluate=True)
    assert delete(workshop, workshop.public_id).state is DatasetState.DELETED
    work(workshop, job_id, TINY)
    workshop.assert_settled(job_id, JobState.SUCCEEDED)
    assert_unavailable(workshop, workshop.evaluation(workshop.job(job_id).release_id).job_id)


def test_a_dataset_is_not_deleted_under_an_evaluation_unless_that_is_cancelled(workshop):
    job_id = workshop.evaluation(released(workshop).id).job_id
    with pytest.raises(Conflict, match=job_id):
        delete(workshop, workshop.public_id)
    delete(workshop, workshop.public_id, cancel_jobs=True)
    assert workshop.job(job_id).state is JobState.CANCELLED
    # The private images are not needed to measure: they may go at any time.
    delete(workshop, workshop.dataset_id)


def test_progress_moves_on_while_classifiers_learn_and_never_back(workshop, monkeypatch):
    release, seen = released(workshop, evaluation_samples=200), list[tuple[int, int]]()
    say = ReportedProgress.__call__

    def said(progress: Any, *, stage: str, step: int, steps: int) -> bool:
        if stage == EVALUATION:
            seen.append((step, steps))
        return say(progress, stage=stage, step=step, steps=steps)

    monkeypatch.setattr(ReportedProgress, "__call__", said)
    evaluated(workshop, release)
    shares = [step / steps for step, steps in seen]
    assert shares == sorted(shares)  # of all classifiers together, which learn side by side
    assert (shares[0], len({steps for _, steps in seen})) == (0.0, 1)
    assert 0.95 < shares[-1] <= 1
    assert max(after - before for before, after in itertools.pairwise(shares)) < 0.2
    assert len(set(shares)) > 10
