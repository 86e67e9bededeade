"""Configuration of the moments recipe, and of what recipes that start from class moments share: each field once."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from models.sizes import TEXTURE_CELL, texture_size
from privacy.errors import InvalidParameter
from privacy.plans.balance import SharesConfig
from privacy.plans.plan import PublicFacts

TEXTURE_MAX = 1024  # numbers: their covariances have half the square of that, and larger pictures get specks
EVALUATION_SAMPLES_MAX = 200_000


class MomentsConfig(SharesConfig):
    """Public parameters of one Gaussian per class, or a few, fitted to released moments of its images."""

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
        description="Release the texture of images along with their coefficients, and draw images that have it.",
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
    evaluation_samples: int = Field(
        30_000, ge=100, le=EVALUATION_SAMPLES_MAX, description="Synthetic images on which usefulness is measured."
    )
    evaluation_seed: int = Field(0, ge=0, le=2**31 - 1, description="Public seed of the measurement of usefulness.")

    def check(self) -> None:
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
        if self.clusters > 1 and self.class_share == 0:
            raise InvalidParameter(
                "clusters", self.clusters, "classes' own covariances are taken around their centres: give a class_share"
            )

    @property
    def start_share(self) -> float:
        """Part of the budget that the class moments cost together."""
        return 1.0

    @property
    def drawing_seconds(self) -> float:
        return 6e-4 if self.texture else 5e-5

    def latent_size(self, facts: PublicFacts) -> int:
        """Numbers in a latent: `components`, or fewer where the images have fewer coefficients."""
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

    def grid(self, facts: PublicFacts) -> tuple[int, int]:
        """Cosine frequencies kept along height and width."""
        return min(self.frequencies, facts.height), min(self.frequencies, facts.width)


def suits_texture(facts: PublicFacts) -> bool:
    """Whether the texture of such images can be released: whole cells, and not too many numbers."""
    whole = facts.height % TEXTURE_CELL == 0 and facts.width % TEXTURE_CELL == 0
    return whole and texture_size(facts.height, facts.width) <= TEXTURE_MAX
