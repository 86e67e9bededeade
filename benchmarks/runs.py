"""Train a recipe on a labelled folder without a service, and measure what its images or its classifier are worth."""

from __future__ import annotations

import dataclasses
import platform
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.small_data import Folder, channels_first, facts_of
from models.private_classifier import PrivateClassifier
from models.released import ReleasedGenerator
from privacy.accounting.filter import open_filter
from privacy.plans.plan import Plan, PlanBudget
from privacy.plans.registry import build_plan
from workers.evaluation.utility import train_and_test
from workers.recipes.interface import Run, TrainingData
from workers.recipes.registry import TRAINERS

if TYPE_CHECKING:
    from privacy.accounting.events import Event

DELTA, CPU = 1e-5, torch.device("cpu")
SAMPLES, SAMPLES_LARGE, LARGE, EPOCHS = 8000, 2500, 2000, 10  # fewer samples of images with 2,000 pixels or more
NO_NOISE = 1e-6  # noise multiplier: as many grid steps, and nothing next to a gradient
MOMENTS: tuple[str, dict[str, Any]] = ("moments", {})
PUBLISHED: tuple[str, dict[str, Any]] = ("datalens", {"preset": "published"})


class NoLedger:
    """A budget that charges nothing: benchmarks train on public images."""

    def charge(self, event: Event, stage: str) -> None: ...


def here() -> tuple[torch.device, str]:
    """Return the device to compute on, a GPU if there is one, and its name for a row."""
    if torch.cuda.is_available():
        return torch.device("cuda"), torch.cuda.get_device_name()
    return CPU, f"{platform.machine()} CPU"


def plan_of(folder: Folder, recipe: str, options: Mapping[str, Any], epsilon: float, delta: float = DELTA) -> Plan:
    """Plan a training that spends the whole budget."""
    account = open_filter(epsilon, delta)
    return build_plan(recipe, options, account, account.capacity_nano, facts_of(folder))


def steps_plan(folder: Folder, options: dict[str, Any], epsilon: float, seed: int, steps: int) -> Plan:
    """Plan so many steps of `dp_classifier` at delta 1e-5."""
    epochs = (steps - 0.5) * options["expected_batch"] / len(folder.images)
    return plan_of(folder, "dp_classifier", {**options, "epochs": epochs, "initial_seed": seed}, epsilon)


def without_noise(plan: Plan) -> Plan:
    """Return the same steps, samples and clips with next to no noise: not private, an upper bound."""
    (stage,) = plan.stages
    quiet = dataclasses.replace(stage, event=dataclasses.replace(stage.event, noise_multiplier=NO_NOISE))
    return dataclasses.replace(plan, stages=(quiet,))


def train_plan(folder: Folder, plan: Plan, anchors: npt.NDArray[np.uint8] | None = None) -> Any:
    """Train by a plan with a fresh secret and return what would be released."""
    declared = facts_of(folder)
    data = TrainingData(folder.images, folder.labels, declared.classes, public_anchors=anchors)
    budget, secret = PlanBudget(plan.stages), secrets.token_bytes(32)
    run = Run(plan=plan, facts=declared, data=data, budget=budget, secret=secret, device=here()[0])
    return TRAINERS[plan.recipe](run)


def trained(
    folder: Folder, recipe: str, options: Mapping[str, Any], epsilon: float, delta: float = DELTA
) -> tuple[ReleasedGenerator, Plan, float]:
    """Train a generator with a whole budget; return it, its plan and the seconds."""
    plan, started = plan_of(folder, recipe, options, epsilon, delta), time.monotonic()
    return train_plan(folder, plan), plan, time.monotonic() - started


def draw(generator: ReleasedGenerator, classes: int, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return synthetic images (n, c, h, w) uint8 and their labels, uniform over the classes."""
    labels, stream, device = torch.arange(samples) % classes, torch.Generator().manual_seed(seed), here()[0]
    generator.to(device)
    drawn = [generator.sample(part.to(device), stream).cpu() for part in torch.split(labels, 2000)]
    return (torch.cat(drawn) * 255).round().byte(), labels


def tests_of(folder: Folder) -> tuple[Tensor, Tensor]:
    """Return the test images (n, c, h, w) uint8 and their labels (n,)."""
    return channels_first(folder.test_images), torch.from_numpy(folder.test_labels)


def samples_of(folder: Folder) -> int:
    """Return how many synthetic images a small folder's classifier learns: fewer if they are large."""
    return SAMPLES_LARGE if folder.images.shape[1] * folder.images.shape[2] >= LARGE else SAMPLES


def small_accuracy(images: Tensor, labels: Tensor, folder: Folder, seed: int) -> float:
    """Return the test accuracy of the CNN after ten epochs; real images are seen as often as synthetic ones."""
    epochs = max(1, EPOCHS * samples_of(folder) // len(labels))
    classes = len(folder.classes)
    return train_and_test("cnn", images, labels, *tests_of(folder), classes=classes, seed=seed, epochs=epochs).accuracy


def accuracy(classifier: PrivateClassifier, folder: Folder) -> float:
    """Return the share of test images that a classifier recognises."""
    test, truth = tests_of(folder)
    return float((classifier.predict(test) == truth).double().mean())


def tiled(images: Tensor, labels: Tensor, classes: int) -> npt.NDArray[np.uint8]:
    """Return images (n, c, h, w) uint8 side by side, one row for each class: (classes * h, n / classes * w, c)."""
    rows = [images[labels == label].permute(0, 2, 3, 1).numpy() for label in range(classes)]
    return np.concatenate([np.concatenate(list(row), axis=1) for row in rows])
