"""Plan, options and defaults of the DataLens recipe: teachers vote on the pixels of synthetic images."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal

from pydantic import Field

from models.sizes import convolutional_sizes
from obscura.wire.budgets import UNITS
from privacy.accounting.events import GaussianEvent, check_integer, positive_finite
from privacy.accounting.filter import Filter, release_nano, stddev_for
from privacy.errors import InvalidParameter
from privacy.plans.options import ClassFractionsConfig, EvaluationSamples, EvaluationSeed, read_options
from privacy.plans.plan import GENERATOR_NOTES, UNIT_NOTES, Plan, PublicFacts, Recipe, Stage, mu_of

VOTES = "votes"  # the only stage
IMAGES_MAX = 200_000
TEACHER_BYTES = 16  # bytes per trained number of a teacher: weight, gradient and Adam's two moments, float32
TEACHER_PARAMETERS_MAX = 4_000_000_000  # numbers of all teachers: 64 GB, which fit into one large GPU
UNITS_PER_TEACHER_MIN = 4
_NOTE_FROM_BYTES = 16 * 10**9  # bytes of teachers' memory that exceed a small machine
# k of 784 pixels and beta in the preset "published": with much noise per teacher (epsilon 1) and with little (10).
_LOUD, _QUIET, _QUIET_FROM = (200, 0.7), (350, 0.2), 1.0  # mu of the whole budget
_KERNEL_TOP_K = 400  # of 784 pixels, in the preset "kernel"
# Bounds of `TopAggConfig`, which are wider than those of a request.
_TEACHERS_MAX = 1 << 20
_DIMENSION_MAX = 1 << 24
_C_MIN = 1e-37


@dataclasses.dataclass(frozen=True)
class TopAggConfig:
    """Parameters of Algorithms 2 and 3 of Wang et al. 2021 (arXiv:2103.11109).

    Attributes:
        k: largest number of coordinates on which one teacher votes.
        c: clipping constant of a coordinate before normalisation; if small, every vote is a plain sign.
        stddev: the paper's sigma, parameter of the discrete Gaussian noise on each coordinate of a vote sum.
        beta: share of the teachers that must agree, in (0, 1].
        teachers: the paper's N, number of teachers, including those with an empty shard.
        dimension: the paper's d, number of coordinates of one image.
        top_k: ablation switch. Off: a teacher votes on all d coordinates, which raises the sensitivity.
        stochastic_sign: ablation switch. Off: a vote is the sign of its coordinate.
        threshold: ablation switch. Off: the release is the noisy mean vote.
    """

    k: int
    c: float
    stddev: float
    beta: float
    teachers: int
    dimension: int
    top_k: bool = True
    stochastic_sign: bool = True
    threshold: bool = True

    def __post_init__(self) -> None:
        for name, highest in (("teachers", _TEACHERS_MAX), ("dimension", _DIMENSION_MAX), ("k", self.dimension)):
            check_integer(name, getattr(self, name), highest)
        for name in ("c", "stddev", "beta"):
            object.__setattr__(self, name, positive_finite(name, getattr(self, name)))
        if self.c < _C_MIN:
            raise InvalidParameter("c", self.c, f"it must be at least {_C_MIN}, so that clipped floats are not zero")
        if self.beta > 1:
            raise InvalidParameter("beta", self.beta, "it is a share of the teachers, so at most 1")

    @property
    def votes_max(self) -> int:
        """Return the largest number of coordinates on which one teacher votes: k, or d without the top-k step."""
        return self.k if self.top_k else self.dimension

    @property
    def sensitivity(self) -> float:
        """Return the L2 sensitivity of one image's vote sum to one unit: 2 sqrt(k) (Lemma 1), rounded up.

        Proof: a unit is in one shard, so its presence changes one teacher's votes, from u to v. Both are in {-1, 0,
        1}^d with at most k nonzero coordinates. |u - v| <= |u| + |v| <= 2 sqrt(k), attained by v = -u. Empty shards,
        zero gradients and NaN vote zero, which only shortens u or v.
        """
        bound = 2.0 * math.sqrt(self.votes_max)
        while Fraction(bound) ** 2 < 4 * self.votes_max:
            bound = math.nextafter(bound, math.inf)
        return bound

    def event(self, images: int) -> GaussianEvent:
        """Return the event of `images` releases, one per image. Raise InvalidParameter if stddev is too small."""
        return GaussianEvent.of_discrete_noise(self.sensitivity, self.stddev, images)


class DataLensConfig(ClassFractionsConfig):
    """Public parameters of one DataLens training. Descriptions contain the paper's letters."""

    groups = (("teachers", "Noise and privacy"), ("images_per_iteration", "Training"))
    drawing_cost = 3e-3

    teachers: int = Field(
        4000,
        ge=1,
        le=100_000,
        description="N, the number of teachers: networks that vote, each trained on its own part of the records.",
    )
    top_k: int = Field(
        20, ge=1, le=1_000_000, description="k, the number of pixels of an image that a teacher votes on."
    )
    clip: float = Field(
        1e-5, ge=1e-30, le=1e6, description="c, the bound on a pixel's gradient; beyond c, a vote is a plain sign."
    )
    beta: float = Field(
        0.7,
        ge=1e-6,
        le=1,
        description="Share of teachers that must agree in the thresholded release; the preset `published` derives it "
        "from the budget.",
    )
    images: int | None = Field(
        2250, ge=1, le=IMAGES_MAX, description="Number of images that teachers vote on; null if stddev is given."
    )
    stddev: float | None = Field(
        None, ge=1, le=1e9, description="sigma, the noise of one sum of votes; if given, it determines `images`."
    )
    images_per_iteration: int = Field(
        15, ge=2, le=4096, description="m, number of images in one round of votes, which teachers normalise together."
    )
    teacher_steps: int = Field(2, ge=1, le=100, description="Steps of each teacher in a round of votes.")
    pretraining_steps: int = Field(
        10, ge=1, le=1000, description="Steps of each teacher before the first round; these steps release nothing."
    )
    teacher_network: Literal["linear", "kernel", "convolutional"] = Field(
        "kernel",
        description="Kind of teachers: linear in pixels (linear), linear in the features of a Gaussian kernel "
        "(kernel), or the published network (convolutional). The first two are computed in closed form.",
    )
    teacher_bandwidth: float = Field(
        4.0,
        ge=0.01,
        le=1000,
        description="For kernel teachers: distance at which a record still attracts an image, in units of full "
        "brightness, for a grey image of 28 x 28 pixels.",
    )
    generator_learning_rate: float = Field(1e-3, ge=1e-8, le=1, description="Learning rate of the generator's Adam.")
    teacher_features: int = Field(32, ge=1, le=256, description="Channels of a convolutional teacher.")
    teacher_hidden: int = Field(256, ge=1, le=1024, description="Hidden units of a convolutional teacher.")
    teacher_learning_rate: float = Field(
        1e-3, ge=1e-8, le=1, description="Learning rate of the Adam of convolutional teachers."
    )
    step: float = Field(
        1e-3, ge=0, le=10, description="gamma, largest amount by which the votes of one round change a pixel."
    )
    use_top_k: bool = Field(True, description="Ablation of TopAgg: if false, teachers vote on every pixel.")
    use_stochastic_sign: bool = Field(True, description="Ablation of TopAgg: if false, every vote is a plain sign.")
    use_threshold: bool = Field(
        False, description="If true, the generator learns from thresholded votes, as in the paper, not noisy sums."
    )
    evaluation_samples: EvaluationSamples = 30_000
    evaluation_seed: EvaluationSeed = 0

    def check(self) -> None:
        if (self.images is None) == (self.stddev is None):
            raise self.refusal("images", "give either images or stddev; the other follows from the budget")

    def parameters_per_teacher(self, facts: PublicFacts) -> int:
        """Return the number of trained parameters of one teacher: 0 for a kernel teacher, which stores its records."""
        classes = len(facts.classes)
        if self.teacher_network == "kernel":
            return 0
        if self.teacher_network == "linear":
            return facts.pixels * classes
        sides = facts.channels, facts.height, facts.width
        sizes = convolutional_sizes(*sides, classes, self.teacher_features, self.teacher_hidden)
        return sum(map(math.prod, sizes.values()))

    def topagg(self, facts: PublicFacts, stddev: float) -> TopAggConfig:
        """Return the configuration of vote aggregation with noise `stddev`."""
        return TopAggConfig(
            k=self.top_k,
            c=self.clip,
            stddev=stddev,
            beta=self.beta,
            teachers=self.teachers,
            dimension=facts.pixels,
            top_k=self.use_top_k,
            stochastic_sign=self.use_stochastic_sign,
            threshold=self.use_threshold,
        )


