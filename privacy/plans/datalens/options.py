"""Configuration of the DataLens recipe: every public parameter, and the presets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from models.sizes import TEXTURE_CELL, teacher_parameters, texture_size
from privacy.aggregation.topagg_config import TopAggConfig
from privacy.errors import InvalidParameter
from privacy.plans.datalens.moment_votes import DETAILED, MomentVotesConfig
from privacy.plans.options import RecipeConfig, read_options
from privacy.plans.plan import PublicFacts

TEXTURE_MAX = 1024  # numbers: their covariances have half the square of that, and larger pictures get specks
IMAGES_MAX = 200_000
EVALUATION_SAMPLES_MAX = 200_000
TEACHER_PARAMETERS_MAX = 1_000_000_000  # of all teachers: 16 GB of weights, gradients and Adam's two moments, float32


class DataLensConfig(RecipeConfig):
    """Public parameters of one DataLens training. The paper's letters are given where it has one."""

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
    symmetry: Literal["none", "mirror", "square"] = Field(
        "none",
        description="Changes of a picture that its owner declares to be as likely as the picture: left and right "
        "swapped, or all eight symmetries of a square. Means and covariances that must then be zero are not released.",
    )
    frequencies: int = Field(
        16, ge=1, le=64, description="The warm start sees the lowest frequencies^2 cosine waves of each channel."
    )
    coefficients: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Of these coefficients, as many as the public prior expects to be strongest; null: all.",
    )
    colour: Literal["rgb", "luma_chroma"] = Field(
        "rgb", description="Planes of which coefficients are taken: channels, or brightness and two planes of colour."
    )
    centre: float = Field(0.25, ge=0, le=1, description="Public brightness around which images are clipped.")
    noise_shape: float = Field(
        0.0, ge=0, le=1, description="Noise grows with a coefficient's expected power to this exponent; 0: equal noise."
    )
    texture: bool = Field(
        False,
        description="Release the texture of images along with their coefficients, and draw images that have it. "
        "Votes know nothing of it, so it needs a vote_share of 0.",
    )
    texture_waves: int = Field(
        TEXTURE_MAX,
        ge=1,
        le=TEXTURE_MAX,
        description="Of the texture's waves over cells and orientations, those that the public prior expects to be "
        "strongest; all, where there are fewer.",
    )
    shrink: bool = Field(
        False, description="Pull counts, means and covariances to what is expected, as far as noise explains it."
    )
    components: int = Field(
        80, ge=1, le=1024, description="Principal components that carry the warm start, and numbers in a latent."
    )
    class_components: int | None = Field(
        None, ge=1, le=1024, description="Leading components in which classes get covariances of their own; null: all."
    )
    clusters: int = Field(
        1, ge=1, le=64, description="Gaussians of one covariance of which a class is a mixture, found by noisy k-means."
    )
    mean_share: float = Field(
        0.1, ge=1e-3, le=1, description="Share of the warm start's budget for counts and means. All four add up to 1."
    )
    pooled_share: float = Field(
        0.45, ge=0, le=1, description="Share of the warm start's budget for the covariance pooled over classes."
    )
    class_share: float = Field(
        0.45, ge=0, le=1, description="Share of the warm start's budget for each class's own covariance."
    )
    cluster_share: float = Field(
        0.0, ge=0, le=1, description="Share of the warm start's budget for the rounds of k-means."
    )
    mean_clip: float = Field(
        10.0, ge=1e-3, le=1000, description="Norm, around `centre`, of a clipped image's coefficients, at 28 x 28 grey."
    )
    deviation_clip: float = Field(
        7.0, ge=1e-3, le=1000, description="Norm of a clipped deviation from the class mean, scaled as mean_clip."
    )
    component_clip: float = Field(
        6.0, ge=1e-3, le=1000, description="Norm of that deviation in the principal components, scaled as mean_clip."
    )
    teachers: int = Field(
        4000, ge=1, le=100_000, description="N, networks on disjoint parts of the records, which vote."
    )
    top_k: int = Field(20, ge=1, le=1_000_000, description="k, coordinates for which a teacher votes on one image.")
    clip: float = Field(
        1e-5, ge=1e-30, le=1e6, description="c, below which gradients keep their size; large ones become plain signs."
    )
    beta: float = Field(0.7, ge=1e-6, le=1, description="Share of teachers that the thresholded release needs.")
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
    evaluation_samples: int = Field(
        30_000, ge=100, le=EVALUATION_SAMPLES_MAX, description="Synthetic images on which usefulness is measured."
    )
    evaluation_seed: int = Field(0, ge=0, le=2**31 - 1, description="Public seed of the measurement of usefulness.")

    def check(self) -> None:
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
        return self.warm_start and self.vote_share > 0

    @property
    def drawing_seconds(self) -> float:
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


# The first two are completed by `privacy.plans.datalens.defaults`; "fixed" is what was once chosen on the 60,000 images
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
    return read_options(DataLensConfig, options, PRESETS)
