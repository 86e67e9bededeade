"""Plan private gradient steps (DP-SGD and its variants): Poisson-sampled steps of one estimator under one budget.

In each step, each unit is drawn independently with one public probability q = expected_batch / n, where n is the
declared number of units. If there are fewer units than declared, batches are smaller and the privacy loss is no larger.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field

from privacy.accounting.events import PoissonGaussianEvent
from privacy.accounting.filter import NANO, Filter, noise_multiplier_for
from privacy.plans.options import ClassFractionsConfig
from privacy.plans.plan import PublicFacts, Stage

STEPS = "gradient_steps"
STEPS_MAX = 200_000
_PAYMENTS = 100  # parts of a stage, each followed by a checkpoint
EstimatorName = Literal["dpsgd", "topagg", "gep", "bgep", "rgp", "rgp_random"]
ESTIMATORS: tuple[EstimatorName, ...] = get_args(EstimatorName)
_ANCHORED = ("gep", "bgep")
_ID_CHARACTERS_MAX = 64
_RESIDUAL_SHARE = 0.2  # S2 / S1 in every experiment of GEP's paper
# RGP releases gradients of carriers, which are not coordinates of the weights, so none can be frozen.
_FREEZABLE = ("dpsgd", "topagg", "gep", "bgep")


@dataclasses.dataclass(frozen=True)
class FreezeSchedule:
    """Share of frozen coordinates by step ("Differentially Private SGD with Sparse Gradients", 2022, Algorithm 1).

    Attributes:
        rate: r*, the share of frozen coordinates at the end, in [0, 1). Public, as all fields.
        cooling_steps: steps over which the share grows to `rate` (e* epochs in the paper); 0: it is always `rate`.
        period: number of steps that use one mask of frozen coordinates: the steps of an epoch, or 1.
    """

    rate: float
    cooling_steps: float = 0.0
    period: int = 1

    def at(self, step: int) -> float:
        """Return the frozen share in a step: r(e) = r* min(e / e*, 1). Here e is when its mask is first used."""
        if self.cooling_steps == 0:
            return self.rate
        return self.rate * min(step // self.period * self.period / self.cooling_steps, 1.0)

    def density(self, steps: int) -> float:
        """Return the paper's total density: the share of coordinates that are not frozen, over `steps` steps."""
        return 1 - sum(self.at(step) for step in range(steps)) / steps


