"""Trainings of moments on 1,797 digits, each in a folder of its own, and the change that one image makes to a sum."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from models.portable.generator import Generator
from privacy.accounting.events import PoissonGaussianEvent
from privacy.accounting.filter import open_filter
from privacy.gradients.build import build_estimator
from privacy.gradients.estimator import Curator
from privacy.gradients.per_sample import trace_gradients
from privacy.plans.moments import MomentsConfig
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.private_steps import FreezeSchedule, StepsConfig
from privacy.plans.registry import build_plan
from privacy.plans.warm_start import CLUSTER_ROUNDS, CLUSTERS, COUNT_WEIGHT, MEANS, POOLED, QUANTISATION, action_of
from service.storage.folder import FolderStorage
from tests.workers.small_trainings import DIGITS, SECRET, Constant, Purse, digits
from workers.recipes.interface import Run, TrainingData, TrustedCurator
from workers.recipes.private_steps import PrivateSteps, Task
from workers.recipes.registry import TRAINERS
from workers.recipes.released_sums import Kept
from workers.recipes.warm_start import NoiseScales, warm_start
from workers.train.orders import SealedFolder

FACTS = PublicFacts(DIGITS, 8, 8, 1, 1797, "record")
ACCOUNT = open_filter(1.0, 1e-5)


def moments_plan(facts: PublicFacts = FACTS, **options: Any) -> Plan:
    small = {"components": 10, "frequencies": 6, "mean_share": 0.1, "pooled_share": 0.45, "class_share": 0.45}
    return build_plan("moments", {**small, "texture": False, **options}, ACCOUNT, ACCOUNT.capacity_nano, facts)


def work_in(directory: Path) -> SealedFolder:
    return SealedFolder(FolderStorage(directory), "work", bytes(32), "test")


def change_by_one(
    config: MomentsConfig, facts: PublicFacts, stage: str, images: npt.NDArray[np.uint8]
) -> tuple[float, Constant]:
    """Return by how much the last image changes the integers of a stage, and the noise of that stage.

    All the way from pixels; other releases, made before, stay as they are.
    """
    name, classes, action = stage.partition(" ")[0], len(facts.classes), action_of(config, facts)
    clip = {MEANS: config.mean_clip, POOLED: config.deviation_clip}.get(name, config.component_clip)
    clip *= math.sqrt(facts.pixels / 784)
    counting = name in (MEANS, CLUSTERS)
    noise = Constant(1 << 40 if counting else 0)  # keeps counts away from their lower bound
    rows, components = classes * config.clusters, 1 + config.class_size(facts)
    earlier = {
        MEANS: np.column_stack([np.full(classes, 100.0), np.zeros((classes, len(action.blocks()[0][0])))]),
        POOLED: np.diag(np.geomspace(5000, 1, len(action.across))),
    }
    for number in range(1, CLUSTER_ROUNDS + 1):
        earlier[f"{CLUSTERS} {number}"] = np.random.default_rng(number).normal(5, 1, (rows, components))
    earlier.pop(stage, None)

    def integers(count: int) -> npt.NDArray[np.float64]:
        found: dict[str, Any] = {}
        releases = Kept(earlier, lambda drawn: noise if drawn == stage else Constant(), found.update)
        labels = np.zeros(count, dtype=np.int64)
        scales = NoiseScales(10.0, 10.0, 10.0, 10.0 if config.clusters > 1 else None)
        warm_start(images[:count], labels, config, facts, scales, releases)
        table = found[stage]
        if not counting:
            return np.rint(table * (QUANTISATION / clip) ** 2)
        sums = table[:, 1:] * table[:, :1] / clip * QUANTISATION
        return np.rint(np.column_stack([sums, table[:, 0] * COUNT_WEIGHT]))

    change = integers(len(images)) - integers(len(images) - 1)
    return float(np.linalg.norm(change)), noise


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().sum(dim=1)


def toy_steps(
    model: nn.Module | None = None,
    units: int = 100,
    expected: float = 100.0,
    *,
    count: int = 1,
    probability: float = 1.0,
    curator: Curator | None = None,
    options: Mapping[str, Any] | None = None,
    **task: Any,
) -> PrivateSteps:
    """Private steps of a small network on rows of noise."""
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    stream = torch.Generator().manual_seed(0)
    inputs, targets = (torch.cat([torch.randn(units, 16, generator=stream), torch.zeros(1, 16)]) for _ in range(2))
    fields: dict[str, Any] = {
        "model": model,
        "losses": squared,
        "rows": lambda drawn, _coins: (inputs[torch.from_numpy(drawn)], targets[torch.from_numpy(drawn)]),
        "anchor_rows": lambda _stream: (inputs[:40], targets[:40]),
        "units": units,
    }
    config = StepsConfig(**(options or {}))
    estimator = build_estimator(
        config,
        model,
        noise_multiplier=1.0,
        expected_batch=expected,
        steps=count,
        anchors=lambda network, _stream: trace_gradients(network, squared, inputs[:40], targets[:40]),
        curator=curator,
    )
    event, means = PoissonGaussianEvent(probability, 1.0, count), TrustedCurator(budget=Purse(), secret=bytes(32))
    return PrivateSteps(Task(**{**fields, **task}), config, event, FreezeSchedule(0.0), estimator, means)


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
