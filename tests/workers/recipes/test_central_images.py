"""Central images: clipped sums of half-size images, divided by a public constant, with the noise that was paid for."""

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from privacy.accounting.events import PoissonGaussianEvent
from privacy.mechanisms.noise import SecureNoise
from privacy.mechanisms.sampling import NOBODY
from privacy.plans.private_steps import StepsConfig
from tests.workers.small_trainings import FACTS, SECRET, digits
from workers.recipes.dp_diffusion import _STEPS as STEPS
from workers.recipes.dp_diffusion import CentralConfig, noisy_central_images, private_sums
from workers.recipes.interface import TrainingData
from workers.recipes.records import Units

CONFIG = CentralConfig(10, 1, (4, 4), sensitivity=1.2, event=PoissonGaussianEvent(1.0, 0.5), expected_each=150.0)


def noisy_images(config: CentralConfig, data: TrainingData, units: Units | None = None) -> torch.Tensor:
    coins, noise = (SecureNoise.derive(SECRET, label) for label in ("coins", "noise"))
    return noisy_central_images(config, data, units or Units(FACTS, StepsConfig(), data), coins, noise)


def flat(images: npt.NDArray[np.uint8], labels: list[int], **more: Any) -> TrainingData:
    return TrainingData(images, np.array(labels, dtype=np.int64), tuple("0123456789"), **more)


def test_sums_are_those_of_a_slow_loop():
    data = digits(60)
    expected = np.zeros((10, 4, 4))
    for image, label in zip(data.private_images / 255.0, data.private_labels, strict=True):
        half = image.reshape(4, 2, 4, 2).mean(axis=(1, 3))
        expected[label] += half * min(1.0, CONFIG.sensitivity / np.linalg.norm(half))
    found = private_sums(CONFIG, data, np.arange(60), 1)[:, 0]
    np.testing.assert_allclose(found.numpy() / STEPS, expected, rtol=0, atol=60 / STEPS)  # a step for each image
    halved = data.private_images[0].reshape(4, 2, 4, 2).mean(axis=(1, 3)) / 255
    assert np.linalg.norm(halved) > CONFIG.sensitivity, "clips"


def test_the_brightest_image_attains_the_bound_and_a_subject_never_passes_it():
    white = np.full((7, 8, 8), 255, np.uint8)

    def norm(labels: list[int], records: list[int], rows_each: int) -> float:
        sums = private_sums(CONFIG, flat(white, labels), np.array(records), rows_each)
        assert sums.dtype == torch.int64
        return math.sqrt(int(sums.square().sum())) / STEPS  # exact but for the root

    assert CONFIG.sensitivity * 0.9999 < norm([0] * 7, [0], 1) <= CONFIG.sensitivity
    assert CONFIG.sensitivity * 0.999 < norm([3] * 7, list(range(7)), 7) <= CONFIG.sensitivity
    assert norm(list(range(7)), list(range(7)), 7) <= CONFIG.sensitivity
    assert norm([0] * 7, [NOBODY] * 7, 7) == 0


def test_sums_are_divided_by_a_public_constant_whatever_was_drawn(silent):
    grey = np.full((100, 8, 8), 51, np.uint8)  # 0.2 of full brightness, below the bound
    half, whole = (noisy_images(CONFIG, flat(grey[:n], [4] * n)) for n in (50, 100))
    torch.testing.assert_close(half[4], torch.full((1, 4, 4), 0.2 * 50 / 150))
    torch.testing.assert_close(whole[4], torch.full((1, 4, 4), 0.2 * 100 / 150))
    assert not half[[0, 1, 2, 3, 5, 6, 7, 8, 9]].any()


def test_the_noise_is_as_large_as_was_paid_for():
    """Measured where nothing is clamped: on sums of one half of full brightness."""
    config = dataclasses.replace(CONFIG, size=(8, 8), sensitivity=100.0, expected_each=400.0)
    config = dataclasses.replace(config, event=PoissonGaussianEvent(1.0, 0.2))
    data = flat(np.full((4000, 8, 8), 127, np.uint8), [label % 10 for label in range(4000)])
    error = (noisy_images(config, data) - 127 / 255) * 400.0
    deviation = float(error.std())
    assert error.numel() == 640
    assert 0.85 < deviation / (0.2 * 100.0) < 1.15


def test_a_sample_is_poisson_and_its_units_are_the_accounts():
    data, owners = digits(200), np.repeat(np.arange(20), 10)
    owned = TrainingData(data.private_images, data.private_labels, data.classes, owners)
    subjects = dataclasses.replace(FACTS, unit="subject", subjects_declared=20)
    units = Units(subjects, StepsConfig(records_per_subject=3), owned)
    rare = dataclasses.replace(CONFIG, event=PoissonGaussianEvent(1e-9, 1e-6))
    assert float(noisy_images(rare, owned, units).max()) < 1e-6, "nobody is drawn, and next to no noise is added"
    images = noisy_images(dataclasses.replace(CONFIG, event=PoissonGaussianEvent(1.0, 1e-6)), owned, units)
    total = float(images.sum()) * CONFIG.expected_each
    assert 0 < total <= 20 * CONFIG.sensitivity * 4, "twenty subjects, each at most C in L2, so 4 C in L1"
