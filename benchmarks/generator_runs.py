"""One training on a labelled folder, by the default or another variant, and what its images are worth."""

from __future__ import annotations

import secrets
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.budgets import NoLedger
from benchmarks.small_data import Folder, channels_first, facts_of
from models.portable.generator import Generator
from privacy.accounting.filter import open_filter
from privacy.plans.datalens.defaults import UNITS_PER_TEACHER_MIN
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import build_plan
from workers.evaluation.utility import train_and_test
from workers.recipes.interface import Run, TrainingData
from workers.recipes.registry import TRAINERS

DELTA = 1e-5
SAMPLES, SAMPLES_LARGE, LARGE, EPOCHS = 8000, 2500, 2000, 10  # fewer samples of images with 2,000 pixels or more
TODAY, PRIOR, OURS = "today", "prior", "ours"


def request_of(variant: str, declared: PublicFacts) -> tuple[str, dict[str, Any]]:
    """Return a variant's recipe and options.

    The former default is refused where few records are declared, so it gets as many teachers as it may have at most.
    The public-prior baseline releases class means alone, in the rule's coefficients; the prior says how pictures vary.
    """
    if variant == TODAY:
        return "datalens", {"preset": "fixed", "teachers": min(4000, declared.units_declared // UNITS_PER_TEACHER_MIN)}
    if variant == PRIOR:
        return "moments", {"mean_share": 1.0, "pooled_share": 0.0, "class_share": 0.0}
    return "moments", {}


def samples_of(folder: Folder) -> int:
    """How many synthetic images the classifier learns from: few large ones, for they take long."""
    return SAMPLES_LARGE if folder.images.shape[1] * folder.images.shape[2] >= LARGE else SAMPLES


def train(folder: Folder, variant: str, epsilon: float) -> tuple[Generator, Plan, float]:
    """Train one generator with a fresh secret; returns it, its plan and the seconds."""
    declared = facts_of(folder)
    privacy_filter = open_filter(epsilon, DELTA)
    plan = build_plan(*request_of(variant, declared), privacy_filter, privacy_filter.capacity_nano, declared)
    run = Run(
        plan=plan,
        facts=declared,
        data=TrainingData(folder.images, folder.labels, declared.classes),
        budget=NoLedger(),
        secret=secrets.token_bytes(32),
    )
    started = time.monotonic()
    generator = TRAINERS[plan.recipe](run)
    return generator, plan, time.monotonic() - started


def draw(generator: Generator, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return synthetic images (n, c, h, w) uint8 and their labels, uniform over the classes."""
    wanted = torch.arange(samples) % generator.config.classes
    stream = torch.Generator().manual_seed(seed)
    drawn = torch.cat([generator.sample(part, stream) for part in torch.split(wanted, 2000)])
    return (drawn * 255).round().byte(), wanted


def accuracy_of(images: Tensor, labels: Tensor, folder: Folder, seed: int) -> float:
    """Accuracy on the folder's test images of the CNN that was trained on given ones."""
    test = channels_first(folder.test_images)
    truth = torch.from_numpy(folder.test_labels)
    classes = len(folder.classes)
    epochs = max(1, EPOCHS * samples_of(folder) // len(labels))  # real folders are seen as often as synthetic images
    return train_and_test("cnn", images, labels, test, truth, classes=classes, seed=seed, epochs=epochs).accuracy


def tiled(images: Tensor, labels: Tensor, classes: int) -> npt.NDArray[np.uint8]:
    """Return images (n, c, h, w) uint8 beside each other, one row for each class: (classes * h, n / classes * w, c)."""
    rows = [images[labels == label].permute(0, 2, 3, 1).numpy() for label in range(classes)]
    return np.concatenate([np.concatenate(list(row), axis=1) for row in rows])
