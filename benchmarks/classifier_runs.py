"""One training of the recipe `dp_classifier` on a labelled folder, with its noise or without it, and its accuracy."""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.small_data import Folder, channels_first, facts_of
from models.private_classifier import PrivateClassifier
from privacy.accounting.filter import open_filter
from privacy.plans.plan import Plan, PlanBudget
from privacy.plans.registry import build_plan
from workers.recipes.dp_classifier import train
from workers.recipes.interface import Run, TrainingData

DELTA = 1e-5
NO_NOISE = 1e-6  # noise deviation over sensitivity: of as many grid steps, and nothing beside a gradient


def first(folder: Folder, n: int) -> Folder:
    """Keep the first n of the private images."""
    return dataclasses.replace(folder, images=folder.images[:n], labels=folder.labels[:n])


def tuning(folder: Folder, n: int, test: int) -> Folder:
    """Keep the first n of the private images, and put the last ones of them in the place of the test images."""
    if n + test > len(folder.images):
        raise ValueError(f"{n} images to train on and {test} held out are more than {len(folder.images)}")
    held = dataclasses.replace(folder, test_images=folder.images[-test:], test_labels=folder.labels[-test:])
    return first(held, n)


def plan_of(folder: Folder, options: dict[str, Any], epsilon: float, seed: int, steps: int) -> Plan:
    """Plan so many steps at a budget (delta is 1e-5)."""
    account = open_filter(epsilon, DELTA)
    epochs = (steps - 0.5) * options["expected_batch"] / len(folder.images)
    chosen = {**options, "epochs": epochs, "initial_seed": seed}
    return build_plan("dp_classifier", chosen, account, account.capacity_nano, facts_of(folder))


def without_noise(plan: Plan) -> Plan:
    """Return a plan of the same steps, samples and clips whose noise is next to none: no privacy, a ceiling."""
    (stage,) = plan.stages
    return dataclasses.replace(
        plan, stages=(dataclasses.replace(stage, event=dataclasses.replace(stage.event, noise_multiplier=NO_NOISE)),)
    )


def trained(
    folder: Folder, plan: Plan, anchors: npt.NDArray[np.uint8] | None = None, secret: bytes | None = None
) -> PrivateClassifier:
    """Train by a plan, with a fresh secret unless one is given."""
    return train(
        Run(
            plan=plan,
            facts=facts_of(folder),
            data=TrainingData(folder.images, folder.labels, folder.classes, public_anchors=anchors),
            budget=PlanBudget(plan.stages),
            secret=secret or secrets.token_bytes(32),
            device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        )
    )


def accuracy(classifier: PrivateClassifier, folder: Folder) -> float:
    """Return the share of test images that a classifier recognises."""
    found = classifier.predict(channels_first(folder.test_images))
    return float((found == torch.from_numpy(folder.test_labels)).double().mean())
