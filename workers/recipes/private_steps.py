"""The private part of every recipe of the DP-SGD family: Poisson-sampled steps of one gradient estimator.

One step: pay; draw each unit by a coin of its own; add the sampled units' gradients to the estimator in micro-batches;
let it release; give what was released to an ordinary optimiser. Everything after the release is post-processing, also
what `after_step` does with the network.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from privacy.accounting.events import PoissonGaussianEvent
from privacy.errors import BudgetExceeded
from privacy.gradients.build import build_estimator
from privacy.gradients.estimator import Estimator
from privacy.gradients.freeze import FreezeSchedule, random_mask, ranked_mask
from privacy.gradients.per_sample import Losses, trace_gradients, trainable
from privacy.mechanisms.noise import SecureNoise
from privacy.mechanisms.sampling import poisson_sample
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.private_steps import STEPS, StepsConfig, poisson_event
from workers.distribution import from_first, pay_once, rank, ranks, release_once

if TYPE_CHECKING:
    import numpy.typing as npt

    from workers.recipes.interface import Budget, Progress

Rows = Callable[["npt.NDArray[np.int64]", SecureNoise], tuple[Tensor, Tensor]]
_MICRO_NUMBERS = 2**26  # of gradients by record that are in memory at once
_MICRO_RECORDS_MAX = {"cpu": 128, "cuda": 4096}  # on a CPU, activations should stay in its cache
_CHUNKS = 100  # payments and checkpoints of one training


@dataclass
class StepsState:
    """Where the private steps stand. Public: computed from releases alone.

    Attributes:
        step: steps done.
        released_sum: (d,) sum of the epoch's released gradients, for ranked freeze.
        average: the weights' moving average, by parameter name; empty where none is kept.
        exhausted: the hold paid for no further step.
    """

    step: int = 0
    released_sum: Tensor | None = None
    average: dict[str, Tensor] = field(default_factory=dict)
    exhausted: bool = False


@dataclass
class PrivateSteps:
    """One network's private training.

    Attributes:
        config: public parameters.
        event: of the plan's stage; its count is the number of steps.
        epoch_steps: steps over which a freeze mask stays.
        model: the network that sees private records, and nothing else does.
        estimator: of its gradient.
        losses: of every row.
        rows: sampled units -> (inputs, targets), `repeats` rows of each unit beside each other. PRIVATE.
        units: how many units there are. PRIVATE: used for drawing the samples only.
        repeats: rows of one unit.
        secret: of the job.
        attempt: its number.
        seed: of public randomness.
        device: where the network is.
        betas: of Adam.
        public_rows: rows that need no private data, in whole units (a GAN's synthetic images). The estimator adds them
            to a step's sum as it adds sampled units, clipped and frozen alike, so that both sides of a loss are bent
            the same way. What they add is public: it moves the sum and not its sensitivity.
        after_step: called with the number of steps done after each.
    """

    config: StepsConfig
    event: PoissonGaussianEvent
    epoch_steps: int
    model: nn.Module
    estimator: Estimator
    losses: Losses
    rows: Rows
    units: int
    repeats: int
    secret: bytes
    attempt: int
    seed: int
    device: torch.device
    betas: tuple[float, float] = (0.9, 0.999)
    public_rows: Callable[[], tuple[Tensor, Tensor]] | None = None
    after_step: Callable[[int], None] | None = None
    optimiser: torch.optim.Optimizer = field(init=False)
    state: StepsState = field(init=False)

    def __post_init__(self) -> None:
        parameters = trainable(self.model).values()
        rate, momentum = self.config.learning_rate, self.config.momentum
        self.optimiser = (
            torch.optim.Adam(parameters, lr=rate, betas=self.betas)
            if self.config.optimiser == "adam"
            else torch.optim.SGD(parameters, lr=rate, momentum=momentum)
        )
        self.estimator.release_together = release_once
        self.estimator.agree = from_first
        self.state = StepsState()
        if self.config.ema:
            self.state.average = {name: p.detach().clone() for name, p in trainable(self.model).items()}
        self._schedule = FreezeSchedule(
            self.config.freeze_rate,
            round(self.config.freeze_cooling * math.ceil(self.event.count / self.epoch_steps)),
        )

    def run(
        self, *, budget: Budget, progress: Progress, checkpoint: Callable[[], None], stage: str = STEPS
    ) -> StepsState:
        """Make all steps that are left, or as many as the hold pays for.

        Raises:
            Cancelled: from `progress`.
        """
        total, together = self.event.count, max(1, self.event.count // _CHUNKS)
        while self.state.step < total and not self.state.exhausted:
            count = min(together, total - self.state.step)
            try:
                pay_once(budget, replace(self.event, count=count), stage)
            except BudgetExceeded:  # steps were paid and lost in a crash: the training ends with what it has
                self.state.exhausted = True
                break
            for _ in range(count):
                self._step()
                progress(stage=stage, step=self.state.step, steps=total)
            checkpoint()
        return self.state

    def _step(self) -> None:
        step, estimator = self.state.step, self.estimator
        if step % self.epoch_steps == 0 or (estimator.active is None and self.config.freeze != "none"):
            self._choose_mask(step // self.epoch_steps)
        coins = SecureNoise.derive(self.secret, "sampling", self.attempt, step)
        estimator.begin_step(self.model)
        drawn = poisson_sample(self.units, self.event.sampling_probability, coins)
        size = self._micro_units()
        for start in range(rank() * size, len(drawn), ranks() * size):  # every rank sees the whole sample's coins
            own_coins = SecureNoise.derive(self.secret, "records", self.attempt, step, start)
            self._add(*self.rows(drawn[start : start + size], own_coins))
        if self.public_rows is not None and rank() == 0:  # a summand that enters once
            inputs, targets = self.public_rows()
            for block in zip(
                torch.split(inputs, size * self.repeats), torch.split(targets, size * self.repeats), strict=True
            ):
                self._add(*block)
        released = estimator.release(SecureNoise.derive(self.secret, "noise", self.attempt, step))
        self._remember(released, step)
        for name, parameter in trainable(self.model).items():
            parameter.grad = released[name].to(parameter)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.state.step += 1
        self._move_average()
        if self.after_step is not None:
            self.after_step(self.state.step)

    def _add(self, inputs: Tensor, targets: Tensor) -> None:
        inputs, targets = inputs.to(self.device), targets.to(self.device)
        self.estimator.add(trace_gradients(self.model, self.losses, inputs, targets, repeats=self.repeats))

    def _micro_units(self) -> int:
        """Units of one micro-batch. They are dealt out to the ranks in turn, so each should get some."""
        size = micro_units(self.estimator.coordinates, self.repeats, self.device)
        return size if ranks() == 1 else min(size, math.ceil(self.estimator.expected_batch / ranks()))

    def _choose_mask(self, epoch: int) -> None:
        """Freeze for one epoch: by public randomness, or by what was released in the last one."""
        if self.config.freeze == "none":
            return
        rate, d = self._schedule.at(epoch), self.estimator.coordinates
        if self.config.freeze != "ranked" or self.state.released_sum is None:
            mask = random_mask(d, rate, torch.Generator().manual_seed(self.seed * 1_000_003 + epoch))
        else:
            mask = ranked_mask(self.state.released_sum, rate).cpu()
        self.estimator.freeze(mask.to(self.device))
        self.state.released_sum = None

    def _remember(self, released: Mapping[str, Tensor], step: int) -> None:
        """Sum what was released for the ranking of the next epoch; frozen coordinates get noise alone, public noise."""
        if self.config.freeze != "ranked":
            return
        flat = torch.cat([value.detach().reshape(-1).cpu() for value in released.values()])
        estimator = self.estimator
        if estimator.active is not None:
            frozen = ~estimator.active.cpu()
            deviation = estimator.noise_multiplier * self.config.clip / estimator.expected_batch
            stream = torch.Generator().manual_seed(self.seed * 1_000_003 + 500_009 + step)
            flat[frozen] = torch.randn(int(frozen.sum()), generator=stream) * deviation
        self.state.released_sum = flat if self.state.released_sum is None else self.state.released_sum + flat

    def _move_average(self) -> None:
        if not self.config.ema:
            return
        decay = average_decay(self.config.ema, self.state.step)
        for name, parameter in trainable(self.model).items():
            self.state.average[name].lerp_(parameter.detach(), 1 - decay)

    def load_average(self) -> None:
        """Put the averaged weights, where there are any, into the network."""
        with torch.no_grad():
            for name, parameter in trainable(self.model).items():
                if name in self.state.average:
                    parameter.copy_(self.state.average[name])

    def checkpoint_state(self) -> dict[str, Any]:
        """Return what `restore` needs: tensors, numbers and nested dicts of them, none of them private."""
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "estimator": self.estimator.state(),
            "active": self.estimator.active,
            "step": self.state.step,
            "released_sum": self.state.released_sum,
            "average": self.state.average,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.model.load_state_dict(saved["model"])
        self.optimiser.load_state_dict(saved["optimiser"])
        self.estimator.restore(saved["estimator"])
        self.estimator.active = None if saved["active"] is None else saved["active"].to(self.device)
        self.state.step = int(saved["step"])
        self.state.released_sum = saved["released_sum"]
        self.state.average = {name: value.to(self.device) for name, value in saved["average"].items()}


def planned_steps(
    plan: Plan,
    config: StepsConfig,
    facts: PublicFacts,
    model: nn.Module,
    *,
    losses: Losses,
    rows: Rows,
    units: int,
    repeats: int,
    anchor_rows: Callable[[], tuple[Tensor, Tensor]],
    secret: bytes,
    attempt: int,
    seed: int,
    device: torch.device,
    **of_loop: Any,
) -> PrivateSteps:
    """Return the private steps that a recipe's plan announces, with the estimator that it names.

    Args:
        plan: of the recipe.
        config: its public parameters.
        facts: declared.
        model: the network that sees private records; the arguments after it are those of `PrivateSteps`.
        losses: likewise.
        rows: likewise.
        units: likewise.
        repeats: likewise.
        anchor_rows: gives public inputs and targets, from whose gradients GEP finds its basis; called at most once.
        secret: likewise.
        attempt: likewise.
        seed: likewise.
        device: likewise.
        of_loop: what else `PrivateSteps` takes.

    Raises:
        InvalidParameter: the estimator does not fit the network.
    """
    event = poisson_event(plan)

    @functools.cache
    def anchors() -> tuple[Tensor, Tensor]:
        inputs, targets = anchor_rows()
        return inputs.to(device), targets.to(device)

    estimator = build_estimator(
        config,
        model,
        noise_multiplier=event.noise_multiplier,
        expected_batch=event.sampling_probability * facts.units_declared,
        steps=event.count,
        anchors=lambda network: trace_gradients(network, losses, *anchors()),
        seed=seed,
    )
    return PrivateSteps(
        config=config,
        event=event,
        epoch_steps=config.epoch_steps(facts),
        model=model,
        estimator=estimator,
        losses=losses,
        rows=rows,
        units=units,
        repeats=repeats,
        secret=secret,
        attempt=attempt,
        seed=seed,
        device=device,
        **of_loop,
    )


def average_decay(most: float, step: int) -> float:
    """Return an EMA's decay after so many steps: it grows to its end, so that the start is forgotten."""
    return min(most, (1 + step) / (10 + step))


def micro_units(coordinates: int, repeats: int, device: torch.device) -> int:
    """Return how many units, of `repeats` rows each, go through the network together."""
    return max(1, min(_MICRO_RECORDS_MAX[device.type] // repeats, _MICRO_NUMBERS // coordinates))
