"""Configuration of the DataLens recipe: every public parameter, and the presets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from models.teacher_sizes import convolutional_sizes, teacher_parameters
from privacy.aggregation.topagg_config import TopAggConfig
from privacy.errors import InvalidParameter
from privacy.plans.datalens.moment_votes import DETAILED, MomentVotesConfig
from privacy.plans.moments.options import MomentsConfig
from privacy.plans.options import read_options
from privacy.plans.plan import PublicFacts

IMAGES_MAX = 200_000
TEACHER_BYTES = 16  # of a number that a teacher learns: the weight, its gradient and Adam's two moments, float32
TEACHER_PARAMETERS_MAX = 4_000_000_000  # of all teachers: 64 GB, which one large GPU holds


class DataLensConfig(MomentsConfig):
    """Public parameters of one DataLens training. The paper's letters are given where it has one.

    Plans of 2026 without votes, of which the recipe `moments` has become, are read by it as well.
    """

    warm_start: bool = Field(
        True, description="Release class-conditional statistics first; off: the paper's algorithm from a fixed prior."
    )
    moment_votes: bool = Field(False, description="Without a warm start: teachers vote on class moments first.")
    moment_detail: bool = Field(
        False, description="Moment votes on more numbers and on each class's correlations: for a large epsilon."
    )
    vote_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Share of the budget that pays for votes on latents, after a warm start or moment votes if there "
        "is one; 0 turns them off.",
    )
    teachers: int = Field(
        4000, ge=1, le=100_000, description="N, networks on disjoint parts of the records, which vote."
    )
    top_k: int = Field(20, ge=1, le=1_000_000, description="k, coordinates for which a teacher votes on one image.")
    clip: float = Field(
        1e-5, ge=1e-30, le=1e6, description="c, below which gradients keep their size; large ones become plain signs."
    )
    beta: float = Field(
        0.7,
        ge=1e-6,
        le=1,
        description="Share of teachers that the thresholded release needs; `published` chooses it by the budget.",
    )
    images: int | None = Field(
        600, ge=1, le=IMAGES_MAX, description="Images whose gradients are aggregated; null where stddev is given."
    )
    stddev: float | None = Field(
        None, ge=1, le=1e9, description="sigma of one aggregation; when given, the number of images follows."
    )
    images_per_iteration: int = Field(20, ge=1, le=4096, description="m, images on which the teachers vote together.")
    teacher_steps: int = Field(2, ge=1, le=100, description="Steps of each teacher in an iteration.")
    pretraining_steps: int = Field(
        10, ge=1, le=1000, description="Steps of each teacher before the first iteration; nothing is released by them."
    )
    votes_on: Literal["latents", "pixels"] = Field(
        "latents",
        description="What teachers vote on: the numbers of a latent or, as published, an image's pixels, for which the "
        "generator starts from nothing.",
    )
    teacher_network: Literal["linear", "kernel", "dense", "convolutional"] = Field(
        "dense",
        description="Of votes on pixels: teachers that are linear in pixels or in the features of a Gaussian kernel, "
        "both in closed form, one hidden layer, or the published network.",
    )
    teacher_bandwidth: float = Field(
        4.0,
        ge=0.01,
        le=1000,
        description="Of kernel teachers: how far away a record still pulls an image, as a distance in units of full "
        "brightness, at 28 x 28 grey.",
    )
    teacher_features: int = Field(32, ge=1, le=256, description="Channels of a convolutional teacher.")
    generator_learning_rate: float = Field(
        1e-3, ge=1e-8, le=1, description="Learning rate of the generator's Adam, where votes are on pixels."
    )
    teacher_hidden: int = Field(16, ge=0, le=1024, description="Hidden units of a teacher; 0 is a linear teacher.")
    teacher_learning_rate: float = Field(1e-3, ge=1e-8, le=1, description="Learning rate of the teachers' Adam.")
    teacher_weight_decay: float = Field(0.01, ge=0, le=10, description="Decoupled weight decay of the teachers.")
    instance_noise: float = Field(0.5, ge=0, le=10, description="Standard deviation of noise on the teachers' inputs.")
    label_smoothing: float = Field(
        0.1, ge=0, le=0.5, description="The teachers' target of real records is 1 - label_smoothing."
    )
    step: float = Field(
        0.1, ge=0, le=10, description="gamma, largest distance by which the votes of one round move a latent."
    )
    rounds: int = Field(5, ge=1, le=1000, description="How often the generator is refitted to all votes so far.")
    features: int = Field(64, ge=0, le=4096, description="Features (tanh) of the generator's bending network.")
    use_top_k: bool = Field(True, description="Ablation of TopAgg: off lets teachers vote on every coordinate.")
    use_stochastic_sign: bool = Field(True, description="Ablation of TopAgg: off takes plain signs.")
    use_threshold: bool = Field(
        False, description="The generator learns from thresholded votes, as in the paper, rather than from noisy sums."
    )

    def check(self) -> None:
        super().check()
        if (self.images is None) == (self.stddev is None):
            raise InvalidParameter(
                "images", self.images, "give either the number of images or the noise stddev; the other one follows"
            )
        if self.votes_on == "pixels" and self.has_start:
            raise InvalidParameter(
                "votes_on", "pixels", "the generator learns from nothing then: turn warm_start and moment_votes off"
            )
        if self.teacher_network == "convolutional" and self.teacher_hidden == 0:
            raise InvalidParameter("teacher_hidden", 0, "a convolutional teacher has at least one hidden unit")
        if self.votes_on == "latents" and self.teacher_network != "dense":
            raise InvalidParameter("teacher_network", self.teacher_network, "it votes on pixels: set votes_on")
        if self.warm_start and self.moment_votes:
            raise InvalidParameter("moment_votes", True, "they take the place of the warm start: turn that off")
        for name, given in (("clusters", self.clusters > 1), ("texture", self.texture)):
            if given and not self.warm_start:
                raise InvalidParameter(name, getattr(self, name), "it is part of the warm start: set warm_start")
        if not self.has_start and self.vote_share == 0:
            raise InvalidParameter("vote_share", 0.0, "without a warm start the votes are all there is")
        if self.has_start and self.vote_share == 1:
            raise InvalidParameter("vote_share", 1.0, "nothing is left for the warm start: turn it off instead")

    @property
    def starts_from(self) -> Literal["statistics", "votes", "nothing"]:
        """What is released before the votes on latents: class statistics, teachers' votes on moments, or nothing."""
        return "statistics" if self.warm_start else "votes" if self.moment_votes else "nothing"

    @property
    def has_start(self) -> bool:
        """Whether something is released before the votes on latents."""
        return self.starts_from != "nothing"

    @property
    def start_share(self) -> float:
        return 1.0 - self.vote_share

    @property
    def drawing_seconds(self) -> float:
        return 3e-3 if self.votes_on == "pixels" else super().drawing_seconds

    @property
    def changes_its_start(self) -> bool:
        return self.warm_start and self.vote_share > 0

    def moments(self, facts: PublicFacts) -> MomentVotesConfig:
        """The moment rounds."""
        detail = DETAILED if self.moment_detail else MomentVotesConfig()
        return dataclasses.replace(
            detail,
            teachers=self.teachers,
            stochastic_sign=self.use_stochastic_sign,
            coefficients=min(detail.coefficients, facts.pixels),
            class_coefficients=min(detail.class_coefficients, facts.pixels),
        )

    def latent_size(self, facts: PublicFacts) -> int:
        return self.moments(facts).coefficients if self.moment_votes else super().latent_size(facts)

    def vote_size(self, facts: PublicFacts) -> int:
        """Numbers of an image on which teachers vote."""
        return facts.pixels if self.votes_on == "pixels" else self.latent_size(facts)

    def parameters_per_teacher(self, facts: PublicFacts) -> int:
        """Numbers that one teacher learns."""
        classes = len(facts.classes)
        if self.teacher_network == "kernel":
            return 0  # its records are all that it knows
        if self.teacher_network == "linear":
            return facts.pixels * classes
        if self.teacher_network == "convolutional":
            sides = facts.channels, facts.height, facts.width
            sizes = convolutional_sizes(*sides, classes, self.teacher_features, self.teacher_hidden)
            return sum(map(math.prod, sizes.values()))
        return teacher_parameters(self.vote_size(facts), classes, self.teacher_hidden)

    def topagg(self, facts: PublicFacts, stddev: float) -> TopAggConfig:
        """The aggregation of votes with that noise."""
        return TopAggConfig(
            k=self.top_k,
            c=self.clip,
            stddev=stddev,
            beta=self.beta,
            teachers=self.teachers,
            dimension=self.vote_size(facts),
            top_k=self.use_top_k,
            stochastic_sign=self.use_stochastic_sign,
            threshold=self.use_threshold,
        )


