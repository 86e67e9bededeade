"""Private steps of a network on inputs that are in memory, with their noise or without it."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from benchmarks.budgets import NoLedger
from benchmarks.classifier_runs import DELTA, NO_NOISE
from privacy.accounting.filter import open_filter
from privacy.gradients.build import build_estimator
from privacy.gradients.per_sample import trace_gradients
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.plan import PublicFacts
from privacy.plans.private_steps import StepsConfig, poisson_event, steps_stage
from workers.recipes.dp_classifier.loop import losses
from workers.recipes.interface import TrustedCurator
from workers.recipes.private_steps import PrivateSteps, Task

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class Labelled:
    """Inputs (n, ...) of a network, with their labels (n,) int64."""

    inputs: Tensor
    labels: Tensor

    def part(self, rows: slice) -> Labelled:
        """Return some of them."""
        return Labelled(self.inputs[rows], self.labels[rows])


def make_steps(model: nn.Module, private: Labelled, anchors: Tensor, config: StepsConfig, epsilon: float | None) -> int:
    """Train what of a network is trainable on private inputs, with a fresh secret, and return the number of steps.

    Args:
        model: is changed.
        private: each row is a record.
        anchors: public inputs like them, on which GEP finds its basis, with random labels.
        config: public parameters.
        epsilon: of the whole training, delta being 1e-5; None adds next to no noise: no privacy, a ceiling.

    Privacy:
        Add or remove one record: the steps of `workers.recipes.private_steps`, of one Poisson sample each.
    """
    classes = 1 + int(private.labels.max())
    facts = PublicFacts(tuple(map(str, range(classes))), 1, 1, 1, len(private.labels), "record")
    account = open_filter(epsilon or 1.0, DELTA)
    event = poisson_event(steps_stage(config, account, account.capacity_nano, facts))
    if epsilon is None:
        event = dataclasses.replace(event, noise_multiplier=NO_NOISE)

    def rows(drawn: npt.NDArray[np.int64], _coins: SecureNoise) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(drawn)  # where no record stands, the last one does, and adds nothing
        return private.inputs[chosen], private.labels[chosen]

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
    task = Task(model, losses, rows, anchor_rows, len(private.labels))
    means = TrustedCurator(budget=NoLedger(), secret=secrets.token_bytes(32))
    PrivateSteps(task, config, event, config.freeze_schedule(facts), estimator, means).make()
    return event.count


@torch.no_grad()
def percent_right(model: Callable[[Tensor], Tensor], tested: Labelled) -> float:
    """Return the share of inputs whose label is found, in per cent."""
    found = torch.cat([model(part).argmax(dim=1) for part in torch.split(tested.inputs, 500)])
    return 100 * float((found == tested.labels).double().mean())
