"""Trainings of moments on 1,797 digits, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.portable.generator import Generator
from privacy.accounting.filter import open_filter
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import build_plan
from service.storage.folder import FolderStorage
from tests.workers.small_trainings import DIGITS, SECRET, Purse, digits
from workers.recipes.interface import Run, TrainingData
from workers.recipes.registry import TRAINERS
from workers.train.orders import SealedFolder

FACTS = PublicFacts(DIGITS, 8, 8, 1, 1797, "record")
ACCOUNT = open_filter(1.0, 1e-5)


def moments_plan(facts: PublicFacts = FACTS, **options: Any) -> Plan:
    small = {"components": 10, "frequencies": 6, "mean_share": 0.1, "pooled_share": 0.45, "class_share": 0.45}
    return build_plan("moments", {**small, "texture": False, **options}, ACCOUNT, ACCOUNT.capacity_nano, facts)


def work_in(directory: Path) -> SealedFolder:
    return SealedFolder(FolderStorage(directory), "work", bytes(32), "test")


@pytest.fixture(scope="module")
def data() -> TrainingData:
    return digits(None)


@pytest.fixture
def train(data: TrainingData, tmp_path: Path) -> Callable[..., Generator]:
    def trained(plan: Plan, purse: Purse | None = None, **changes: Any) -> Generator:
        options = {"data": data, "facts": FACTS, "secret": SECRET, "checkpoints": work_in(tmp_path / "work"), **changes}
        made: Generator = TRAINERS[plan.recipe](Run(plan=plan, budget=purse or Purse(), **options))
        return made

    return trained
