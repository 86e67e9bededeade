"""The classifier and the diffusion recipe: pay before they sample, resume to the same weights, become releases."""

import dataclasses
import hashlib
import json
import math
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from models.extractor import ExtractorUnusable
from models.portable.edm import SIGMA_MAX, EdmConfig, EdmDenoiser, noisy_rows
from models.private_classifier import PrivateClassifier, load_classifier
from obscura.wire.words import HoldState, JobState, ReleaseKind
from privacy.accounting.events import PoissonGaussianEvent
from privacy.accounting.filter import open_filter
from privacy.mechanisms.noise import SecureNoise
from privacy.mechanisms.partition import NOBODY
from privacy.plans.dp_diffusion import CENTRAL, DpDiffusionConfig
from privacy.plans.plan import PublicFacts
from privacy.plans.private_steps import STEPS, StepsConfig
from privacy.plans.registry import build_plan
from privacy.plans.warm_start import BY_CLASS, MEANS, POOLED
from service.errors import Conflict
from service.jobs import FailureCode
from tests.models.small_extractors import extractor, write_extractor
from tests.workers import small_trainings as small
from tests.workers.recipes.conftest import BLOCK
from workers.recipes import dp_diffusion
from workers.recipes.dp_classifier import FEATURES
from workers.recipes.dp_diffusion import CentralConfig
from workers.recipes.interface import Cancelled, TrainingData, load_checkpoint
from workers.recipes.records import Units

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
    with pytest.raises(ExtractorUnusable, match="tiny is not installed"):
        small.train(classifier_plan(**PRETRAINED), small.digits(50), budget=purse)
    other = classifier_plan(**{**PRETRAINED, "extractor": "other"})
    with pytest.raises(ExtractorUnusable, match="other is not installed"):
        small.train(other, with_extractor(small.digits(50)), budget=purse)
    assert purse.paid == []


def test_a_training_goes_on_with_the_extractor_that_it_began_with_alone():
    plan, data, folder = classifier_plan(FEW, **ON_FEW), with_extractor(small.digits(100)), small.Memory()
    whole = small.weights(small.train(plan, data, FEW).head)
    with pytest.raises(Cancelled):
        small.train(plan, data, FEW, checkpoints=folder, progress=small.stop_at(7, STEPS))
    purse = small.Purse()
    with pytest.raises(ExtractorUnusable, match="has changed since"):
        small.train(plan, with_extractor(small.digits(100), seed=1), FEW, checkpoints=folder, budget=purse)
    assert purse.paid == []
    assert torch.equal(small.weights(small.train(plan, data, FEW, checkpoints=folder).head), whole)


def ask(workshop: Any, **options: Any) -> str:
    options = {**small.SMALL["dp_classifier"], **options}
    return workshop.train(recipe="dp_classifier", epsilon=8.0, evaluate=True, **options)


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
    assert published.card["accounting"]["events"][0]["type"] == "poisson_gaussian"
    assumed = published.card["assumed_public"]
    assert any(workshop.public_id in each for each in assumed)
    assert "the extractor tiny and every image that it was trained on" in assumed
    assert f"the stated class fractions: {shares}" in assumed
    with pytest.raises(Conflict, match="not a generator"):
        workshop.sample(published.id)


def test_a_job_whose_extractor_is_gone_ends_before_anything_is_armed_or_paid(workshop):
    job_id = ask(workshop, **PRETRAINED)
    small.work(workshop, job_id)
    job, hold = workshop.job(job_id), workshop.hold(job_id)
    assert (job.state, job.failure_code) == (JobState.FAILED, FailureCode.TRAINING_FAILED)
    assert (hold.state, hold.charged_nano) == (HoldState.RETURNED, 0)
    assert workshop.balance().spent_nano == workshop.balance().reserved_nano == 0


# --- diffusion --------------------------------------------------------------------------------------------------------


OPTIONS = small.SMALL["dp_diffusion"]
diffusion_plan = partial(small.small_plan, "dp_diffusion")


