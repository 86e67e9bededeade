"""Releases without noise, the change that one image makes to a sum of the moments, and private steps of a toy."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from privacy.accounting.events import PoissonGaussianEvent
from privacy.gradients.build import build_estimator
from privacy.gradients.estimator import Curator
from privacy.gradients.per_sample import trace_gradients
from privacy.mechanisms.noise import SecureNoise
from privacy.plans import warm_start as warm_plan
from privacy.plans.moments import MomentsConfig
from privacy.plans.plan import PublicFacts
from privacy.plans.private_steps import FreezeSchedule, StepsConfig
from tests.workers.small_trainings import Constant, Purse
from workers.recipes import dp_classifier
from workers.recipes.interface import TrustedCurator
from workers.recipes.private_steps import PrivateSteps, Task
from workers.recipes.released_sums import Kept
from workers.recipes.warm_start import warm_start

BLOCK = 32  # images whose features are computed together here


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """The trial of the machine computes three blocks of features, and the last block is filled up."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dp_classifier, "FEATURES_BLOCK", BLOCK)
        yield


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SecureNoise, "discrete_gaussian", lambda _noise, shape, _stddev: np.zeros(shape, np.int64))


def noise_images(n: int, height: int = 8, width: int = 8, channels: int = 1, seed: int = 0) -> npt.NDArray[np.uint8]:
    shape = (n, height, width, channels) if channels > 1 else (n, height, width)
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def change_by_one(
    config: MomentsConfig, facts: PublicFacts, stage: str, images: npt.NDArray[np.uint8]
) -> tuple[float, Constant]:
    """Return by how much the last image changes a stage's integers, all the way from pixels, and that stage's noise."""
    name, classes, action = stage.partition(" ")[0], len(facts.classes), warm_plan.action_of(config, facts)
    clip = {warm_plan.MEANS: config.mean_clip, warm_plan.POOLED: config.deviation_clip}.get(name, config.component_clip)
    clip *= math.sqrt(facts.pixels / 784)
    counting = name in (warm_plan.MEANS, warm_plan.CLUSTERS)
    noise = Constant(1 << 40 if counting else 0)  # keeps counts away from their lower bound
    rows, components = classes * config.clusters, 1 + config.class_size(facts)
    earlier = {
        warm_plan.MEANS: np.column_stack([np.full(classes, 100.0), np.zeros((classes, len(action.blocks()[0][0])))]),
        warm_plan.POOLED: np.diag(np.geomspace(5000, 1, len(action.across))),
    }
    for number in range(1, warm_plan.CLUSTER_ROUNDS + 1):
        earlier[f"{warm_plan.CLUSTERS} {number}"] = np.random.default_rng(number).normal(5, 1, (rows, components))
    earlier.pop(stage, None)

    def integers(count: int) -> npt.NDArray[np.float64]:
        found: dict[str, Any] = {}
        releases = Kept(earlier, lambda drawn: noise if drawn == stage else Constant(), found.update)
        labels = np.zeros(count, dtype=np.int64)
        stages = (
            warm_plan.WARM_START if config.clusters > 1 else (warm_plan.MEANS, warm_plan.POOLED, warm_plan.BY_CLASS)
        )
        warm_start(images[:count], labels, config, facts, dict.fromkeys(stages, 10.0), releases)
        table = found[stage]
        if not counting:
            return np.rint(table * (warm_plan.QUANTISATION / clip) ** 2)
        sums = table[:, 1:] * table[:, :1] / clip * warm_plan.QUANTISATION
        return np.rint(np.column_stack([sums, table[:, 0] * warm_plan.COUNT_WEIGHT]))

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
