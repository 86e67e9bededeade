"""Every gradient estimator, set up for an audit: records whose gradients are the worst case, and the auditor's score.

The network is one linear layer without bias; its loss is the inner product of outputs and targets. So a record's
gradient is the outer product of its target and its input: whatever the auditor wants. Each canary has places of the
weight to itself and a gradient beyond the clip there. Canaries do not touch one another, so one step with all of them
is an independent draw for each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.audited import Coins, Scores
from benchmarks.broken_mechanisms import no_noise
from benchmarks.payment_order import PaymentJournal
from privacy.accounting.events import PoissonGaussianEvent
from privacy.gradients import estimator as estimators
from privacy.gradients.build import random_mask
from privacy.gradients.dpsgd import DpSgd
from privacy.gradients.estimator import Estimator, shapes_of
from privacy.gradients.gep import Gep
from privacy.gradients.per_sample import Traces, trace_gradients
from privacy.gradients.rgp import Rgp
from privacy.gradients.topagg import TopAggSgd
from privacy.mechanisms import partition
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.plan import PublicFacts
from privacy.plans.private_steps import FreezeSchedule, StepsConfig
from workers.recipes.interface import TrainingData, TrustedCurator
from workers.recipes.private_steps import PrivateSteps, Task
from workers.recipes.records import Units

Records = npt.NDArray[np.int64]
Factory = Callable[[nn.Linear, float], Estimator]
CLIP = 1.0
LEARNING_RATE = 1e-3  # of whole trainings: short steps, so that RGP's carriers hardly turn
FAR = 100.0  # gradients are so many times longer than the clip
KEEP = 0.25  # TopAgg's share: half the clip is its sensitivity
RESIDUAL = 0.005  # GEP's clip of residuals, so small that their noise hardly disturbs embeddings
_ELEMENTS = 1 << 22  # of a micro-batch


@dataclasses.dataclass(frozen=True)
class Setting:
    """An estimator with m canaries."""

    name: str
    weight: torch.Tensor  # (p, d) its released value, from which RGP takes carriers
    rows: torch.Tensor  # (m,) the row of the weight in which a canary's gradient lies
    columns: torch.Tensor  # (m, w) its columns there; no other canary has them in this row
    values: torch.Tensor  # (w,) the gradient at these places
    precision: torch.Tensor  # (w,) one over the variance of the noise there, up to a factor
    make: Factory  # (network, noise multiplier) -> a new estimator

    @property
    def canaries(self) -> int:
        return len(self.rows)

    def network(self) -> nn.Linear:
        """Return the network at its released weight."""
        model = nn.Linear(self.weight.shape[1], self.weight.shape[0], bias=False)
        with torch.no_grad():
            model.weight.copy_(self.weight)
        return model

    def records(self, units: Records) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs (n, d) and targets (n, p); ~i stands for a record with the gradient of i turned round."""
        index = torch.from_numpy(np.where(units < 0, ~units, units))
        sign = torch.from_numpy(np.where(units < 0, -1.0, 1.0)).float()
        n, (p, d) = len(units), self.weight.shape
        inputs = torch.zeros(n, d).scatter_(1, self.columns[index], self.values.expand(n, -1))
        targets = torch.zeros(n, p).scatter_(1, self.rows[index, None], sign[:, None])
        return inputs, targets