# Algorithms 1 to 3, with the authors' generator and step size. `teachers` and `top_k` follow from the declared images,
# and beta of "published" from the budget.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "kernel": {},
    "published": {"teacher_network": "linear", "use_threshold": True},
}


def config_from_options(options: Mapping[str, Any], mu: float, facts: PublicFacts) -> DataLensConfig:
    """Complete a request's options with defaults from the budget and declared facts. Read no private data.

    Args:
        options: a preset and options that override its values; stated options keep their values.
        mu: parameter of one Gaussian release that uses the whole budget.

    Raises:
        InvalidParameter: an unknown preset or option, or a value out of range.
    """
    if options.get("stddev") is not None and "images" not in options:
        options = {**options, "images": None}
    config = read_options(DataLensConfig, options, PRESETS)
    follows: dict[str, Any] = {"teachers": max(1, min(config.teachers, facts.units_declared // UNITS_PER_TEACHER_MIN))}
    k = _KERNEL_TOP_K
    if options.get("preset") == "published":
        k, follows["beta"] = _QUIET if mu >= _QUIET_FROM else _LOUD
    follows["top_k"] = max(1, round(k * facts.pixels / 784))
    return config.with_values(**{name: value for name, value in follows.items() if name not in options})


def plan_from_options(options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    """Plan the votes: compute their noise from the budget and the number of images, or that number from the noise."""
    config = config_from_options(options, mu_of(budget_nano), facts)
    if config.top_k > facts.pixels:
        raise config.refusal("top_k", f"an image has {facts.pixels} pixel values, so top_k is at most {facts.pixels}")
    teachers_max = facts.units_declared // UNITS_PER_TEACHER_MIN
    if config.teachers > teachers_max:
        raise config.refusal(
            "teachers",
            f"{facts.units_declared} declared {facts.unit}s support at most {teachers_max} teachers "
            f"({UNITS_PER_TEACHER_MIN} {facts.unit}s each)",
        )
    each = config.parameters_per_teacher(facts)
    if config.teachers * each > TEACHER_PARAMETERS_MAX:
        fewer = "teachers" if config.teacher_network == "linear" else "teachers or teacher_hidden"
        raise config.refusal(
            "teachers",
            f"teachers of {each:,} parameters each have {config.teachers * each:,} together, above the limit of "
            f"{TEACHER_PARAMETERS_MAX:,}: lower {fewer}; {TEACHER_PARAMETERS_MAX // each:,} teachers of this size "
            "would fit",
        )
    m = config.images_per_iteration
    if config.images is not None:
        iterations = max(1, config.images // m)
        sensitivity = config.topagg(facts, 1e6).sensitivity
        stddev = stddev_for(sensitivity, budget_nano, iterations * m)
    else:
        assert config.stddev is not None
        stddev = config.stddev
        iterations = min(budget_nano // release_nano(config.topagg(facts, stddev).event(1)), IMAGES_MAX) // m
        if iterations < 1:
            raise config.refusal("stddev", f"one round of {m} images exceeds the budget: raise stddev or epsilon")
    images = iterations * m
    event = config.topagg(facts, stddev).event(images)
    shards = "disjoint shards" if facts.unit == "record" else "shards that share no subject"
    notes = [*UNIT_NOTES[facts.unit], f"{config.teachers} teachers on {shards} vote on {images} synthetic images."]
    held = TEACHER_BYTES * config.teachers * each
    if held > _NOTE_FROM_BYTES:
        notes.append(
            f"The teachers need {held / 10**9:.0f} GB of memory, on one GPU or divided among several. With less, the "
            "training fails before anything is charged."
        )
    return Plan(
        recipe="datalens",
        config=config,
        stages=(Stage(VOTES, event, privacy_filter.cost_nano(event), stddev),),
        budget_nano=budget_nano,
        notes=(*notes, *GENERATOR_NOTES),
        facts={
            "protects": facts.protects,
            "units_declared": facts.units_declared,
            "teachers": config.teachers,
            "images_to_aggregate": images,
            "iterations": iterations,
            "noise_stddev": {VOTES: stddev},  # parameter of the discrete Gaussian
        },
    )


def planned_iterations(plan: Plan) -> int:
    """Return the number of rounds of votes in a plan."""
    return plan.stages[0].event.count // plan.config_of(DataLensConfig).images_per_iteration


RECIPE = Recipe(
    name="datalens",
    title="DataLens",
    publishes="generator",
    releases="A generator of labelled images; generating images from it is free.",
    config=DataLensConfig,
    plan=plan_from_options,
    units=frozenset(UNITS),
    presets=PRESETS,
    follows=frozenset({"teachers", "top_k", "beta"}),
)
