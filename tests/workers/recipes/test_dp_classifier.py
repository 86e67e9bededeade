"""The classifier recipe: pays before it samples, resumes to the same weights, and becomes a release."""

import dataclasses
import hashlib
import json
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from models.extractor import ExtractorUnusable
from models.private_classifier import PrivateClassifier, load_classifier
from obscura.wire.words import HoldState, JobState, ReleaseKind
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.private_steps import STEPS, StepsConfig
from service.errors import Conflict
from service.jobs import FailureCode
from tests.models.small_extractors import extractor, write_extractor
from tests.workers import small_trainings as small
from tests.workers.recipes.conftest import BLOCK
from workers.recipes.dp_classifier import FEATURES
from workers.recipes.interface import Cancelled, TrainingData
from workers.recipes.records import Units

OPTIONS = small.SMALL["dp_classifier"]
classifier_plan = partial(small.small_plan, "dp_classifier")


def accuracy(classifier: PrivateClassifier) -> float:
    images, labels = (torch.from_numpy(array[1500:]) for array in small.all_digits())
    return float((classifier.predict(images[:, None]) == labels).float().mean())


def test_it_learns_what_a_large_budget_allows_and_nothing_without_signal(monkeypatch):
    small.untried(monkeypatch)
    options = {"expected_batch": 64, "epochs": 1.5, "learning_rate": 4.0, "clip": 0.1}
    assert accuracy(small.train(classifier_plan(**options), small.digits())) > 0.6
    shuffled = small.digits()
    np.random.default_rng(1).shuffle(shuffled.private_labels)
    assert accuracy(small.train(classifier_plan(**options), shuffled)) < 0.4


# --- subjects -------------------------------------------------------------------------------------------------------

SUBJECTS = dataclasses.replace(small.FACTS, unit="subject", subjects_declared=100)


def test_a_sampled_subject_gives_rows_of_its_own_records_only():
    owners = np.array([7, 3, 7, 7, 9, 3])
    data = TrainingData(np.zeros((6, 8, 8), np.uint8), np.zeros(6, np.int64), small.DIGITS, owners)
    units = Units(SUBJECTS, StepsConfig(records_per_subject=50), data)
    assert (units.count, units.rows_each) == (3, 50)
    found = units.records(np.array([0, 2]), SecureNoise.derive(small.SECRET, "rows")).reshape(2, 50)
    assert set(found[0]) == {1, 5}
    assert set(found[1]) == {4}
    everything = units.records(np.array([1]), SecureNoise.derive(small.SECRET, "rows"))
    assert set(everything) == {0, 2, 3}


# --- on a pretrained extractor --------------------------------------------------------------------------------------

PRETRAINED: dict[str, Any] = {"architecture": "pretrained_linear", "extractor": "tiny"}
FEW = dataclasses.replace(small.FACTS, records_declared=300)
ON_FEW: dict[str, Any] = {**PRETRAINED, "epochs": 1.0}  # 10 steps


def with_extractor(data: TrainingData, seed: int = 0, **changes: Any) -> TrainingData:
    return dataclasses.replace(data, public_extractor=extractor(seed, **changes))


def test_a_linear_layer_learns_on_an_extractors_features():
    plan = classifier_plan(**PRETRAINED, expected_batch=150, epochs=4.0, learning_rate=4.0, clip=0.1)
    assert accuracy(small.train(plan, with_extractor(small.digits(), network="resnet18", input_size=16))) > 0.6


@pytest.mark.parametrize("estimator", ["dpsgd", "gep", "rgp"])
def test_an_extractor_goes_with_estimators_and_is_looked_through_once(estimator):
    reports: list[tuple[str, int]] = []

    def listen(*, stage: str, step: int, steps: int) -> None:
        reports.append((stage, step))

    data, plan = with_extractor(small.digits(100)), classifier_plan(FEW, **ON_FEW, estimator=estimator)
    first = small.train(plan, data, FEW, progress=listen)
    # Blocks of what was declared, 300, although 100 are there.
    assert [step for stage, step in reports if stage == FEATURES] == list(range(math.ceil(300 / BLOCK)))
    assert torch.isfinite(small.weights(first.head)).all()
    if estimator == "dpsgd":  # that every estimator repeats itself, test_contract.py says
        again, other = small.train(plan, data, FEW), small.train(plan, with_extractor(small.digits(100), seed=1), FEW)
        assert torch.equal(small.weights(again.head), small.weights(first.head))
        assert not torch.equal(small.weights(other.head), small.weights(first.head))