def inner_product(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of each row."""
    return (outputs * targets).sum(dim=1)


def _flat(
    name: str, width: int, columns: torch.Tensor, values: list[float], precision: list[float], make: Factory
) -> Setting:
    rows = torch.zeros(len(columns), dtype=torch.int64)
    return Setting(name, torch.zeros(1, width), rows, columns, torch.tensor(values), torch.tensor(precision), make)


def _common(multiplier: float) -> dict[str, float]:
    return {"clip": CLIP, "noise_multiplier": multiplier, "expected_batch": 1.0}


def dpsgd(m: int) -> Setting:
    """A coordinate for each canary."""

    def make(model: nn.Linear, multiplier: float) -> Estimator:
        return DpSgd(shapes_of(model), **_common(multiplier))

    return _flat("DP-SGD", m, torch.arange(m)[:, None], [FAR], [1.0], make)


def frozen(m: int) -> Setting:
    """Half of the coordinates are frozen by chance; each canary has one of the others, and a longer part frozen."""
    mask = random_mask(2 * m, 0.5, torch.Generator().manual_seed(0))
    plain = dpsgd(2 * m)

    def make(model: nn.Linear, multiplier: float) -> Estimator:
        estimator = plain.make(model, multiplier)
        estimator.freeze(mask)
        return estimator

    columns = torch.stack([torch.nonzero(mask)[:, 0], torch.nonzero(~mask)[:, 0]], dim=1)
    return _flat("DP-SGD, random freeze", 2 * m, columns, [FAR, 10 * FAR], [1.0, 0.0], make)


def topagg(m: int) -> Setting:
    """Five coordinates for each canary, of which the largest just fits into the share that is kept."""

    def make(model: nn.Linear, multiplier: float) -> Estimator:
        return TopAggSgd(shapes_of(model), keep=KEEP, **_common(multiplier))

    largest = KEEP * (1 - 1e-4)
    values = [FAR * math.sqrt(share) for share in (largest, *[(1 - largest) / 4] * 4)]
    return _flat("TopAgg-SGD", 5 * m, torch.arange(5 * m).reshape(m, 5), values, [1.0] * 5, make)


def _gep(m: int, name: str, residual: float | None, values: list[float], precision: list[float]) -> Setting:
    def anchors(model: nn.Module, _stream: torch.Generator) -> Traces:
        return trace_gradients(model, inner_product, torch.eye(m, 2 * m), torch.ones(m, 1))

    def make(model: nn.Linear, multiplier: float) -> Estimator:
        return Gep(shapes_of(model), anchors, basis_size=m, clip_residual=residual, **_common(multiplier))

    return _flat(name, 2 * m, torch.arange(2 * m).reshape(2, m).T.contiguous(), values, precision, make)


def gep(m: int) -> Setting:
    """Embedding and residual are both beyond their clips."""
    precision = [1 / (CLIP**2 + RESIDUAL**2), 1 / RESIDUAL**2]  # residuals' noise lies on embeddings too
    return _gep(m, "GEP", RESIDUAL, [FAR * CLIP, FAR * RESIDUAL], precision)


def b_gep(m: int) -> Setting:
    """Residuals are dropped, however long."""
    return _gep(m, "B-GEP", None, [FAR, FAR], [1.0, 0.0])


def rgp(m: int) -> Setting:
    """Carriers span the first r rows and columns; a canary lies in one of these rows and in no such column.

    So its gradient is all the right carrier's, and the update shows it with no other noise than its own.
    """
    rank = max(1, math.isqrt(m))
    weight = torch.zeros(rank + 1, rank + math.ceil(m / rank))
    weight[:rank, :rank] = torch.eye(rank)

    def make(model: nn.Linear, multiplier: float) -> Estimator:
        forever = 1_000_000  # steps in which carriers are taken from the weight
        return Rgp(model, shapes_of(model), rank=rank, warm_up_steps=forever, **_common(multiplier))

    place = torch.arange(m)
    columns = rank + place[:, None] // rank
    return Setting("RGP", weight, place % rank, columns, torch.tensor([FAR]), torch.tensor([1.0]), make)


SETTINGS: tuple[Callable[[int], Setting], ...] = (dpsgd, frozen, topagg, gep, b_gep, rgp)


def step(
    setting: Setting,
    estimator: Estimator,
    model: nn.Linear,
    populations: Sequence[Records],
    probability: float,
    secret: bytes,
    number: int = 0,
) -> torch.Tensor:
    """Take one step: sample, add in micro-batches, privatise.

    Returns:
        (p, d) float64, the released gradient.
    """
    coins = SecureNoise.derive(secret, "sample", number)
    drawn = np.concatenate([units[partition.poisson_sample(len(units), probability, coins)] for units in populations])
    estimator.begin_step(model)
    rows = max(1, _ELEMENTS // setting.weight.numel())
    for start in range(0, len(drawn), rows):
        estimator.add(trace_gradients(model, inner_product, *setting.records(drawn[start : start + rows])))
    return estimator.privatise(SecureNoise.derive(secret, "noise", number))["weight"].double()


def projection(setting: Setting, mu: float) -> torch.Tensor:
    """Return (m, w) weights that take what is released at a canary's places to its score; run without noise.

    The score is the projection on what a canary adds by itself when it is drawn, in units of that: 1 where it was
    drawn, 0 where it was not, and noise of deviation 1 / mu about both. The auditor knows the mechanism, faults
    included.
    """
    model, everyone = setting.network(), np.arange(setting.canaries)
    with no_noise():
        nobody, everybody = (
            step(setting, setting.make(model, 1 / mu), model, [units], 1.0, bytes(32))
            for units in (everyone[:0], everyone)
        )
    adds = (everybody - nobody)[setting.rows[:, None], setting.columns]  # (m, w)
    towards = adds * setting.precision
    return towards / (adds * towards).sum(1, keepdim=True)


def play(
    setting: Setting,
    weights: torch.Tensor,
    included: Coins,
    mu: float,
    probability: float,
    steps: int,
    secret: bytes,
) -> Scores:
    """Play one game: some canaries are there, the estimator takes its steps, and the auditor looks at the releases.

    Returns:
        (m,) sums over the steps of each canary's score.
    """
    model, units = setting.network(), np.flatnonzero(included)
    estimator, total = setting.make(model, 1 / mu), torch.zeros(setting.canaries, dtype=torch.float64)
    for number in range(steps):
        released = step(setting, estimator, model, [units], probability, secret, number)
        total += (released[setting.rows[:, None], setting.columns] * weights).sum(1)
    return total.numpy()


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

    The production loop, `PrivateSteps`, runs on the network of the setting. Gradients do not depend on the weight and
    plain descent adds up the releases, so the finished weight is their sum: the network reveals everything.

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
    """Note every step in the journal before its noise is drawn."""
    noisy_sum: Callable[..., Any] = estimators.noisy_sum

    def noted(*arguments: Any, **options: Any) -> Any:
        journal.note_release(event)
        return noisy_sum(*arguments, **options)

    with mock.patch.object(estimators, "noisy_sum", noted):
        yield
