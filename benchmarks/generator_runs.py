"""One training on a labelled folder, by the default or another variant, and what its images are worth."""

from __future__ import annotations

import platform
import secrets
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.budgets import CountedBudget
from benchmarks.small_data import Folder, channels_first, facts_of
from models.released import ReleasedGenerator
from privacy.accounting.filter import open_filter
from privacy.plans.plan import Plan
from privacy.plans.registry import build_plan
from workers.evaluation.utility import train_and_test
from workers.recipes.interface import Run, TrainingData
from workers.recipes.registry import TRAINERS

DELTA, CPU = 1e-5, torch.device("cpu")
SAMPLES, SAMPLES_LARGE, LARGE, EPOCHS = 8000, 2500, 2000, 10  # fewer samples of images with 2,000 pixels or more
PRIOR, OURS, PUBLISHED = "prior", "ours", "published"


def here() -> tuple[torch.device, str]:
    """Return what to compute on, a GPU where there is one, and what a row says of it."""
    if torch.cuda.is_available():
        return torch.device("cuda"), torch.cuda.get_device_name()
    return CPU, f"{platform.machine()} CPU"


def request_of(variant: str) -> tuple[str, dict[str, Any]]:
    """Return a variant's recipe and options.

    The public-prior baseline releases class means alone, in the rule's coefficients; the prior says how pictures vary.
    """
    if variant == PUBLISHED:
        return "datalens", {"preset": "published"}
    if variant == PRIOR:
        return "moments", {"mean_share": 1.0, "pooled_share": 0.0, "class_share": 0.0}
    return "moments", {}


def samples_of(folder: Folder) -> int:
    """How many synthetic images the classifier learns from: few large ones, for they take long."""
    return SAMPLES_LARGE if folder.images.shape[1] * folder.images.shape[2] >= LARGE else SAMPLES


def trained(
    folder: Folder,
    recipe: str,
    options: Mapping[str, Any],
    epsilon: float,
    *,
    delta: float = DELTA,
    device: torch.device = CPU,
) -> tuple[ReleasedGenerator, Plan, float]:
    """Train one generator with a fresh secret and all of a budget; returns it, its plan and the seconds."""
    declared, account, budget = facts_of(folder), open_filter(epsilon, delta), CountedBudget()
    plan = build_plan(recipe, options, account, account.capacity_nano, declared)
    data = TrainingData(folder.images, folder.labels, declared.classes)
    started = time.monotonic()
    generator: ReleasedGenerator = TRAINERS[recipe](  # type: ignore[assignment]  # it publishes a generator
        Run(plan=plan, facts=declared, data=data, budget=budget, secret=secrets.token_bytes(32), device=device)
    )
    if budget.releases != {stage.name: stage.event.count for stage in plan.stages}:
        raise RuntimeError("a training released something else than its plan says")
    return generator, plan, time.monotonic() - started


def train(folder: Folder, variant: str, epsilon: float) -> tuple[ReleasedGenerator, Plan, float]:
    """Train a variant; see `trained`."""
    return trained(folder, *request_of(variant), epsilon)


def draw(
    generator: ReleasedGenerator, classes: int, samples: int, seed: int, device: torch.device = CPU
) -> tuple[Tensor, Tensor]:
    """Return synthetic images (n, c, h, w) uint8 and their labels, uniform over the classes."""
    wanted, stream = torch.arange(samples) % classes, torch.Generator().manual_seed(seed)
    generator.to(device)
    drawn = [generator.sample(part.to(device), stream).cpu() for part in torch.split(wanted, 2000)]
    return (torch.cat(drawn) * 255).round().byte(), wanted


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
