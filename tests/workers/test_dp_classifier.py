"""The classifier recipe: pays before it samples, resumes to the same weights, and becomes a release."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import math
import threading
from datetime import UTC, datetime
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.datasets import load_digits

from models.extractor import ExtractorUnusable
from models.private_classifier import PrivateClassifier, load_classifier
from privacy.accounting.filters import open_filter
from privacy.errors import BudgetExceeded, ContributionUnbounded
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.private_steps import STEPS, StepsConfig
from privacy.plans.registry import build_plan
from service import jobs
from service.artifacts import digest_directory
from service.db.session import transaction
from service.db.tables import HoldState, JobState, ReleaseKind
from service.errors import Conflict
from service.extractors import folder_of
from service.jobs import FailureCode
from tests.models.small_extractors import extractor, write_extractor
from workers.exits import ExitStatus
from workers.recipes import private_steps
from workers.recipes.dp_classifier import FEATURES, train
from workers.recipes.interface import Cancelled, TrainingData
from workers.recipes.private_rows import Units
from workers.recipes.registry import TRAINERS
from workers.runner import run

RDP = open_filter("rdp", 8.0, 1e-5)
SECRET = bytes(range(32))
DIGITS = tuple(str(digit) for digit in range(10))
FACTS = PublicFacts(DIGITS, 8, 8, 1, 1500, "record")
OPTIONS: dict[str, Any] = {
    "architecture": "cnn",
    "expected_batch": 150,
    "epochs": 1.0,
    "learning_rate": 1.0,
    "clip": 0.5,
    "anchors": 30,
    "basis_size": 20,
    "rank": 2,
}
EVERY_ESTIMATOR = [
    {"estimator": "dpsgd"},
    {"estimator": "topagg"},
    {"estimator": "gep"},
    {"estimator": "bgep", "freeze": "random", "freeze_rate": 0.6},
    {"estimator": "rgp", "warm_up_share": 0.3},
    {"estimator": "rgp_random"},
    {"estimator": "dpsgd", "freeze": "ranked", "freeze_cooling": 0.0},
    {"estimator": "dpsgd", "freeze": "posterior", "freeze_cooling": 0.0},
    {"estimator": "dpsgd", "optimiser": "adam", "learning_rate": 0.01, "ema": 0.9},
]


class Purse:
    """A budget that writes down what was paid for, and refuses when it is empty."""

    def __init__(self, steps: int = 10**6) -> None:
        self.left, self.paid = steps, list[Any]()

    def charge(self, event: Any, stage: str) -> None:
        if self.left < event.count:
            raise BudgetExceeded(1, 0)
        assert stage == STEPS
        self.left -= event.count
        self.paid.append(event)


class Memory:
    """A checkpoint folder without a disk."""

    def __init__(self) -> None:
        self.kept: bytes | None = None

    def replace(self, write: Any) -> None:
        file = io.BytesIO()
        write(file)
        self.kept = file.getvalue()

    def open(self) -> BinaryIO | None:
        return None if self.kept is None else io.BytesIO(self.kept)


def digits(n: int = 1500) -> TrainingData:
    found = load_digits()
    return TrainingData((found.images[:n] * (255 / 16)).astype(np.uint8), found.target[:n].astype(np.int64), DIGITS)


def plan_of(facts: PublicFacts = FACTS, epsilon: float = 8.0, **options: Any) -> Plan:
    return build_plan("dp_classifier", {**OPTIONS, **options}, RDP, RDP.nano_of(epsilon), facts)


def fit(plan: Plan, data: TrainingData, facts: PublicFacts = FACTS, **changes: Any) -> PrivateClassifier:
    given: dict[str, Any] = {
        "budget": Purse(),
        "secret": SECRET,
        "attempt": 1,
        "progress": lambda **_: None,
        "checkpoint_dir": Memory(),
        "device": torch.device("cpu"),
        **changes,
    }
    return train(plan, facts, data, **given)


def weights(classifier: PrivateClassifier) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in classifier.head.parameters()])


def accuracy(classifier: PrivateClassifier) -> float:
    found = load_digits()
    images = torch.from_numpy((found.images[1500:] * (255 / 16)).astype(np.uint8))[:, None]
    return float((classifier.predict(images) == torch.from_numpy(found.target[1500:])).float().mean())


def test_it_learns_what_a_large_budget_allows_and_nothing_without_signal() -> None:
    options = {"epochs": 4.0, "learning_rate": 4.0, "clip": 0.1}
    assert accuracy(fit(plan_of(**options), digits())) > 0.6
    shuffled = digits()
    np.random.default_rng(1).shuffle(shuffled.private_labels)
    assert accuracy(fit(plan_of(**options), shuffled)) < 0.4


@pytest.mark.parametrize("options", EVERY_ESTIMATOR, ids=lambda options: "-".join(map(str, options.values())))
def test_every_estimator_pays_its_plan_and_repeats_with_its_secret(options: dict[str, Any]) -> None:
    plan, purse = plan_of(**options), Purse()
    first = weights(fit(plan, digits(300), budget=purse))
    assert sum(event.count for event in purse.paid) == plan.stages[0].event.count
    assert {dataclasses.replace(event, count=1) for event in purse.paid} == {
        dataclasses.replace(plan.stages[0].event, count=1)
    }
    assert torch.isfinite(first).all()
    assert torch.equal(weights(fit(plan, digits(300))), first)
    assert not torch.equal(weights(fit(plan, digits(300), attempt=2)), first)


@pytest.mark.parametrize(
    "options",
    [EVERY_ESTIMATOR[index] for index in (0, 2, 4, 6, 7)],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_a_training_that_was_cut_off_goes_on_to_the_same_weights(options: dict[str, Any]) -> None:
    plan = plan_of(**{**options, "epochs": 2.0})
    whole = weights(fit(plan, digits(300)))

    def stop(*, stage: str, step: int, steps: int) -> None:
        if step == 13:
            raise Cancelled

    folder = Memory()
    with pytest.raises(Cancelled):
        fit(plan, digits(300), checkpoint_dir=folder, progress=stop)
    assert torch.equal(weights(fit(plan, digits(300), checkpoint_dir=folder)), whole)


def test_it_ends_with_what_it_has_when_the_hold_is_used_up() -> None:
    plan = plan_of(epochs=2.0)
    purse = Purse(steps=7)
    ended = fit(plan, digits(300), budget=purse)
    assert sum(event.count for event in purse.paid) == 7
    assert not torch.equal(weights(ended), weights(fit(plan, digits(300), budget=Purse(steps=0))))


def test_it_pays_before_it_draws_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    purse, drawn = Purse(), list[int]()
    sample = private_steps.poisson_sample

    def watched(units: int, probability: float, noise: SecureNoise) -> npt.NDArray[np.int64]:
        drawn.append(sum(event.count for event in purse.paid))
        return sample(units, probability, noise)

    monkeypatch.setattr(private_steps, "poisson_sample", watched)
    fit(plan_of(), digits(300), budget=purse)
    assert all(paid >= step for step, paid in enumerate(drawn, start=1))
    assert len(drawn) == 10


def test_an_empty_dataset_is_trained_on_like_any_other() -> None:
    none = digits(0)
    assert torch.isfinite(weights(fit(plan_of(), none))).all()


# --- subjects -------------------------------------------------------------------------------------------------------

SUBJECTS = dataclasses.replace(FACTS, unit="subject", subjects_declared=100)


def test_a_sampled_subject_gives_rows_of_its_own_records_only() -> None:
    owners = np.array([7, 3, 7, 7, 9, 3])
    data = TrainingData(np.zeros((6, 8, 8), np.uint8), np.zeros(6, np.int64), DIGITS, owners)
    units = Units(SUBJECTS, StepsConfig(records_per_subject=50), data)
    assert (units.count, units.rows_each) == (3, 50)
    found = units.records(np.array([0, 2]), SecureNoise.derive(SECRET, "rows")).reshape(2, 50)
    assert set(found[0]) == {1, 5}
    assert set(found[1]) == {4}
    everything = units.records(np.array([1]), SecureNoise.derive(SECRET, "rows"))
    assert set(everything) == {0, 2, 3}


def test_a_subject_with_all_records_moves_a_step_no_further_than_its_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise left out, every coin heads: what one subject changes is at most C / expected batch, and nearly that."""
    data = digits(200)
    owners = np.concatenate([np.arange(50), np.full(150, 99)])
    plan = plan_of(facts=SUBJECTS, expected_batch=100, epochs=1.0, clip=0.1, learning_rate=1.0, momentum=0.0)
    assert plan.stages[0].event.count == 1

    def silence(_noise: SecureNoise, shape: int, _stddev: float) -> npt.NDArray[np.int64]:
        return np.zeros(shape, np.int64)

    monkeypatch.setattr(SecureNoise, "discrete_gaussian", silence)

    def step(rows: slice) -> torch.Tensor:
        chosen = TrainingData(data.private_images[rows], data.private_labels[rows], DIGITS, owners[rows])
        return weights(fit(plan, chosen, SUBJECTS))

    moved = float((step(slice(None)) - step(slice(0, 50))).norm())
    assert 0.9e-3 < moved <= 1e-3 * (1 + 1e-4)  # weights are rounded to float32


