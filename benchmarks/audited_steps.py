"""The training loop of the DP-SGD family, set up for an audit: what its finished network says about every record.

`workers.recipes.private_steps.PrivateSteps` runs as it is, on the network of a `Setting`. Gradients there do not depend
on the weight, and plain descent adds up what is released, so the finished weight is the sum of all releases: whoever
holds the network holds everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.audited import Coins, Scores
from benchmarks.audited_gradients import Setting, inner_product
from privacy.accounting.events import PoissonGaussianEvent
from privacy.auditing.payment_order import PaymentJournal
from privacy.gradients import estimator as estimators
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.plan import PublicFacts
from privacy.plans.private_steps import FreezeSchedule, StepsConfig
from workers.recipes.interface import TrainingData, TrustedCurator
from workers.recipes.private_steps import PrivateSteps, Task
from workers.recipes.records import Units

LEARNING_RATE = 1e-3  # short steps: RGP's carriers hardly turn


def train_steps(
    setting: Setting,
    weights: torch.Tensor,
    included: Coins,
    event: PoissonGaussianEvent,
    budget: Any,
    secret: bytes,
    freeze: str = "none",
    subjects: bool = False,
    period: int = 2,
) -> Scores:
    """Train on the canaries that the coins chose, and score each by the finished network.

    Returns:
        (m,) sums over the steps of each canary's score.
    """
    model = setting.network()
    config = StepsConfig(learning_rate=LEARNING_RATE, momentum=0.0, freeze=freeze, freeze_cooling=0.0)
    canary = np.flatnonzero(included).repeat(3 if subjects else 1)  # whose each record is
    m = setting.canaries
    facts = PublicFacts(("0",), 1, 1, 1, 3 * m, "subject" if subjects else "record", m if subjects else None)
    nothing = np.zeros((len(canary), 1, 1), dtype=np.uint8)
    data = TrainingData(nothing, np.zeros(len(canary), dtype=np.int64), facts.classes, canary if subjects else None)
    units = Units(facts, config, data)

    def rows(drawn: Any, coins: SecureNoise) -> tuple[torch.Tensor, torch.Tensor]:
        return setting.records(np.append(canary, 0)[units.records(drawn, coins)])  # where nobody stands, any canary

    estimator = setting.make(model, event.noise_multiplier)
    estimator.expected_batch = max(1.0, event.sampling_probability * units.count)  # passes are made for so many
    examples = setting.records(np.arange(setting.canaries))
    task = Task(model, inner_product, rows, lambda _stream: examples, units.count, units.rows_each)
    schedule = FreezeSchedule(config.freeze_rate, period=period)
    PrivateSteps(task, config, event, schedule, estimator, TrustedCurator(budget=budget, secret=secret)).make()
    moved = (setting.weight - model.weight.detach()).double() * (estimator.expected_batch / LEARNING_RATE)
    scores: Scores = (moved[setting.rows[:, None], setting.columns] * weights).sum(1).numpy()
    return scores


@contextmanager
def watched(journal: PaymentJournal, event: PoissonGaussianEvent) -> Iterator[None]:
    """Tell the journal of every step when its noise is about to be drawn."""
    noisy_sum: Callable[..., Any] = estimators.noisy_sum

    def noted(*arguments: Any, **options: Any) -> Any:
        journal.note_release(event)
        return noisy_sum(*arguments, **options)

    with mock.patch.object(estimators, "noisy_sum", noted):
        yield
