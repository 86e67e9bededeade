"""Configuration of the DataLens recipe: every public parameter, and the presets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from models.sizes import TEXTURE_CELL, teacher_parameters, texture_size
from privacy.aggregation.topagg_config import TopAggConfig
from privacy.errors import InvalidParameter
from privacy.plans.moment_votes import DETAILED, MomentVotesConfig
from privacy.plans.options import check_values, read_options
from privacy.plans.plan import PublicFacts, RecipeConfig

TEXTURE_MAX = 1024  # numbers: their covariances have half the square of that, and larger pictures get specks
IMAGES_MAX = 200_000
EVALUATION_SAMPLES_MAX = 200_000
TEACHER_PARAMETERS_MAX = 1_000_000_000  # of all teachers: 16 GB of weights, gradients and Adam's two moments, float32


@dataclasses.dataclass(frozen=True)
class DataLensConfig(RecipeConfig):
    """Public parameters of one DataLens training. The paper's letters are given where it has one.

    Attributes:
        warm_start: release class-conditional statistics first; off gives the paper's algorithm from a fixed prior.
        moment_votes: without a warm start, let teachers vote on class moments first (`privacy.plans.moment_votes`).
        moment_detail: more coefficients and each class's correlations: for budgets well above epsilon 1.
        vote_share: share of the budget that pays for votes on latents, after a warm start or moment votes if there
            is one; 0 turns them off.
        frequencies: the warm start sees the lowest frequencies^2 cosine coefficients of each channel, a public basis.
        coefficients: of these, those that the public prior (`privacy.plans.detail`) expects to be strongest; None: all.
        colour: "rgb", or "luma_chroma": brightness and two planes of colour, of which coefficients are taken.
        centre: public brightness around which images are clipped.
        noise_shape: noise grows with a coefficient's expected power to this exponent; 0: equal noise.
        texture: release the texture of images along with their coefficients, and draw images that have it
            (`models.texture`). Votes know nothing of it, so it needs a vote_share of 0.
        texture_waves: of the texture's waves over cells and orientations, those that the public prior expects to be
            strongest; all, where there are fewer.
        shrink: pull means, counts and the pooled covariance to what is expected, as far as noise explains them.
        components: principal components that carry the warm start, and numbers in a latent.
        class_components: leading ones in which classes get covariances of their own; None: all.
        clusters: Gaussians of one covariance of which a class is a mixture; noisy k-means finds their centres.
        mean_share: share of the warm start's budget for counts and means; pooled_share and class_share likewise.
        pooled_share: for the covariance within classes, pooled over classes.
        class_share: for each class's own covariance in the principal components.
        cluster_share: for the rounds of k-means.
        mean_clip: norm to which an image's coefficients are clipped around mid-grey, per 28x28 image of one channel.
        deviation_clip: norm to which an image's deviation from its class mean is clipped, likewise scaled.
        component_clip: the same in the principal components.
        teachers: N.
        top_k: k, coordinates for which a teacher votes on one image.
        clip: c, below which gradients keep their magnitude; large gradients saturate to plain signs.
        beta: share of teachers that the thresholded release needs.
        images: number of images whose gradients are aggregated in all; the noise then follows from the budget.
        stddev: sigma; when given, the number of images follows from the budget instead of `images`.
        images_per_iteration: m.
        teacher_steps: steps of each teacher in an iteration.
        pretraining_steps: steps of each teacher before the first iteration; nothing is released by them.
        teacher_hidden: hidden units of a teacher; 0 is a linear teacher.
        teacher_learning_rate: of Adam.
        teacher_weight_decay: decoupled.
        instance_noise: standard deviation of noise on the teachers' inputs.
        label_smoothing: target of real records is 1 - label_smoothing.
        step: gamma, largest distance in latent units by which the votes of one round move an image.
        rounds: how often the generator is refitted to all votes so far.
        features: tanh features of the generator's bending network.
        use_top_k: ablation switch of TopAgg, as are use_stochastic_sign and use_threshold.
        use_stochastic_sign: ablation switch.
        use_threshold: the generator learns from thresholded votes, as in the paper, rather than from noisy sums.
        evaluation_samples: synthetic images on which the released usefulness is measured.
        evaluation_seed: public seed of that measurement.
    """

    warm_start: bool = True
    moment_votes: bool = False
    moment_detail: bool = False
    vote_share: float = 0.1
    frequencies: int = 16
    coefficients: int | None = None
    colour: str = "rgb"
    centre: float = 0.25
    noise_shape: float = 0.0
    texture: bool = False
    texture_waves: int = TEXTURE_MAX
    shrink: bool = False
    components: int = 80
    class_components: int | None = None
    clusters: int = 1
    mean_share: float = 0.1
    pooled_share: float = 0.45
    class_share: float = 0.45
    cluster_share: float = 0.0
    mean_clip: float = 10.0
    deviation_clip: float = 7.0
    component_clip: float = 6.0
    teachers: int = 4000
    top_k: int = 20
    clip: float = 1e-5
    beta: float = 0.7
    images: int | None = 600
    stddev: float | None = None
    images_per_iteration: int = 20
    teacher_steps: int = 2
    pretraining_steps: int = 10
    teacher_hidden: int = 16
    teacher_learning_rate: float = 1e-3
    teacher_weight_decay: float = 0.01
    instance_noise: float = 0.5
    label_smoothing: float = 0.1
    step: float = 0.1
    rounds: int = 5
    features: int = 64
    use_top_k: bool = True
    use_stochastic_sign: bool = True
    use_threshold: bool = False
    evaluation_samples: int = 30_000
    evaluation_seed: int = 0

    def __post_init__(self) -> None:
        check_values(
            self,
            integers=_INTEGERS,
            numbers=_NUMBERS,
            choices=_CHOICES,
            switches=_SWITCHES,
            optional=("images", "stddev", "coefficients", "class_components"),
        )
        if (self.images is None) == (self.stddev is None):
            raise InvalidParameter(
                "images", self.images, "give either the number of images or the noise stddev; the other one follows"
            )
        whole = self.mean_share + self.pooled_share + self.class_share + self.cluster_share
        if not math.isclose(whole, 1.0, abs_tol=1e-9):
            raise InvalidParameter(
                "mean_share", self.mean_share, "mean, pooled, class and cluster shares must add up to 1"
            )
        if (self.clusters > 1) != (self.cluster_share > 0):
            raise InvalidParameter(
                "clusters",
                self.clusters,
                "more than one needs a cluster_share, and one has none: give all four shares",
            )
        if self.clusters > 1 and (not self.warm_start or self.vote_share > 0 or self.class_share == 0):
            raise InvalidParameter(
                "clusters",
                self.clusters,
                "they are part of the warm start alone, around whose centres classes' covariances are taken: set "
                "warm_start, a class_share and a vote_share of 0",
            )
        if self.warm_start and self.moment_votes:
            raise InvalidParameter("moment_votes", True, "they take the place of the warm start: turn that off")
        if self.texture and (not self.warm_start or self.vote_share > 0):
            raise InvalidParameter(
                "texture", True, "it is part of the warm start alone: set warm_start and a vote_share of 0"
            )
        if not self.has_start and self.vote_share == 0:
            raise InvalidParameter("vote_share", 0.0, "without a warm start the votes are all there is")
        if self.has_start and self.vote_share == 1:
            raise InvalidParameter("vote_share", 1.0, "nothing is left for the warm start: turn it off instead")

    @property
    def has_start(self) -> bool:
        """Whether something is released before the votes on latents."""
        return self.warm_start or self.moment_votes

    @property
    def changes_its_start(self) -> bool:
        """As in every recipe."""
        return self.warm_start and self.vote_share > 0

    @property
    def drawing_seconds(self) -> float:
        """As in every recipe."""
        return 3e-3 if self.texture else 8e-4

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
        """Numbers in a latent: `components`, or fewer where the images have fewer coefficients."""
        if self.moment_votes:
            return self.moments(facts).coefficients
        rows, columns = self.grid(facts)
        seen = facts.channels * rows * columns
        seen = seen if self.coefficients is None else min(seen, self.coefficients)
        return min(self.components, seen + self.texture_size(facts))

    def texture_size(self, facts: PublicFacts) -> int:
        """Numbers of the texture of an image that are released; 0 where it is not."""
        return min(texture_size(facts.height, facts.width), self.texture_waves) if self.texture else 0

    def class_size(self, facts: PublicFacts) -> int:
        """Components in which a class has a covariance of its own."""
        latent = self.latent_size(facts)
        return latent if self.class_components is None else min(self.class_components, latent)

    def parameters_per_teacher(self, facts: PublicFacts) -> int:
        """Trained numbers of one teacher on latents."""
        return teacher_parameters(self.latent_size(facts), len(facts.classes), self.teacher_hidden)

    def grid(self, facts: PublicFacts) -> tuple[int, int]:
        """Cosine frequencies kept along height and width."""
        return min(self.frequencies, facts.height), min(self.frequencies, facts.width)

    def topagg(self, facts: PublicFacts, stddev: float) -> TopAggConfig:
        """The aggregation of votes on latents with that noise."""
        return TopAggConfig(
            k=self.top_k,
            c=self.clip,
            stddev=stddev,
            beta=self.beta,
            teachers=self.teachers,
            dimension=self.latent_size(facts),
            top_k=self.use_top_k,
            stochastic_sign=self.use_stochastic_sign,
            threshold=self.use_threshold,
        )


_INTEGERS = {
    "frequencies": (1, 64),
    "coefficients": (1, 4096),
    "texture_waves": (1, TEXTURE_MAX),
    "components": (1, 1024),
    "class_components": (1, 1024),
    "clusters": (1, 64),
    "teachers": (1, 100_000),
    "top_k": (1, 1_000_000),
    "images": (1, IMAGES_MAX),
    "images_per_iteration": (1, 4096),
    "teacher_steps": (1, 100),
    "pretraining_steps": (1, 1000),
    "teacher_hidden": (0, 1024),
    "rounds": (1, 1000),
    "features": (0, 4096),
    "evaluation_samples": (100, EVALUATION_SAMPLES_MAX),
    "evaluation_seed": (0, 2**31 - 1),
}
_NUMBERS = {
    "vote_share": (0.0, 1.0),
    "mean_share": (1e-3, 1.0),
    "pooled_share": (0.0, 1.0),
    "class_share": (0.0, 1.0),
    "cluster_share": (0.0, 1.0),
    "centre": (0.0, 1.0),
    "noise_shape": (0.0, 1.0),
    "mean_clip": (1e-3, 1e3),
    "deviation_clip": (1e-3, 1e3),
    "component_clip": (1e-3, 1e3),
    "clip": (1e-30, 1e6),
    "beta": (1e-6, 1.0),
    "stddev": (1.0, 1e9),
    "teacher_learning_rate": (1e-8, 1.0),
    "teacher_weight_decay": (0.0, 10.0),
    "instance_noise": (0.0, 10.0),
    "label_smoothing": (0.0, 0.5),
    "step": (0.0, 10.0),
}
_SWITCHES = (
    "warm_start",
    "moment_votes",
    "moment_detail",
    "texture",
    "shrink",
    "use_top_k",
    "use_stochastic_sign",
    "use_threshold",
)
_CHOICES = {"colour": ("rgb", "luma_chroma")}
# The first two are completed by `privacy.plans.datalens_defaults`; "fixed" is what was once chosen on the 60,000 images
# of Fashion-MNIST, whatever is declared.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "fixed": {},
    "warm_start_only": {"vote_share": 0.0},
    "votes_only": {"warm_start": False, "moment_votes": True, "vote_share": 0.0},
    "votes_only_detailed": {"warm_start": False, "moment_votes": True, "moment_detail": True, "vote_share": 0.0},
}


def suits_texture(facts: PublicFacts) -> bool:
    """Whether the texture of such images can be released: whole cells, and not too many numbers."""
    whole = facts.height % TEXTURE_CELL == 0 and facts.width % TEXTURE_CELL == 0
    return whole and texture_size(facts.height, facts.width) <= TEXTURE_MAX


def config_from_options(options: Mapping[str, Any]) -> DataLensConfig:
    """Build a configuration from an optional "preset" and fields that replace its values.

    Raises:
        InvalidParameter: an unknown preset or option, or a value out of range.
    """
    if options.get("stddev") is not None and "images" not in options:
        options = {**options, "images": None}
    return read_options(DataLensConfig, options, PRESETS, "DataLens")
