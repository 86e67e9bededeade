"""A job that draws images or tests classifiers, and is cancelled, ends within seconds and not when it is done."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from models.portable.edm import EdmConfig, EdmDenoiser
from models.private_classifier import ClassifierConfig, PrivateClassifier
from obscura.wire.words import JobState
from service.datasets.vault import Vault
from tests.workers import tiny_runner
from tests.workers.small_trainings import DIGITS, classifiers_see, work
from workers.evaluation import utility
from workers.recipes.interface import Cancelled, Run, Trainer
from workers.supervise.attempts import ExitStatus
from workers.train.drawing import DRAWING
from workers.train.measuring import EVALUATION, measure_classifier, public_images
from workers.train.runner import run


def slow_to_draw(sampling_steps: int) -> Trainer:
    """Pay as the tiny recipe does, for a generator that draws a batch in four blocks, each in so many steps."""

    def train(run: Run) -> EdmDenoiser:
        tiny_runner.train(run)
        return EdmDenoiser(EdmConfig(10, 1, 8, 8, 16, 1, sampling_steps, churn=0.0, guidance=0.0))

    return train


def cancelled_at(workshop: Any, job_id: str, stage: str, trainers: Any, *, discard: bool) -> ExitStatus:
    """Run a job until it says that it is at a stage, cancel it, and see that it ends within seconds."""
    attempt, stop = workshop.claim(job_id), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, workshop.settings, attempt, stop=stop, trainers=trainers)
        workshop.wait(lambda: workshop.job(job_id).progress.get("stage") == stage, seconds=120)
        workshop.cancel(job_id, discard=discard)
        stop.set()
        status: ExitStatus = running.result(timeout=30)  # what is cancelled here would go on for minutes
    return status


def test_a_discarded_training_ends_within_seconds_while_it_draws_what_it_would_show(workshop):
    job_id = workshop.train()
    assert cancelled_at(workshop, job_id, DRAWING, {"datalens": slow_to_draw(10_000)}, discard=True) is ExitStatus.ENDED
    workshop.assert_settled(job_id, JobState.CANCELLED)


@pytest.mark.parametrize("stage", [DRAWING, EVALUATION])
def test_a_cancelled_evaluation_ends_within_seconds_and_its_release_stays(workshop, stage, monkeypatch):
    monkeypatch.setattr(utility, "EPOCHS_MAX", 10**6)  # classifiers train for a very long time
    classifiers_see(monkeypatch, 10**7)
    training = workshop.train(evaluate=True, evaluation_samples=200_000 if stage == DRAWING else 300)
    work(workshop, training, {"datalens": slow_to_draw(4) if stage == DRAWING else tiny_runner.train})
    release_id = workshop.job(training).release_id
    job_id = workshop.evaluation(release_id).job_id
    assert cancelled_at(workshop, job_id, stage, {}, discard=False) is ExitStatus.ENDED
    assert workshop.job(job_id).state is JobState.CANCELLED
    assert workshop.evaluation(release_id).results is None
    workshop.assert_settled(training, JobState.SUCCEEDED)


def test_a_classifiers_test_can_be_ended_between_its_layers(workshop, tmp_path):
    PrivateClassifier(ClassifierConfig("cnn", DIGITS, 1, 8, 8)).save(tmp_path)
    test = public_images(*Vault.of(workshop.settings).open_dataset(workshop.public_id))
    looks = 0

    def progress(*, stage: str, step: int, steps: int) -> bool:
        nonlocal looks
        looks += 1
        if looks == 5:
            raise Cancelled
        return False

    with pytest.raises(Cancelled):
        measure_classifier(tmp_path, test, device=torch.device("cpu"), progress=progress)
    assert looks == 5
    measured = measure_classifier(tmp_path, test, device=torch.device("cpu"), progress=progress)
    assert sum(sum(row) for row in measured.confusion) == len(test.labels) == 297
    assert sum(row[label] for label, row in enumerate(measured.confusion)) / 297 == measured.accuracy["classifier"]
