"""What the tests of the generator recipes share: digits, a purse, a checkpoint in memory, and how to train on them."""

from __future__ import annotations

import dataclasses
import io
from typing import Any, BinaryIO

import numpy as np
import torch
from sklearn.datasets import load_digits

from models.released import ReleasedGenerator
from privacy.accounting.events import PoissonGaussianEvent
from privacy.accounting.filters import open_filter
from privacy.errors import BudgetExceeded
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import build_plan
from workers.recipes.interface import Cancelled, TrainingData
from workers.recipes.registry import TRAINERS

RDP = open_filter("rdp", 8.0, 1e-5)
SECRET = bytes(range(32))
DIGITS = tuple(str(digit) for digit in range(10))
FACTS = PublicFacts(DIGITS, 8, 8, 1, 1500, "record")


class Purse:
    """A budget that writes down what was paid for, and refuses when it is empty."""

    def __init__(self, releases: int = 10**6) -> None:
        self.left, self.paid = releases, list[tuple[str, PoissonGaussianEvent]]()

    def charge(self, event: Any, stage: str) -> None:
        if self.left < event.count:
            raise BudgetExceeded(1, 0)
        self.left -= event.count
        self.paid.append((stage, event))

    def releases(self, stage: str) -> int:
        return sum(event.count for paid, event in self.paid if paid == stage)


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


TWO = PublicFacts(("zero", "one"), 8, 8, 1, 300, "record")


def zeros_and_ones() -> TrainingData:
    """The first 300 digits of two classes."""
    found = digits(1797)
    chosen = np.flatnonzero(found.private_labels < 2)[:300]
    return TrainingData(found.private_images[chosen], found.private_labels[chosen], TWO.classes)


def plan_of(recipe: str, options: dict[str, Any], facts: PublicFacts = FACTS, epsilon: float = 8.0) -> Plan:
    return build_plan(recipe, options, RDP, RDP.nano_of(epsilon), facts)


def nearly_without_noise(plan: Plan) -> Plan:
    """The plan with noise so small that only learning is tested. No filter would sell it at this price."""
    return dataclasses.replace(
        plan,
        stages=tuple(
            dataclasses.replace(stage, event=dataclasses.replace(stage.event, noise_multiplier=0.05))
            for stage in plan.stages
        ),
    )


def train(plan: Plan, data: TrainingData, facts: PublicFacts = FACTS, **changes: Any) -> Any:
    given: dict[str, Any] = {
        "budget": Purse(),
        "secret": SECRET,
        "attempt": 1,
        "progress": lambda **_: None,
        "checkpoint_dir": Memory(),
        "device": torch.device("cpu"),
        **changes,
    }
    return TRAINERS[plan.recipe](plan, facts, data, **given)


def weights(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in network.state_dict().values()])


def stop_at(when: int, at_stage: str) -> Any:
    """A progress that stops the training when a stage has made so many steps."""

    def progress(*, stage: str, step: int, steps: int) -> None:
        if (stage, step) == (at_stage, when):
            raise Cancelled

    return progress


def share_nearest_to_own_class(generator: ReleasedGenerator, classes: int = 10, count: int = 200) -> float:
    """The share of drawn images that lie nearer to the mean of their own class than to that of any other."""
    found = load_digits()
    means = np.stack([found.images[found.target == label].mean(axis=0) for label in range(classes)]) / 16
    labels = torch.arange(count) % classes
    images = generator.sample(labels, torch.Generator().manual_seed(1)).flatten(1)
    nearest = torch.cdist(images, torch.from_numpy(means).float().flatten(1)).argmin(dim=1)
    return float((nearest == labels).float().mean())