def test_subject_accounts_refuse_records_of_nobody() -> None:
    purse = Purse()
    with pytest.raises(ContributionUnbounded):
        fit(plan_of(facts=SUBJECTS), digits(50), SUBJECTS, budget=purse)
    assert purse.paid == []


# --- on a pretrained extractor --------------------------------------------------------------------------------------

PRETRAINED: dict[str, Any] = {"architecture": "pretrained_linear", "extractor": "tiny"}


def with_extractor(data: TrainingData, seed: int = 0, **changes: Any) -> TrainingData:
    return dataclasses.replace(data, public_extractor=extractor(seed, **changes))


def test_a_linear_layer_learns_on_an_extractors_features_and_nothing_without_signal() -> None:
    plan = plan_of(**PRETRAINED, epochs=4.0, learning_rate=4.0, clip=0.1)
    assert accuracy(fit(plan, with_extractor(digits(), network="resnet18"))) > 0.6
    shuffled = with_extractor(digits(), network="resnet18")
    np.random.default_rng(1).shuffle(shuffled.private_labels)
    assert accuracy(fit(plan, shuffled)) < 0.4


@pytest.mark.parametrize("estimator", ["dpsgd", "gep", "rgp"])
def test_an_extractor_goes_with_estimators_and_is_looked_through_once(estimator: str) -> None:
    reports: list[int] = []

    def listen(*, stage: str, step: int, steps: int) -> None:
        if stage == FEATURES:
            reports.append(step)

    data, plan = with_extractor(digits(600)), plan_of(**PRETRAINED, estimator=estimator)
    first = fit(plan, data, progress=listen)
    assert reports == [0, 1]
    assert torch.isfinite(weights(first)).all()
    assert torch.equal(weights(fit(plan, data)), weights(first))
    assert not torch.equal(weights(fit(plan, with_extractor(digits(600), seed=1))), weights(first))


