"""A job that draws images or tests classifiers, and is cancelled, ends within seconds and not when it is done."""

from __future__ import annotations

import dataclasses
import runpy
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from models.edm import EdmConfig, EdmDenoiser
from models.private_classifier import ClassifierConfig, PrivateClassifier
from service import jobs
from service.db.session import transaction
from service.db.tables import JobState
from tests.workers.small_trainings import DIGITS
from workers.context import Context
from workers.evaluation import utility
from workers.exits import ExitStatus
from workers.measuring import DRAWING, STAGE, measure_classifier
from workers.orders import read_order
from workers.recipes.interface import Cancelled
from workers.runner import run

SECONDS_MAX = 5.0  # what is cancelled here would go on for a minute


def quick_to_draw(*given: Any, **more: Any) -> Any:
    """The small recipe: pays, and is done."""
    tiny = runpy.run_path(str(Path(__file__).with_name("tiny_runner.py")))
    return tiny["train"](*given, **more)


def slow_to_draw(*given: Any, **more: Any) -> EdmDenoiser:
    """It pays likewise; 256 images of a batch go through its network in four blocks, a thousand times each."""
    quick_to_draw(*given, **more)
    return EdmDenoiser(EdmConfig(10, 1, 8, 8, 16, 1, sampling_steps=1000, churn=0.0, guidance=0.0))


@pytest.mark.parametrize(
    ("trainer", "evaluate", "stage"),
    [(slow_to_draw, True, DRAWING), (slow_to_draw, False, DRAWING), (quick_to_draw, True, STAGE)],
    ids=["images to evaluate", "images to show", "a classifier"],
)
def test_a_cancelled_job_ends_within_seconds(
    workshop: Any, trainer: Any, evaluate: bool, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utility, "EPOCHS_MAX", 10**6)
    for kind, training in utility.TRAINING.items():
        monkeypatch.setitem(utility.TRAINING, kind, dataclasses.replace(training, images_seen=10**7))
    job_id = workshop.train(evaluate=evaluate, warm_start=False)
    attempt, stop, statuses = workshop.claim(job_id), threading.Event(), list[ExitStatus]()
    thread = threading.Thread(
        target=lambda: statuses.append(run(workshop.settings, attempt, stop=stop, trainers={"datalens": trainer}))
    )
    thread.start()
    workshop.wait(lambda: workshop.job(job_id).progress.get("stage") == stage, seconds=60)
    with transaction(workshop.factory) as session:
        jobs.request_cancel(session, job_id=job_id, now=datetime.now(UTC))
    asked = time.monotonic()
    stop.set()
    thread.join(timeout=600)
    assert time.monotonic() - asked < SECONDS_MAX
    assert statuses == [ExitStatus.ENDED]
    workshop.assert_settled(job_id, JobState.CANCELLED)


def test_a_classifiers_test_can_be_ended_between_its_layers(rdp_workshop: Any, tmp_path: Path) -> None:
    workshop = rdp_workshop
    job_id = workshop.train(recipe="dp_classifier", epsilon=8.0, evaluate=True, architecture="cnn")
    context = Context(
        workshop.settings, workshop.factory, workshop.claim(job_id), stop=threading.Event(), device=torch.device("cpu")
    )
    order = read_order(context, job_id)
    PrivateClassifier(ClassifierConfig("cnn", DIGITS, 1, 8, 8)).save(tmp_path)
    looks = 0

    def progress(*, stage: str, step: int, steps: int) -> None:
        nonlocal looks
        looks += 1
        if looks == 5:
            raise Cancelled

    with pytest.raises(Cancelled):
        measure_classifier(tmp_path, order, context, progress)
    assert looks == 5
    tested = measure_classifier(tmp_path, order, context, progress)
    assert tested is not None
    assert tested[1] == 297
