"""The private part of every recipe of the DP-SGD family: Poisson-sampled steps of one gradient estimator.

One step: pay; sample each unit by its own coin; divide the sampled units into passes of one size through the network;
add their gradients to the estimator; privatise; pass the result to an ordinary optimiser. Everything after privatising
is post-processing, `after_step` included.

Privacy:
    A unit adds an integer vector. Its norm is measured before it is added, and is at most the sensitivity
    (`privacy.gradients.integers`). The vector depends on that unit, the network, and coins. Passes have one public
    shape, whose empty places add nothing (`privacy.gradients.arithmetic`). The coins of a pass (which records of a
    subject, which noise levels) belong to its places. Because coins are independent, the distribution is the same as if
    every unit had coins of its own. For every outcome of such coins, neighbours' sums differ by the one unit's vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from privacy.accounting.events import PoissonGaussianEvent
from privacy.errors import BudgetExceeded, InvalidParameter
from privacy.gradients import arithmetic, integers
from privacy.gradients.build import Freezing, build_estimator
from privacy.gradients.estimator import Estimator
from privacy.gradients.per_sample import Losses, Traces, trace_gradients, trainable
from privacy.gradients.places import moved, places_alike
from privacy.mechanisms.noise import SecureNoise
from privacy.mechanisms.partition import NOBODY, deal_passes, poisson_sample
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.private_steps import STEPS, FreezeSchedule, StepsConfig, paid_together, poisson_event
from workers.recipes.interface import Piece, Run, TrustedCurator
from workers.recipes.ranks import all_agree, rank, ranks
from workers.recipes.records import pass_size

Rows = Callable[[npt.NDArray[np.int64], SecureNoise], tuple[Tensor, Tensor]]
_GROUP_PASSES = 16  # passes per group of units; the last one is half empty on average
_TRIALS = 4  # tests of the machine's arithmetic in a training; the first comes before the first step,
_TRIAL_STEPS = 16  # and the minimum number of steps between two, because each costs as much as a few steps


@dataclass(frozen=True)
class Task:
    """A network to train by private steps, and its inputs.

    Attributes:
        model: the only network that sees private records.
        losses: returns the loss of every row.
        rows: returns (inputs, targets) for the units of a pass and coins: `repeats` adjacent rows for each unit,
            arbitrary rows for the padding `NOBODY`. Each row is a function of its unit and of its coins. PRIVATE.
        anchor_rows: public (inputs, targets) like those of `rows`, with labels drawn from a public stream. GEP computes
            its basis from their gradients, and the machine's arithmetic is tested on them.
        units: number of units. PRIVATE: used only for drawing samples.
        public_rows: rows without private data, in whole units (a GAN's synthetic images). The estimator clips and
            freezes them like sampled units, so that both sides of a loss are distorted equally. They change the sum,
            but not its sensitivity.
        after_step: called after each step.
        ema: decay of the moving average of the weights; 0 keeps none.
    """

    model: nn.Module
    losses: Losses
    rows: Rows
    anchor_rows: Callable[[torch.Generator], tuple[Tensor, Tensor]]
    units: int
    repeats: int = 1
    betas: tuple[float, float] = (0.9, 0.999)
    public_rows: Callable[[], tuple[Tensor, Tensor]] | None = None
    after_step: Callable[[], None] | None = None
    ema: float = 0.0


@dataclass
class PrivateSteps:
    """The private training of one network. `event.count` is the number of steps.

    `done` is the number of finished steps. `average` is the weights' moving average by parameter name, or empty. Both
    are public. Raise InvalidParameter if so many units are declared that sums over them may not be exact.
    """

    task: Task
    config: StepsConfig
    event: PoissonGaussianEvent
    schedule: FreezeSchedule
    estimator: Estimator
    curator: TrustedCurator
    optimiser: torch.optim.Optimizer = field(init=False)
    done: int = field(default=0, init=False)
    average: dict[str, Tensor] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        declared = self.estimator.expected_batch / self.event.sampling_probability
        most = integers.UNITS_MAX
        if declared > most:
            raise InvalidParameter("units", declared, f"sums are exact for at most {most} units; declare fewer")
        parameters = trainable(self.task.model).values()
        rate, momentum, decay = self.config.learning_rate, self.config.momentum, self.config.weight_decay
        self.optimiser = (
            torch.optim.Adam(parameters, lr=rate, betas=self.task.betas, weight_decay=decay)
            if self.config.optimiser == "adam"
            else torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=decay)
        )
        if self.task.ema:
            self.average = {name: p.detach().clone() for name, p in trainable(self.task.model).items()}
        self._freezing = Freezing(self.config, self.schedule, self.estimator, self.curator.device)
        self._size = 0  # units per pass, once known
        self._tried = -1  # part of the training before which the last test ran

    def make(self, checkpoint: Callable[[], None] = lambda: None) -> None:
        """Run all remaining steps, or as many as the hold pays for. An early end comes after the current step."""
        total, ending = self.event.count, False
        while self.done < total and not ending:
            count = min(paid_together(total), total - self.done)
            try:
                self.curator.pay(replace(self.event, count=count), STEPS)
            except BudgetExceeded:  # crashes lost paid steps: the training ends with the steps made so far
                return
            paid = self.done + count
            while self.done < paid and not ending:
                self.step()
                ending = self.curator.tell(STEPS, self.done, total) and paid < total  # further paid steps are lost
            checkpoint()

    def step(self) -> None:
        """Run one step, which has been paid for."""
        step, estimator = self.done, self.estimator
        self._freezing.begin_step(step)
        with arithmetic.exact_arithmetic():
            self._try_places()
            estimator.begin_step(self.task.model)
            self._add_sample()
            if self.task.public_rows is not None and rank() == 0:
                parts = (torch.split(rows, self._size * self.task.repeats) for rows in self.task.public_rows())
                for block in zip(*parts, strict=True):
                    estimator.add(self._traces(*block))
        released = estimator.privatise(self.curator.noise("noise", step))
        self._freezing.remember(released, step)
        for name, parameter in trainable(self.task.model).items():
            parameter.grad = released[name].to(parameter)
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.rate_at(step, self.event.count)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.done += 1
        if self.task.ema:
            decay = average_decay(self.task.ema, self.done)
            for name, parameter in trainable(self.task.model).items():
                self.average[name].lerp_(parameter.detach(), 1 - decay)
        if self.task.after_step is not None:
            self.task.after_step()

    def _add_sample(self) -> None:
        """Draw the step's sample and add this rank's contributions to the estimator. Every rank draws all coins.

        A unit's own coin chooses its group of passes, and each group belongs to one rank. So one more unit moves no
        other unit to another rank.
        """
        task, step = self.task, self.done
        drawn = poisson_sample(task.units, self.event.sampling_probability, self.curator.noise("sampling", step))
        each = max(1, round(self.estimator.expected_batch / ranks()) // (_GROUP_PASSES * self._size))  # groups per rank
        dealt = deal_passes(drawn, task.units, self._size, each * ranks(), self.curator.noise("groups", step))
        for group in range(rank(), len(dealt), ranks()):
            for number, units in enumerate(dealt[group]):
                coins = self.curator.noise("records", step, group, number)
                self.estimator.add(self._traces(*task.rows(units, coins), torch.from_numpy(units != NOBODY)))

    def _traces(
        self, inputs: Tensor, targets: Tensor, present: Tensor | None = None, network: nn.Module | None = None
    ) -> Traces:
        return trace_gradients(
            self.task.model if network is None else network,
            self.task.losses,
            inputs.to(self.curator.device),
            targets.to(self.curator.device),
            repeats=self.task.repeats,
            present=None if present is None else present.to(self.curator.device),
        )

    def _try_places(self) -> None:
        """Determine the size of a pass when a process begins, and test it again after each quarter of the steps.

        Halve the size until a record's contribution is the same at each position in a pass, on every rank. The first
        test uses a copy of the network with perturbed weights; later tests use the network itself.

        Privacy:
            The test uses public records and public randomness, on a network that was released or not yet trained, at
            steps that the plan fixes. So the result, and the size of passes, is not a function of private records.
        """
        part = self.done // max(_TRIAL_STEPS, -(-self.event.count // _TRIALS))
        if part == self._tried:
            return
        networks, size = [self.task.model] if self.done else [], self._size
        if not size:
            networks.append(moved(self.task.model, torch.Generator().manual_seed(0)))
            inputs, _ = self.task.anchor_rows(torch.Generator().manual_seed(0))
            size = pass_size(self.estimator, self.task.repeats, inputs[0].numel(), self.curator.device)
        while size > 1 and not all(self._places_alike(network, size) for network in networks):
            size = 2 ** (math.ceil(math.log2(size)) - 1)
        self._size, self._tried = size, part

    def _places_alike(self, network: nn.Module, size: int) -> bool:
        estimator, repeats = self.estimator, self.task.repeats
        inputs, targets = self.task.anchor_rows(torch.Generator().manual_seed(0))

        def trace(records: Tensor) -> Traces:
            chosen = (records[:, None] * repeats + torch.arange(repeats)).flatten() % len(inputs)
            return self._traces(inputs[chosen], targets[chosen], network=network)

        before = estimator.state()
        estimator.begin_step(network)
        alike = places_alike(estimator, trace, size, len(inputs))
        estimator.restore(before)
        return all_agree(alike)

    def load_average(self) -> None:
        with torch.no_grad():
            for name, parameter in trainable(self.task.model).items():
                if name in self.average:
                    parameter.copy_(self.average[name])

    def checkpoint_state(self) -> dict[str, Any]:
        """Return the state for `restore`: tensors, numbers and nested dicts of them, none of them private."""
        return {
            "model": self.task.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "estimator": self.estimator.state(),
            "active": self.estimator.active,
            "step": self.done,
            "released_sum": self._freezing.released_sum,
            "average": self.average,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.task.model.load_state_dict(saved["model"])
        self.optimiser.load_state_dict(saved["optimiser"])
        self.estimator.restore(saved["estimator"])
        self.estimator.freeze(None if saved["active"] is None else saved["active"].to(self.curator.device))
        self.done = int(saved["step"])
        self._freezing.released_sum = saved["released_sum"]
        self.average = {name: value.to(self.curator.device) for name, value in saved["average"].items()}


def planned_steps(run: Run, config: StepsConfig, task: Task) -> PrivateSteps:
    """Return the private steps of a plan; raise InvalidParameter if the estimator does not fit the network."""
    event = poisson_event(run.plan.stage(STEPS))
    estimator = build_estimator(
        config,
        task.model,
        noise_multiplier=event.noise_multiplier,
        expected_batch=event.sampling_probability * run.facts.units_declared,
        steps=event.count,
        anchors=lambda network, stream: trace_gradients(
            network, task.losses, *(each.to(run.device) for each in task.anchor_rows(stream))
        ),
        curator=run,
    )
    return PrivateSteps(task, config, event, config.freeze_schedule(run.facts), estimator, run)


def steps_work(plan: Plan, facts: PublicFacts, row_seconds: float, rows_each: float = 1) -> Piece:
    """Return all steps as one piece of work. `row_seconds` is the cost of a row: forward, backward and clipping."""
    event = poisson_event(plan.stage(STEPS))
    rows = event.count * event.sampling_probability * facts.units_declared * rows_each
    return Piece(STEPS, event.count, row_seconds * rows * facts.size)


def average_decay(most: float, step: int) -> float:
    """Return the EMA decay at a step. It rises to `most`, so that early weights lose their influence."""
    return min(most, (1 + step) / (10 + step))
