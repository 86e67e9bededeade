"""Trainings of the recipe on digits, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from models.portable.generator import Generator
from privacy.plans.plan import Plan
from tests.workers.recipes.moments_trainings import FACTS, SECRET, Purse, work_in
from workers.recipes.interface import Run, TrainingData
from workers.recipes.registry import TRAINERS


@pytest.fixture(scope="module")
def data() -> TrainingData:
    digits = load_digits()
    images = (digits.images * (255 / 16)).astype(np.uint8)  # (1797, 8, 8)
    return TrainingData(images, digits.target.astype(np.int64), FACTS.classes)


@pytest.fixture
def train(data: TrainingData, tmp_path: Path) -> Callable[..., Generator]:
    def trained(plan: Plan, purse: Purse | None = None, **changes: Any) -> Generator:
        options: dict[str, Any] = {
            "data": data,
            "facts": FACTS,
            "secret": SECRET,
            "checkpoints": work_in(tmp_path / "work"),
            **changes,
        }
        return TRAINERS[plan.recipe](Run(plan=plan, budget=purse or Purse(), **options))

    return trained
