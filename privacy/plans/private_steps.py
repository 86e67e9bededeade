"""What every recipe of the DP-SGD family plans: Poisson-sampled steps of one gradient estimator under one budget.

Sampling: in each step each unit is drawn independently with one public probability q = expected_batch / n, where n is
the declared number of units. An account with fewer units than it declared gets smaller batches, never a larger loss.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from privacy.accounting.calibration import noise_multiplier_for
from privacy.accounting.events import PoissonGaussianEvent
from privacy.accounting.filter import NANO, Filter
from privacy.errors import InvalidParameter
from privacy.plans.freezing import FreezeSchedule
from privacy.plans.options import check_values
from privacy.plans.plan import PublicFacts, RecipeConfig, Stage

STEPS = "gradient_steps"
STEPS_MAX = 200_000
_PAYMENTS = 100  # of a stage, each followed by a checkpoint
EstimatorName = Literal["dpsgd", "topagg", "gep", "bgep", "rgp", "rgp_random"]
ESTIMATORS: tuple[EstimatorName, ...] = ("dpsgd", "topagg", "gep", "bgep", "rgp", "rgp_random")
FREEZES = ("none", "random", "ranked", "posterior")
_ANCHORED = ("gep", "bgep")
_ID_CHARACTERS_MAX = 64
_RESIDUAL_SHARE = 0.2  # S2 / S1 in every experiment of GEP's paper
# RGP releases gradients of carriers, which are no coordinates of the weights, so no coordinate of them can rest.
_FREEZABLE = ("dpsgd", "topagg", "gep", "bgep")


@dataclasses.dataclass(frozen=True)
class StepsConfig(RecipeConfig):
    """Public parameters of the private steps. Papers' letters are given where they have one.

    Attributes:
        estimator: plain DP-SGD, TopAgg-SGD, GEP, B-GEP, RGP or RGP-random (`privacy.gradients`).
        epochs: expected number of times that a unit is drawn.
        expected_batch: units expected in one step.
        clip: C, the bound on one unit's gradient; S1 of GEP.
        keep: TopAgg's k, share of the squared norm that is kept.
        clip_residual: GEP's S2; 0 makes it a fifth of S1, as in the paper.
        basis_size: GEP's k, vectors of the anchors' basis.
        basis_groups: parameters that have a basis together in GEP: those of a layer, or of all layers of one width.
        anchors: GEP's m, public anchor images.
        anchors_dataset_id: public dataset that they are drawn from; without one they are patterns from a public seed.
        power_iterations: GEP's t and RGP's K, with which basis and carriers are found.
        rank: RGP's r, at most, of every layer.
        rank_share: bounds a layer's rank by this share of its smaller side as well.
        warm_up_share: share of the steps in which RGP's carriers come from the weights themselves.
        freeze: which coordinates rest in an epoch: none, random ones, those whose released gradients were smallest, or
            (posterior) random ones that still count towards the clip.
        freeze_rate: r*, the share of frozen coordinates at the end.
        freeze_cooling: e*, share of the steps over which the frozen share grows to that.
        freeze_every: how long a mask stays: epoch or step.
        learning_rate: of the optimiser, at first.
        rate_drops: how often it drops, after equal parts of the steps; 0 keeps it.
        rate_decay: factor of the rate at each drop.
        weight_decay: share of the weights, times the rate, that each step takes away (of Adam: added to its gradient).
        momentum: of SGD; ignored by Adam.
        optimiser: sgd or adam, fed with released gradients.
        ema: decay of the average of the weights that is released; 0 releases the last weights.
        multiplicity: K, random views of each record (noise levels of a diffusion model) whose mean loss is clipped.
        records_per_subject: records that are drawn of each sampled subject, where the unit is the subject.
        initial_seed: public seed of initial weights and of all public randomness.
    """

    estimator: str = "dpsgd"
    epochs: float = 10.0
    expected_batch: int = 512
    clip: float = 1.0
    keep: float = 0.8
    clip_residual: float = 0.0
    basis_size: int = 200
    basis_groups: str = "layers"
    anchors: int = 400
    anchors_dataset_id: str = ""
    power_iterations: int = 1
    rank: int = 8
    rank_share: float = 1.0
    warm_up_share: float = 0.1
    freeze: str = "none"
    freeze_rate: float = 0.5
    freeze_cooling: float = 0.5
    freeze_every: str = "epoch"
    learning_rate: float = 0.5
    rate_drops: int = 0
    rate_decay: float = 0.1
    weight_decay: float = 0.0
    momentum: float = 0.9
    optimiser: str = "sgd"
    ema: float = 0.0
    multiplicity: int = 1
    records_per_subject: int = 4
    initial_seed: int = 0

    def __post_init__(self) -> None:
        check_values(self, integers=_INTEGERS, numbers=_NUMBERS, choices=_CHOICES)
        if not isinstance(self.anchors_dataset_id, str) or len(self.anchors_dataset_id) > _ID_CHARACTERS_MAX:
            raise InvalidParameter("anchors_dataset_id", self.anchors_dataset_id, "it is the id of a public dataset")
        if self.anchors_dataset_id and self.estimator not in _ANCHORED:
            raise InvalidParameter(
                "anchors_dataset_id", self.anchors_dataset_id, f"{self.estimator} has no anchors; gep and bgep have"
            )
        if self.freeze != "none" and self.estimator not in _FREEZABLE:
            raise InvalidParameter(
                "freeze", self.freeze, f"{self.estimator} has no coordinates to freeze; {', '.join(_FREEZABLE)} have"
            )
        if self.freeze == "posterior" and self.estimator != "dpsgd":
            raise InvalidParameter("freeze", self.freeze, "freezing after clipping is a variant of plain dpsgd alone")

    def sampling_probability(self, facts: PublicFacts) -> float:
        """q: the chance of each unit to be in a step's sample."""
        return min(1.0, self.expected_batch / facts.units_declared)

    def steps(self, facts: PublicFacts) -> int:
        """Return the number of steps that make up the epochs.

        Raises:
            InvalidParameter: more than are allowed.
        """
        steps = max(1, math.ceil(self.epochs / self.sampling_probability(facts)))
        if steps > STEPS_MAX:
            raise InvalidParameter(
                "epochs", self.epochs, f"they are {steps} steps, above {STEPS_MAX}: take a larger expected_batch"
            )
        return steps

    def freeze_schedule(self, facts: PublicFacts) -> FreezeSchedule:
        """Return how many coordinates are frozen in each step; an epoch is one expected pass."""
        epoch = max(1, round(1 / self.sampling_probability(facts)))
        cooling = self.freeze_cooling * self.steps(facts)
        return FreezeSchedule(self.freeze_rate, cooling, 1 if self.freeze_every == "step" else epoch)

    def rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 0, of so many."""
        return self.learning_rate * self.rate_decay ** (step * (self.rate_drops + 1) // steps)

    @property
    def residual_bound(self) -> float:
        """S2 of GEP."""
        return self.clip_residual or self.clip * _RESIDUAL_SHARE


_INTEGERS = {
    "expected_batch": (1, 1_000_000),
    "basis_size": (1, 20_000),
    "anchors": (1, 20_000),
    "power_iterations": (1, 20),
    "rank": (1, 256),
    "rate_drops": (0, 1000),
    "multiplicity": (1, 64),
    "records_per_subject": (1, 1024),
    "initial_seed": (0, 2**31 - 1),
}
_NUMBERS = {
    "epochs": (1e-3, 10_000.0),
    "clip": (1e-6, 1e6),
    "keep": (1e-3, 1.0),
    "clip_residual": (0.0, 1e6),
    "rank_share": (1e-3, 1.0),
    "warm_up_share": (0.0, 1.0),
    "freeze_rate": (0.0, 0.99),
    "freeze_cooling": (0.0, 1.0),
    "learning_rate": (1e-8, 1e4),
    "rate_decay": (1e-3, 1.0),
    "weight_decay": (0.0, 1.0),
    "momentum": (0.0, 0.999),
    "ema": (0.0, 0.99999),
}
_CHOICES = {
    "estimator": ESTIMATORS,
    "basis_groups": ("layers", "widths"),
    "freeze": FREEZES,
    "freeze_every": ("epoch", "step"),
    "optimiser": ("sgd", "adam"),
}


def check_basis(config: StepsConfig, groups: int) -> None:
    """Refuse a basis that has no vector for some of the network's groups of parameters.

    Args:
        config: public parameters.
        groups: layers with parameters of the network that sees private records; GEP makes a group of each.

    Raises:
        InvalidParameter: the estimator is GEP or B-GEP, and its basis has fewer vectors than there are groups.
    """
    if config.estimator in _ANCHORED and config.basis_size < groups:
        raise InvalidParameter(
            "basis_size",
            config.basis_size,
            f"{config.estimator} takes a vector of each layer at least, and this network has {groups} layers with "
            f"parameters: take {groups} or more",
        )


def paid_together(count: int) -> int:
    """Return how many of so many releases are paid for at a time, and so lost at most where a process is killed."""
    return max(1, count // _PAYMENTS)


def poisson_stage(name: str, probability: float, count: int, privacy_filter: Filter, budget_nano: int) -> Stage:
    """Turn a budget into the noise of so many releases of Poisson samples, priced as a whole.

    Those that one crash may lose are paid for beforehand. After a second crash the stage ends that much earlier.

    Raises:
        InvalidParameter: the budget pays for no noise that is finite.
    """
    repeats = paid_together(count) if probability < 1 else 0  # else each has its own price, the repeated ones too
    multiplier = noise_multiplier_for(privacy_filter, probability, count + repeats, budget_nano)
    priced = PoissonGaussianEvent(probability, multiplier, count + repeats)
    event = dataclasses.replace(priced, count=count)
    return Stage(name, event, privacy_filter.price_nano(priced), repeats=repeats)


def steps_stage(config: StepsConfig, privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Stage:
    """Turn a budget into the noise of the private steps; refuses as `poisson_stage`."""
    probability, steps = config.sampling_probability(facts), config.steps(facts)
    return poisson_stage(STEPS, probability, steps, privacy_filter, budget_nano)


def poisson_event(stage: Stage | None) -> PoissonGaussianEvent:
    """Return what a stage releases that its plan has, and whose samples are Poisson's."""
    assert stage is not None
    assert isinstance(stage.event, PoissonGaussianEvent)
    return stage.event