_ON_PIXELS: Mapping[str, Any] = {  # Algorithms 1 to 3 from nothing, with the authors' generator and steps
    "warm_start": False,
    "vote_share": 1.0,
    "votes_on": "pixels",
    "images": 2250,
    "images_per_iteration": 15,
    "step": 1e-3,
    "teacher_hidden": 256,
    "teacher_weight_decay": 0.0,
    "instance_noise": 0.0,
    "label_smoothing": 0.0,
}
# The first three are completed by `privacy.plans.datalens.defaults`; the default pays little for votes, since moments
# are worth more; "fixed" is what was once chosen on the 60,000 images of Fashion-MNIST, whatever is declared.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {"vote_share": 0.01},
    "published": {**_ON_PIXELS, "teacher_network": "linear", "use_threshold": True},  # k and beta follow
    "kernel": {**_ON_PIXELS, "teacher_network": "kernel"},  # k follows
    "fixed": {},
    "votes_only": {"warm_start": False, "moment_votes": True, "vote_share": 0.0},
    "votes_only_detailed": {"warm_start": False, "moment_votes": True, "moment_detail": True, "vote_share": 0.0},
}
_MOVED = "this is the recipe `moments` now, in which no teacher votes: ask for that recipe, without options of votes"


def config_from_options(options: Mapping[str, Any]) -> DataLensConfig:
    """Build a configuration from an optional "preset" and fields that replace its values.

    Raises:
        InvalidParameter: an unknown preset or option, a value out of range, or a warm start without votes, which is
            the recipe `moments` (plans of earlier requests are read all the same).
    """
    if options.get("preset") == "warm_start_only":
        raise InvalidParameter("preset", "warm_start_only", _MOVED)
    if options.get("stddev") is not None and "images" not in options:
        options = {**options, "images": None}
    config = read_options(DataLensConfig, options, PRESETS)
    if config.warm_start and config.vote_share == 0:
        raise InvalidParameter("vote_share", 0.0, _MOVED)
    return config