def test_without_its_extractor_nothing_is_paid() -> None:
    purse = Purse()
    with pytest.raises(ExtractorUnusable, match="tiny is not there"):
        fit(plan_of(**PRETRAINED), digits(50), budget=purse)
    with pytest.raises(ExtractorUnusable, match="other is not there"):
        fit(plan_of(**{**PRETRAINED, "extractor": "other"}), with_extractor(digits(50)), budget=purse)
    assert purse.paid == []


def test_a_training_goes_on_with_the_extractor_that_it_began_with_alone() -> None:
    plan, data, folder = plan_of(**PRETRAINED, epochs=2.0), with_extractor(digits(300)), Memory()
    whole = weights(fit(plan, data))

    def stop(*, stage: str, step: int, steps: int) -> None:
        if stage == STEPS and step == 13:
            raise Cancelled

    with pytest.raises(Cancelled):
        fit(plan, data, checkpoint_dir=folder, progress=stop)
    purse = Purse()
    with pytest.raises(ExtractorUnusable, match="replaced"):
        fit(plan, with_extractor(digits(300), seed=1), checkpoint_dir=folder, budget=purse)
    assert purse.paid == []
    assert torch.equal(weights(fit(plan, data, checkpoint_dir=folder)), whole)


# --- as a job -------------------------------------------------------------------------------------------------------