def test_the_rows_of_a_record_differ_in_noise_alone(monkeypatch):
    seen, original = [], dp_diffusion.noisy_rows

    def watched(images: torch.Tensor, *more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        made = original(images, *more)
        seen.append((images, made[0][:, 1, 0, 0]))
        return made

    monkeypatch.setattr(dp_diffusion, "noisy_rows", watched)
    small.train(diffusion_plan(multiplicity=3), small.digits(300))
    images, sigma = seen[-1]  # the first are public rows
    assert len(images) % 3 == 0
    records = images.reshape(-1, 3, 64)
    assert torch.equal(records[:, 0], records[:, 2])
    assert len(torch.unique(sigma)) == len(sigma)


# --- central images -------------------------------------------------------------------------------------------------

CENTRAL_CONFIG = CentralConfig(10, 1, (4, 4), 1.2, PoissonGaussianEvent(1.0, 0.5), expected_each=150.0)


def noisy_images(config: CentralConfig, data: TrainingData, units: Units | None = None) -> torch.Tensor:
    units = units or Units(small.FACTS, StepsConfig(), data)
    return dp_diffusion.noisy_central_images(config, data, units, small.secret("coins"), small.secret("noise"))


def flat(images: npt.NDArray[np.uint8], labels: list[int], **more: Any) -> TrainingData:
    return TrainingData(images, np.array(labels, dtype=np.int64), tuple("0123456789"), **more)


def test_sums_are_those_of_a_slow_loop():
    data = small.digits(60)
    expected = np.zeros((10, 4, 4))
    for image, label in zip(data.private_images / 255.0, data.private_labels, strict=True):
        half = image.reshape(4, 2, 4, 2).mean(axis=(1, 3))
        expected[label] += half * min(1.0, CENTRAL_CONFIG.sensitivity / np.linalg.norm(half))
    found = dp_diffusion.private_sums(CENTRAL_CONFIG, data, np.arange(60), 1)[:, 0]
    step = 1 / dp_diffusion._STEPS
    np.testing.assert_allclose(found.numpy() * step, expected, rtol=0, atol=60 * step)  # a step for each image
    halved = data.private_images[0].reshape(4, 2, 4, 2).mean(axis=(1, 3)) / 255
    assert np.linalg.norm(halved) > CENTRAL_CONFIG.sensitivity, "clips"


def test_the_brightest_image_attains_the_bound_and_a_subject_never_passes_it():
    white = np.full((7, 8, 8), 255, np.uint8)

    def norm(labels: list[int], records: list[int], rows_each: int) -> float:
        sums = dp_diffusion.private_sums(CENTRAL_CONFIG, flat(white, labels), np.array(records), rows_each)
        assert sums.dtype == torch.int64
        return math.sqrt(int(sums.square().sum())) / dp_diffusion._STEPS  # exact but for the root

    assert CENTRAL_CONFIG.sensitivity * 0.9999 < norm([0] * 7, [0], 1) <= CENTRAL_CONFIG.sensitivity
    assert CENTRAL_CONFIG.sensitivity * 0.999 < norm([3] * 7, list(range(7)), 7) <= CENTRAL_CONFIG.sensitivity
    assert norm(list(range(7)), list(range(7)), 7) <= CENTRAL_CONFIG.sensitivity
    assert norm([0] * 7, [NOBODY] * 7, 7) == 0


def test_sums_are_divided_by_a_public_constant_whatever_was_drawn(silent):
    grey = np.full((100, 8, 8), 51, np.uint8)  # 0.2 of full brightness, below the bound
    half, whole = (noisy_images(CENTRAL_CONFIG, flat(grey[:n], [4] * n)) for n in (50, 100))
    torch.testing.assert_close(half[4], torch.full((1, 4, 4), 0.2 * 50 / 150))
    torch.testing.assert_close(whole[4], torch.full((1, 4, 4), 0.2 * 100 / 150))
    assert not half[[0, 1, 2, 3, 5, 6, 7, 8, 9]].any()


def test_the_noise_is_as_large_as_was_paid_for():
    """Measured where nothing is clamped: on sums of one half of full brightness."""
    config = dataclasses.replace(CENTRAL_CONFIG, size=(8, 8), sensitivity=100.0, expected_each=400.0)
    config = dataclasses.replace(config, event=PoissonGaussianEvent(1.0, 0.2))
    data = flat(np.full((4000, 8, 8), 127, np.uint8), [label % 10 for label in range(4000)])
    error = (noisy_images(config, data) - 127 / 255) * 400.0
    deviation = float(error.std())
    assert error.numel() == 640
    assert 0.85 < deviation / (0.2 * 100.0) < 1.15


def test_a_sample_is_poisson_and_its_units_are_the_accounts():
    data, owners = small.digits(200), np.repeat(np.arange(20), 10)
    owned = TrainingData(data.private_images, data.private_labels, data.classes, owners)
    subjects = dataclasses.replace(small.FACTS, unit="subject", subjects_declared=20)
    units = Units(subjects, StepsConfig(records_per_subject=3), owned)
    rare = dataclasses.replace(CENTRAL_CONFIG, event=PoissonGaussianEvent(1e-9, 1e-6))
    assert float(noisy_images(rare, owned, units).max()) < 1e-6, "nobody is drawn, and next to no noise is added"
    images = noisy_images(dataclasses.replace(CENTRAL_CONFIG, event=PoissonGaussianEvent(1.0, 1e-6)), owned, units)
    total = float(images.sum()) * CENTRAL_CONFIG.expected_each
    assert 0 < total <= 20 * CENTRAL_CONFIG.sensitivity * 4, "twenty subjects, each at most C in L2, so 4 C in L1"


def test_warm_up_alone_already_draws_the_classes():
    released = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    released[0, 0, :2] = released[1, 0, 6:] = 255
    config = DpDiffusionConfig(**{**OPTIONS, "central_steps": 120, "central_learning_rate": 5e-3})
    denoiser = EdmDenoiser(EdmConfig(2, 1, 8, 8, 8, 1, 20, 0.0, 0.0))
    dp_diffusion.warm_up(denoiser, config, released, torch.arange(2), lambda **_: None)
    labels = torch.arange(20) % 2
    images = denoiser.sample(labels, torch.Generator().manual_seed(1))
    above = images[:, 0, :4].mean(dim=(1, 2)) > images[:, 0, 4:].mean(dim=(1, 2))
    assert float((above == (labels == 0)).float().mean()) >= 0.9


def test_each_central_image_is_kept_as_soon_as_it_is_there_and_fewer_are_enough():
    """What a crash takes away is paid for again, once; after that the training goes on with the images it has."""
    plan, folder = diffusion_plan(central_images=3), small.Memory()
    assert plan.stages[0].repeats == 1
    with pytest.raises(Cancelled):
        small.train(plan, small.digits(300), checkpoints=folder, progress=small.stop_at(2, CENTRAL))
    assert len(load_checkpoint(folder)["start"]) == 2
    poor = small.Purse(closed=(CENTRAL,))
    small.train(plan, small.digits(300), budget=poor, checkpoints=folder, attempt=2)
    assert poor.releases(CENTRAL) == 0
    assert poor.releases(STEPS) == plan.stages[1].event.count


def test_central_images_change_where_the_steps_start():
    plan = small.nearly_without_noise(diffusion_plan(central_images=2))
    first, second = (small.train(plan, small.digits(300), budget=small.Purse(2), attempt=attempt) for attempt in (1, 2))
    assert not torch.equal(small.weights(first), small.weights(second)), "other noise, other central images, no step"


# --- moments ----------------------------------------------------------------------------------------------------------

MOMENTS: dict[str, Any] = {"moments_fraction": 0.3, "moments_steps": 3, "moments_batch": 20, "start_sigma": 0.5}


@pytest.mark.parametrize("start_sigma", [0.0, 0.05])
def test_drawing_may_begin_at_an_image_of_the_classes_gaussian(start_sigma):
    plan = diffusion_plan(**{**MOMENTS, "start_sigma": start_sigma})
    denoiser = small.train(small.nearly_without_noise(plan), small.digits(1500), budget=small.Purse(2))
    labels = torch.arange(200) % 10
    begun = denoiser.first.sample(labels, torch.Generator().manual_seed(0))
    drawn = denoiser.sample(labels, torch.Generator().manual_seed(0))
    own = [float((drawn[labels == a].mean(0) - begun[labels == a].mean(0)).square().mean()) for a in range(10)]
    assert (max(own) < 0.02) == (start_sigma > 0), "an untrained denoiser leaves an image nearly as it is"


def test_moments_have_texture_where_the_recipe_has_it_at_their_price():
    facts = PublicFacts(tuple("0123456789"), 28, 28, 1, 60_000, "record")
    names = []
    for epsilon in (0.1, 10.0):
        privacy_filter = open_filter(epsilon, 1e-5)
        options = {"preset": "fashion_mnist_moments"}
        plan = build_plan("dp_diffusion", options, privacy_filter, privacy_filter.capacity_nano, facts)
        moments, _ = plan.config_of(DpDiffusionConfig).moments(plan.budget_nano, facts)
        names.append(([stage.name for stage in plan.stages], moments.texture))
    assert names == [([MEANS, POOLED, BY_CLASS, STEPS], False), ([MEANS, POOLED, BY_CLASS, STEPS], True)]


def test_examples_are_of_all_classes_and_within_their_bounds(monkeypatch):
    monkeypatch.setattr(dp_diffusion, "_EXAMPLES_AT_ONCE", 30)
    config = DpDiffusionConfig(**{**OPTIONS, **MOMENTS, "moments_steps": 5})
    denoiser = EdmDenoiser(EdmConfig(3, 1, 8, 8, 8, 1, 20, 0.0, 0.0, start_latent=2))
    denoiser.first.mean += torch.tensor([0.2, 0.5, 0.8])[:, None]
    seen: list[int] = []
    images, labels = dp_diffusion.drawn_examples(denoiser, config, lambda **_: seen.append(1))
    assert (images.shape, images.dtype, len(seen)) == ((100, 1, 8, 8), torch.uint8, 4)
    assert torch.equal(images[:, 0, 0, 0], torch.tensor([51, 128, 204], dtype=torch.uint8)[labels])
    monkeypatch.setattr(dp_diffusion, "_EXAMPLE_BYTES_MAX", 640)
    assert len(dp_diffusion.drawn_examples(denoiser, config, lambda **_: None)[0]) == 10
    with pytest.raises(Cancelled):
        dp_diffusion.drawn_examples(denoiser, config, small.stop_at(0, dp_diffusion.WARM_UP))


def test_noise_levels_above_the_start_are_not_learned():
    images, labels = torch.zeros(500, 1, 4, 4), torch.zeros(500, dtype=torch.int64)
    for largest in (0.1, 1.0, SIGMA_MAX):
        rows, _ = noisy_rows(images, labels, 1, 0.0, torch.Generator().manual_seed(0), largest)
        sigma = rows[:, 1, 0, 0]
        assert float(sigma.max()) <= largest
        assert float(sigma.max()) > min(largest, 5.0) * 0.9
        assert float(sigma.min()) < 0.02