def test_without_its_extractor_nothing_is_paid():
    purse = small.Purse()
    with pytest.raises(ExtractorUnusable, match="tiny is not there"):
        small.train(classifier_plan(**PRETRAINED), small.digits(50), budget=purse)
    with pytest.raises(ExtractorUnusable, match="other is not there"):
        small.train(
            classifier_plan(**{**PRETRAINED, "extractor": "other"}), with_extractor(small.digits(50)), budget=purse
        )
    assert purse.paid == []


def test_a_training_goes_on_with_the_extractor_that_it_began_with_alone():
    plan, data, folder = classifier_plan(FEW, **ON_FEW), with_extractor(small.digits(100)), small.Memory()
    whole = small.weights(small.train(plan, data, FEW).head)
    with pytest.raises(Cancelled):
        small.train(plan, data, FEW, checkpoints=folder, progress=small.stop_at(7, STEPS))
    purse = small.Purse()
    with pytest.raises(ExtractorUnusable, match="replaced"):
        small.train(plan, with_extractor(small.digits(100), seed=1), FEW, checkpoints=folder, budget=purse)
    assert purse.paid == []
    assert torch.equal(small.weights(small.train(plan, data, FEW, checkpoints=folder).head), whole)


# --- as a job -------------------------------------------------------------------------------------------------------


def ask(workshop: Any, **options: Any) -> str:
    return workshop.train(recipe="dp_classifier", epsilon=8.0, evaluate=True, **{**OPTIONS, **options})


def test_a_paid_job_becomes_a_classifier_that_anybody_can_load(workshop):
    write_extractor(workshop.settings.extractors_path)
    shares = "9,8,7,6,5,5,4,3,2,1"
    options = {**PRETRAINED, "estimator": "gep", "freeze": "random", "class_fractions": shares}
    job_id = ask(workshop, **options, anchors_dataset_id=workshop.public_id)
    published = small.published_by(workshop, job_id)
    assert published.kind is ReleaseKind.CLASSIFIER
    directory = workshop.settings.data_dir / published.artifact_dir
    files = {"classifier.safetensors", "classifier.json", "extractor.safetensors", "privacy_card.json", "release.json"}
    assert {path.name for path in directory.iterdir()} == files
    described = json.loads((directory / "classifier.json").read_text())["extractor"]
    assert described["sha256"] == hashlib.sha256((directory / "extractor.safetensors").read_bytes()).hexdigest()
    assert described["sha256"] == extractor().sha256
    results = small.evaluated(workshop, published)
    assert results["accuracy"]["classifier"] == pytest.approx(accuracy(load_classifier(directory)))
    assert results["evaluation"]["test_images"] == 297
    assert published.card["epsilon"] <= 8.0
    assert math.isfinite(published.card["epsilon"])
    assert published.card["events"][0]["type"] == "poisson_gaussian"
    assumed = published.card["assumed_public"]
    assert any(workshop.public_id in each for each in assumed)
    assert "the extractor tiny and every image that it was trained on" in assumed
    assert f"the balance of the classes that was stated: {shares}" in assumed
    with pytest.raises(Conflict, match="not a generator"):
        workshop.sample(published.id)


def test_a_job_whose_extractor_is_gone_ends_before_anything_is_armed_or_paid(workshop):
    job_id = ask(workshop, **PRETRAINED)
    small.work(workshop, job_id)
    job, hold = workshop.job(job_id), workshop.hold(job_id)
    assert (job.state, job.failure_code) == (JobState.FAILED, FailureCode.TRAINING_FAILED)
    assert (hold.state, hold.charged_nano) == (HoldState.RETURNED, 0)
    assert workshop.balance().spent_nano == workshop.balance().reserved_nano == 0
