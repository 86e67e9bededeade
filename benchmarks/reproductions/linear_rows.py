"""GEP, Table 3: a linear layer on public features of CIFAR-10.

The paper's features are those of a ResNet152 that SimCLR trained on ImageNet, 4,096 numbers an image. Scattering
coefficients, averaged over two by two places, replace them: 3,888 numbers.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.reproductions.rows import FOLDERS, row_of
from benchmarks.results import Row, since, spread
from benchmarks.runs import DELTA, NoLedger
from benchmarks.small_data import channels_first, facts_of
from models.portable.layers import initialise
from models.private_classifier import scatter_head
from models.public_patterns import public_patterns
from models.scattering import Scattering
from privacy.accounting.filter import open_filter
from privacy.gradients.build import build_estimator
from privacy.gradients.per_sample import trace_gradients
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.plan import PublicFacts
from privacy.plans.private_steps import StepsConfig, poisson_event, steps_stage
from workers.recipes.dp_classifier import losses
from workers.recipes.interface import TrustedCurator
from workers.recipes.private_steps import PrivateSteps, Task

EPSILONS = (0.1, 0.5, 1.0, 2.0)
# By method: the estimator, and per cent at each epsilon.
METHODS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "GP": ("dpsgd", (88.2, 91.1, 93.2, 93.4)),
    "B-GEP": ("bgep", (91.0, 92.9, 93.1, 93.2)),
    "GEP": ("gep", (90.9, 93.5, 94.3, 94.8)),
}
_SIZES: Mapping[str, dict[str, Any]] = {
    "quick": {"images": 10_000, "test": 5_000, "batch": 256, "steps": 100, "anchors": 100, "basis": 50, "seeds": 2},
    "full": {"images": 50_000, "test": 10_000, "batch": 1024, "steps": 390, "anchors": 500, "basis": 200, "seeds": 5},
}
_RATE, _CLIP, _ANCHOR_SEED, _BLOCK = 0.01, 0.1, 1, 512


def linear_rows(dataset: str, budget: str) -> list[Row]:
    """Return a row of each method and epsilon."""
    folder, size = FOLDERS[dataset](), _SIZES[budget]
    facts = facts_of(folder)
    private, test = (
        (_features(channels_first(images[:count]).float() / 255), torch.from_numpy(labels[:count]).long())
        for images, labels, count in (
            (folder.images, folder.labels, size["images"]),
            (folder.test_images, folder.test_labels, size["test"]),
        )
    )
    patterns = public_patterns(size["anchors"], facts.channels, facts.height, facts.width, _ANCHOR_SEED)
    anchors, rows = _features(patterns), list[Row]()
    maps, high, wide = private[0].shape[1:]
    for column, epsilon in enumerate(EPSILONS):
        for name, (estimator, published) in METHODS.items():
            started, found = time.monotonic(), []
            for seed in range(size["seeds"]):
                config = StepsConfig(
                    **{"estimator": estimator, "expected_batch": size["batch"], "clip": _CLIP, "optimiser": "adam"},
                    epochs=(size["steps"] - 0.5) * size["batch"] / len(private[1]),
                    basis_size=size["basis"],
                    anchors=size["anchors"],
                    learning_rate=_RATE,
                    initial_seed=seed,
                )
                head = initialise(scatter_head(maps, high, wide, len(folder.classes), convolutional=False), seed)
                _make_steps(head, *private, anchors, config, epsilon)
                found.append(100 * float((head(test[0]).argmax(dim=1) == test[1]).double().mean()))
            setting = (
                f"linear on {maps * high * wide:,} scattering coefficients, first {size['images']:,} images, "
                f"{size['steps']} steps of {size['batch']}, delta {DELTA:g}"
            )
            more = {**spread(found), "published": published[column] if dataset == "cifar-10" else None}
            more["seconds"] = since(started)
            rows.append(row_of("gep", "3", name, dataset, epsilon, setting, **more))
            print(f"  {name} at {epsilon:g}: {rows[-1]['ours']:.1f}, {rows[-1]['seconds']:.0f} s", flush=True)
    return rows


def _make_steps(
    model: nn.Module, inputs: Tensor, labels: Tensor, anchors: Tensor, config: StepsConfig, epsilon: float
) -> None:
    classes, account = 1 + int(labels.max()), open_filter(epsilon, DELTA)
    facts = PublicFacts(tuple(map(str, range(classes))), 1, 1, 1, len(labels), "record")
    event = poisson_event(steps_stage(config, account, account.capacity_nano, facts))

    def rows(drawn: npt.NDArray[np.int64], _coins: SecureNoise) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(drawn)  # an empty place takes the last record, and adds nothing
        return inputs[chosen], labels[chosen]

    def anchor_rows(stream: torch.Generator) -> tuple[Tensor, Tensor]:
        return anchors, torch.randint(classes, (len(anchors),), generator=stream)

    estimator = build_estimator(
        config,
        model,
        noise_multiplier=event.noise_multiplier,
        expected_batch=config.expected_batch,
        steps=event.count,
        anchors=lambda network, stream: trace_gradients(network, losses, *anchor_rows(stream)),
    )
    task = Task(model, losses, rows, anchor_rows, len(labels))
    means = TrustedCurator(budget=NoLedger(), secret=secrets.token_bytes(32))
    PrivateSteps(task, config, event, config.freeze_schedule(facts), estimator, means).make()


@torch.no_grad()
def _features(images: Tensor) -> Tensor:
    scattering = Scattering(*images.shape[2:])
    return torch.cat([functional.avg_pool2d(scattering(part), 2) for part in torch.split(images, _BLOCK)])