class StepsConfig(ClassFractionsConfig):
    """Public parameters of the private steps. Descriptions contain the papers' letters."""

    groups: ClassVar[Sequence[tuple[str, str]]] = (("clip", "Noise and privacy"), ("learning_rate", "Training"))

    estimator: EstimatorName = Field(
        "dpsgd",
        description="How a step's gradient is made private: plain DP-SGD, TopAgg-SGD, GEP, B-GEP, RGP or RGP-random "
        "(`privacy.gradients`).",
    )
    epochs: float = Field(10.0, ge=1e-3, le=10_000, description="Expected number of times that a unit is drawn.")
    expected_batch: int = Field(512, ge=1, le=1_000_000, description="Expected number of units in one step.")
    clip: float = Field(1.0, ge=1e-6, le=1e6, description="C, bound on the norm of one unit's gradient; S1 of GEP.")
    keep: float = Field(0.8, ge=1e-3, le=1, description="TopAgg's k, share of the squared norm that is kept.")
    clip_residual: float = Field(0.0, ge=0, le=1e6, description="GEP's S2, bound on a residual; 0: a fifth of S1.")
    basis_size: int = Field(
        200, ge=1, le=20_000, description="GEP's k, the number of vectors in its basis; at least one for each layer."
    )
    basis_groups: Literal["layers", "widths"] = Field(
        "layers", description="Parameters that share a basis in GEP: those of one layer, or of all layers of one width."
    )
    anchors: int = Field(400, ge=1, le=20_000, description="GEP's m, number of public images for its basis.")
    anchors_dataset_id: str = Field(
        "",
        max_length=_ID_CHARACTERS_MAX,
        description="Public dataset from which the anchors are drawn; empty: patterns made from a public seed.",
    )
    power_iterations: int = Field(
        1, ge=1, le=20, description="Number of power iterations for GEP's basis (t) or RGP's carriers (K)."
    )
    rank: int = Field(8, ge=1, le=256, description="RGP's r, upper bound of the rank of each layer's carriers.")
    rank_fraction: float = Field(
        1.0, ge=1e-3, le=1, description="Second upper bound of RGP's rank, as a share of a layer's smaller side."
    )
    warm_up_fraction: float = Field(
        0.1, ge=0, le=1, description="Share of the steps in which RGP's carriers come from the weights themselves."
    )
    freeze: Literal["none", "random", "ranked", "posterior"] = Field(
        "none",
        description="Gradient coordinates that are frozen (not released) in an epoch: none, random ones, those with "
        "the smallest released gradients, or (posterior) random ones that still count towards the clip.",
    )
    freeze_rate: float = Field(0.5, ge=0, le=0.99, description="r*, the share of frozen coordinates at the end.")
    freeze_cooling: float = Field(
        0.5, ge=0, le=1, description="e*, share of the steps over which the frozen share grows to freeze_rate."
    )
    freeze_every: Literal["epoch", "step"] = Field("epoch", description="How long a mask of frozen coordinates lasts.")
    learning_rate: float = Field(0.5, ge=1e-8, le=10_000, description="Initial learning rate of the optimiser.")
    rate_drops: int = Field(
        0, ge=0, le=1000, description="Number of times that the learning rate drops, at equal intervals; 0: never."
    )
    rate_decay: float = Field(0.1, ge=1e-3, le=1, description="Factor by which the learning rate drops.")
    weight_decay: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Weight decay: a step subtracts this share of the weights, times the learning rate; Adam adds it "
        "to the gradient.",
    )
    momentum: float = Field(0.9, ge=0, le=0.999, description="Momentum of SGD, which adds up noise; Adam ignores it.")
    optimiser: Literal["sgd", "adam"] = Field("sgd", description="Optimiser that receives the released gradients.")
    ema: float = Field(
        0.0, ge=0, le=0.99999, description="Decay of the average of weights, which is released; 0: the last weights."
    )
    multiplicity: int = Field(
        1,
        ge=1,
        le=64,
        description="K, views of each record, such as noise levels; the mean of their gradients is clipped.",
    )
    records_per_subject: int = Field(
        4, ge=1, le=1024, description="Records that are drawn from each sampled subject, if the unit is the subject."
    )
    initial_seed: int = Field(
        0, ge=0, le=2**31 - 1, description="Public seed of initial weights and of all public randomness."
    )

    def check(self) -> None:
        if self.anchors_dataset_id and self.estimator not in _ANCHORED:
            raise self.refusal("anchors_dataset_id", f"only gep and bgep use anchors; {self.estimator} does not")
        if self.freeze != "none" and self.estimator not in _FREEZABLE:
            raise self.refusal("freeze", f"{self.estimator} cannot freeze coordinates; {', '.join(_FREEZABLE)} can")
        if self.freeze == "posterior" and self.estimator != "dpsgd":
            raise self.refusal("freeze", "posterior freezing works with the estimator dpsgd only")

    def sampling_probability(self, facts: PublicFacts) -> float:
        """Return q, the probability that a unit is in the sample of a step."""
        return min(1.0, self.expected_batch / facts.units_declared)

    def steps(self, facts: PublicFacts) -> int:
        """Return the number of steps in all epochs.

        Raises:
            InvalidParameter: there are too many steps.
        """
        steps = max(1, math.ceil(self.epochs / self.sampling_probability(facts)))
        if steps > STEPS_MAX:
            raise self.refusal("epochs", f"{steps} steps exceed the limit of {STEPS_MAX}: raise expected_batch")
        return steps

    def freeze_schedule(self, facts: PublicFacts) -> FreezeSchedule:
        """Return the schedule of frozen coordinates; an epoch is one expected pass over the data."""
        epoch = max(1, round(1 / self.sampling_probability(facts)))
        cooling = self.freeze_cooling * self.steps(facts)
        return FreezeSchedule(self.freeze_rate, cooling, 1 if self.freeze_every == "step" else epoch)

    def rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 0, out of `steps`."""
        return self.learning_rate * self.rate_decay ** (step * (self.rate_drops + 1) // steps)

    @property
    def residual_bound(self) -> float:
        """GEP's S2, the bound on the norm of a residual."""
        return self.clip_residual or self.clip * _RESIDUAL_SHARE