def ask(workshop: Any, **options: Any) -> str:
    with transaction(workshop.factory) as session:
        return jobs.submit_training(
            session,
            principal="key_test",
            idempotency_key=None,
            dataset_id=workshop.dataset_id,
            recipe="dp_classifier",
            epsilon=8.0,
            options={**OPTIONS, **options},
            evaluation_dataset_id=workshop.public_id,
            now=datetime.now(UTC),
        ).id


def work(workshop: Any, job_id: str) -> None:
    status = run(workshop.settings, workshop.claim(job_id), stop=threading.Event(), trainers=TRAINERS)
    assert status == ExitStatus.ENDED


def test_a_paid_job_becomes_a_classifier_that_anybody_can_load(rdp_workshop: Any) -> None:
    workshop = rdp_workshop
    job_id = ask(workshop, estimator="gep", freeze="random", epochs=2.0, anchors_dataset_id=workshop.public_id)
    work(workshop, job_id)
    workshop.assert_settled(job_id, JobState.SUCCEEDED)
    with transaction(workshop.factory, read_only=True) as session:
        published = jobs.get_release(session, workshop.job(job_id).release_id)
    assert published.kind is ReleaseKind.CLASSIFIER
    directory = workshop.settings.data_dir / published.artifact_dir
    assert digest_directory(directory) == published.artifact_sha256
    assert {path.name for path in directory.iterdir()} == {
        "classifier.safetensors",
        "classifier.json",
        "privacy_card.json",
        "release.json",
    }
    assert published.summary["accuracy"]["classifier"] == pytest.approx(accuracy(load_classifier(directory)))
    assert published.summary["evaluation"]["test_images"] == 297
    assert published.card["epsilon"] <= 8.0
    assert math.isfinite(published.card["epsilon"])
    assert published.card["events"][0]["type"] == "poisson_gaussian"
    assert any(workshop.public_id in assumed for assumed in published.card["assumed_public"])
    with pytest.raises(Conflict, match="not a generator"):
        workshop.sample(published.id)


def test_a_job_publishes_its_extractor_with_the_classifier(rdp_workshop: Any) -> None:
    workshop = rdp_workshop
    write_extractor(folder_of(workshop.settings.data_dir))
    job_id = ask(workshop, **PRETRAINED)
    work(workshop, job_id)
    workshop.assert_settled(job_id, JobState.SUCCEEDED)
    with transaction(workshop.factory, read_only=True) as session:
        published = jobs.get_release(session, workshop.job(job_id).release_id)
    directory = workshop.settings.data_dir / published.artifact_dir
    described = json.loads((directory / "classifier.json").read_text())["extractor"]
    assert described["sha256"] == hashlib.sha256((directory / "extractor.safetensors").read_bytes()).hexdigest()
    assert described["sha256"] == extractor().sha256
    assert published.summary["accuracy"]["classifier"] == pytest.approx(accuracy(load_classifier(directory)))
    assert "the extractor tiny and every image that it was trained on" in published.card["assumed_public"]


def test_a_job_whose_extractor_is_gone_ends_before_anything_is_armed_or_paid(rdp_workshop: Any) -> None:
    workshop = rdp_workshop
    job_id = ask(workshop, **PRETRAINED)
    work(workshop, job_id)
    job, hold = workshop.job(job_id), workshop.hold(job_id)
    assert (job.state, job.failure_code) == (JobState.FAILED, FailureCode.TRAINING_FAILED)
    assert (hold.state, hold.charged_nano) == (HoldState.RELEASED, 0)
    assert workshop.balance().spent_nano == workshop.balance().held_nano == 0


def test_a_job_whose_anchors_are_not_public_after_all_reads_nothing(rdp_workshop: Any) -> None:
    workshop = rdp_workshop
    job_id = ask(workshop, estimator="gep", anchors_dataset_id=workshop.public_id)
    with transaction(workshop.factory) as session:
        job = jobs.get_job(session, job_id)
        job.plan = {**job.plan, "config": {**job.plan["config"], "anchors_dataset_id": workshop.dataset_id}}
    work(workshop, job_id)
    assert workshop.job(job_id).state is JobState.FAILED
    assert (workshop.hold(job_id).state, workshop.hold(job_id).charged_nano) == (HoldState.RELEASED, 0)