def steps_facts(config: StepsConfig, stage: Stage, facts: PublicFacts) -> dict[str, Any]:
    """Return public numbers of the private steps for people."""
    event = poisson_event(stage)
    frozen: dict[str, Any] = {"freeze": config.freeze}
    if config.freeze != "none":
        frozen["total_density"] = config.freeze_schedule(facts).density(event.count)
    return {
        "protects": facts.protects,
        "units_declared": facts.units_declared,
        "estimator": config.estimator,
        **frozen,
        "steps": event.count,
        "sampling_probability": event.sampling_probability,
        "noise_multiplier": event.noise_multiplier,
    }


def steps_notes(config: StepsConfig, stage: Stage, facts: PublicFacts) -> tuple[str, ...]:
    """Return sentences for people about the private steps."""
    event = poisson_event(stage)
    notes = [
        f"{event.count:,} steps, each on a Poisson sample of about {config.expected_batch:,} {facts.unit}s, with "
        f"noise of {event.noise_multiplier:.3g} times what one {facts.unit} can add."
    ]
    if event.is_sampled:
        notes.append(
            "They are priced as a whole, which is much cheaper than one by one: once the first is made all of the "
            "price is spent, even where the training is cancelled."
        )
    unsampled_nano = (event.count + stage.repeats) * event.mu_squared_exact * NANO
    if event.sampling_probability < 0.5 and stage.price_nano > 0.99 * unsampled_nano:
        notes.append(
            "At the account's delta it cannot be shown what sampling saves: this is the noise of steps that take "
            "everybody. An account with a larger delta needs far less."
        )
    if config.anchors_dataset_id:
        notes.append(
            f"The gradient's basis comes from at most {config.anchors:,} images of the public dataset "
            f"{config.anchors_dataset_id}, with random labels; no private image has a part in it."
        )
    elif config.estimator in _ANCHORED:
        notes.append(
            f"The gradient's basis comes from {config.anchors:,} public patterns made from a public seed, with random "
            "labels; no private image has a part in it."
        )
    if facts.unit == "subject":
        notes.append(
            f"Of each sampled subject {config.records_per_subject} records are drawn; their mean gradient is clipped."
        )
    return tuple(notes)