def check_basis(config: StepsConfig, groups: int) -> None:
    """Raise unless GEP's basis has a vector for each of the private network's `groups` layers with parameters."""
    if config.estimator in _ANCHORED and config.basis_size < groups:
        raise config.refusal(
            "basis_size",
            f"{config.estimator} needs at least one vector for each layer, and this network has {groups} layers with "
            f"parameters: give {groups} or more",
        )


def paid_together(count: int) -> int:
    """Return how many of `count` releases are paid for at a time. At most this many are lost if a process is killed."""
    return max(1, count // _PAYMENTS)


def poisson_stage(name: str, probability: float, count: int, privacy_filter: Filter, budget_nano: int) -> Stage:
    """Plan `count` releases of Poisson samples, priced as a whole, with noise that fits the budget.

    The price includes repeating the releases that one crash may lose. A second crash can make the stage end early, by
    as many releases.

    Raises:
        InvalidParameter: no finite noise fits the budget.
    """
    repeats = paid_together(count) if probability < 1 else 0  # else each release, repeats too, has its own price
    multiplier = noise_multiplier_for(privacy_filter, probability, count + repeats, budget_nano)
    priced = PoissonGaussianEvent(probability, multiplier, count + repeats)
    event = dataclasses.replace(priced, count=count)
    return Stage(name, event, privacy_filter.cost_nano(priced), repeats=repeats)


def poisson_event(stage: Stage | None) -> PoissonGaussianEvent:
    """Return the event of a stage, which must exist and release Poisson samples."""
    assert stage is not None
    assert isinstance(stage.event, PoissonGaussianEvent)
    return stage.event


def plan_steps(
    config: StepsConfig, privacy_filter: Filter, budget_nano: int, facts: PublicFacts
) -> tuple[Stage, list[str], dict[str, Any]]:
    """Plan the private steps, with noise that fits the budget.

    Returns:
        The stage, notes for people, and public numbers to display.

    Raises:
        InvalidParameter: there are too many steps, or no finite noise fits the budget.
    """
    probability, steps = config.sampling_probability(facts), config.steps(facts)
    stage = poisson_stage(STEPS, probability, steps, privacy_filter, budget_nano)
    event = poisson_event(stage)
    frozen: dict[str, Any] = {"freeze": config.freeze}
    if config.freeze != "none":
        frozen["total_density"] = config.freeze_schedule(facts).density(event.count)
    shown = {
        "protects": facts.protects,
        "units_declared": facts.units_declared,
        "estimator": config.estimator,
        **frozen,
        "steps": event.count,
        "sampling_probability": event.sampling_probability,
        "noise_multiplier": event.noise_multiplier,
    }
    notes = [
        f"{event.count:,} steps, each on a Poisson sample of about {config.expected_batch:,} {facts.unit}s, with "
        f"noise of {event.noise_multiplier:.3g} times what one {facts.unit} can add."
    ]
    if event.is_sampled:
        notes.append(
            "All steps are charged together, which costs much less than charging each. So the first step spends the "
            "whole cost, even if the training is cancelled."
        )
    unsampled_nano = (event.count + stage.repeats) * event.mu_squared_exact * NANO
    if event.sampling_probability < 0.5 and stage.cost_nano > 0.99 * unsampled_nano:
        notes.append(
            "At the account's delta, no saving from sampling can be proven, so the noise is as large as without "
            "sampling. An account with a larger delta needs far less noise."
        )
    if config.estimator in _ANCHORED:
        anchors = f"{config.anchors:,} public patterns made from a public seed"
        if config.anchors_dataset_id:
            anchors = f"at most {config.anchors:,} images of the public dataset {config.anchors_dataset_id}"
        notes.append(f"The gradient's basis is computed from {anchors} with random labels; it uses no private image.")
    if facts.unit == "subject":
        notes.append(
            f"From each sampled subject {config.records_per_subject} records are drawn; their mean gradient is clipped."
        )
    return stage, notes, shown
