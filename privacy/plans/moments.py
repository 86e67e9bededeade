"""Plan of the moments recipe: noisy class means and covariances of pixels and texture, with an optional guide.

Omitted options follow from the declared facts and the budget. The guide is a classifier trained by private steps for a
share of the budget. A few steps of gradient descent move generated images so that the classifier is more certain of
their class (classifier guidance: Dhariwal & Nichol 2021, arXiv:2105.05233).
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from collections.abc import Mapping, Set
from typing import Any, Literal

from pydantic import Field

from models.sizes import TEXTURE_CELL, texture_size
from obscura.wire.budgets import UNITS
from privacy.accounting.filter import Filter
from privacy.plans.dp_classifier import PRESETS as CLASSIFIERS
from privacy.plans.dp_classifier import SCATTER_SIZE_MIN, DpClassifierConfig
from privacy.plans.options import ClassFractionsConfig, EvaluationSamples, EvaluationSeed
from privacy.plans.plan import GENERATOR_NOTES, UNIT_NOTES, Plan, PublicFacts, Recipe, mu_of
from privacy.plans.private_steps import plan_steps
from privacy.plans.warm_start import (
    MEANS,
    POOLED,
    QUANTISATION,
    TEXTURE_FROM,
    clips_for,
    coefficients_of,
    detail_for,
    fraction_above_noise,
    signal,
    warm_start_event,
    warm_start_stages,
)

TEXTURE_MAX = 1024  # numbers: their covariances have half the square of that many, and larger images get specks
GENERATOR_NUMBERS_MAX = 2**28  # 1 GiB in a release, and several times that during training
GUIDE_SIDE_MAX = 64  # pixels: a step for an image of that size takes a CPU second
COARSE_PIXELS = 6.0  # a plan reports the width of the finest detail from here on
VISIBLE = 0.4  # share of class differences that must be above the noise; below, a plan warns (see docs/research)
_DECLARED = {
    "mirror": "You declare that an image is as likely as its mirror image.",
    "square": "You declare that an image is as likely in all eight rotations and reflections of a square.",
}
# Bands of detail that people see in generated images, worst first, judged from grids (docs/research/previews.md). They
# follow from the signal q. An accuracy cannot replace them: a classifier detects class means in static, but people do
# not.
# In grey, digits at 286 and clothes at 598 are recognisable; with texture, clothes at 1,598 have detail. In colour:
# pictograms at 176, emoji at 253 and 704; photographs are no better at 9,963.
_BANDS = {"grey": {"outlines": 0.0, "shapes": 250.0, "detail": 1500.0}, "colour": {"colours": 0.0, "outlines": 170.0}}
SEEN: Mapping[str, str] = {
    "noise": "Lost in the noise: most of what distinguishes the classes. Expect static, or blurs that look alike.",
    "colours": "Expect blurred patches in the colours of each class, without objects that people recognise.",
    "outlines": "Expect blurred outlines: the light, dark and coloured areas of each class, without objects that "
    "people recognise.",
    "shapes": "Expect shapes: most objects are recognisable, but edges are soft and small details are missing.",
    "detail": "Expect detail: most objects are recognisable, with their edges and texture.",
}
_SIGNALS = [1.1**power for power in range(-50, 120)]  # from 0.01 to 90,000
_UNITS_MAX = 2**40  # units of a class: more than any class has
_FRACTIONS = ("mean_fraction", "pooled_covariance_fraction", "class_covariance_fraction", "cluster_fraction")
_FOLLOWS = frozenset((
    "frequencies", "coefficients", "colour", "centre", "noise_shape", "texture", "texture_waves", "shrink",
    "components", "class_components", "clusters", *_FRACTIONS, "mean_clip", "deviation_clip", "component_clip",
))  # fmt: skip


class MomentsConfig(ClassFractionsConfig):
    """Public parameters of the class Gaussians (one per class, or a mixture of a few) and of the guide."""

    groups = (("frequencies", "Detail"), ("mean_fraction", "Noise and privacy"), ("guide", "Guide"))

    symmetry: Literal["none", "mirror", "square"] = Field(
        "none",
        description="Symmetries that you declare: each image is as likely with left and right swapped (mirror), or in "
        "all eight orientations of a square. Means and covariances that must then be zero are not released.",
    )
    frequencies: int = Field(
        16, ge=1, le=64, description="Number of cosine frequencies along each side, from the lowest."
    )
    coefficients: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Number of cosine coefficients to release: the strongest by the public prior. null: all.",
    )
    colour: Literal["rgb", "luma_chroma"] = Field(
        "rgb", description="Colour planes of the coefficients: red, green and blue; or brightness and two of colour."
    )
    centre: float = Field(0.25, ge=0, le=1, description="Public brightness around which images are clipped.")
    noise_shape: float = Field(
        0.0, ge=0, le=1, description="Noise grows with a coefficient's power, by the public prior, to this exponent."
    )
    texture: bool = Field(
        False, description="Also release the texture of the images, and generate images with that texture."
    )
    texture_waves: int = Field(
        TEXTURE_MAX,
        ge=1,
        le=TEXTURE_MAX,
        description="Number of texture waves (over cells and orientations) to release: the strongest by the public "
        "prior, or all if there are fewer.",
    )
    shrink: bool = Field(
        False,
        description="Shrink counts, means and covariances towards their expected values, as far as noise explains the "
        "difference.",
    )
    components: int = Field(
        80, ge=1, le=1024, description="Number of principal components, which is also the size of a latent vector."
    )
    class_components: int | None = Field(
        None, ge=1, le=1024, description="Number of leading components with a covariance for each class; null: all."
    )
    clusters: int = Field(
        1,
        ge=1,
        le=64,
        description="Number of Gaussians, with a common covariance, that make up a class; found by noisy k-means.",
    )
    mean_fraction: float = Field(
        0.1, ge=1e-3, le=1, description="Share of the warm start's budget for counts and means. All four add up to 1."
    )
    pooled_covariance_fraction: float = Field(
        0.45, ge=0, le=1, description="Share of the warm start's budget for the covariance pooled over classes."
    )
    class_covariance_fraction: float = Field(
        0.45, ge=0, le=1, description="Share of the warm start's budget for each class's own covariance."
    )
    cluster_fraction: float = Field(
        0.0, ge=0, le=1, description="Share of the warm start's budget for the rounds of k-means."
    )
    mean_clip: float = Field(
        10.0, ge=1e-3, le=1000, description="Bound on the norm of coefficients around `centre`, at 28 x 28 grey pixels."
    )
    deviation_clip: float = Field(
        7.0, ge=1e-3, le=1000, description="Bound on the norm of deviations from the class mean, scaled like mean_clip."
    )
    component_clip: float = Field(
        6.0, ge=1e-3, le=1000, description="Bound on the deviations in principal components, scaled like mean_clip."
    )
    evaluation_samples: EvaluationSamples = 30_000
    evaluation_seed: EvaluationSeed = 0
    guide: bool = Field(
        False,
        description="Train a classifier with a share of the budget, and move each generated image to where the "
        "classifier is more certain of the image's class. Networks learn more from such images; generation is slower.",
    )
    guide_fraction: float = Field(
        0.5, ge=0.01, le=0.99, description="Share of the budget for the guide; moments get the rest."
    )
    guide_steps: int = Field(
        2, ge=1, le=10, description="Steps of gradient descent by which the guide moves each generated image."
    )
    guide_logit: float = Field(
        60.0,
        ge=0,
        le=1000,
        description="Target for the guide's logit of an image's class, as a distance above its other logits. Private "
        "images of CIFAR-10 have about 12. Larger values make images better training data, until they spoil the "
        "images.",
    )

    def check(self) -> None:
        if not math.isclose(sum(getattr(self, name) for name in _FRACTIONS), 1.0, abs_tol=1e-9):
            raise self.refusal("mean_fraction", "the mean, pooled, class and cluster fractions must add up to 1")
        if (self.clusters > 1) != (self.cluster_fraction > 0):
            raise self.refusal(
                "clusters", "cluster_fraction must be positive for several clusters, else zero: give all four fractions"
            )
        if self.clusters > 1 and self.class_covariance_fraction == 0:
            raise self.refusal(
                "clusters", "several clusters need the class's own covariance: give a class_covariance_fraction"
            )

    @property
    def start_fraction(self) -> float:
        """Share of the budget for the class moments."""
        return 1.0 - self.guide_fraction if self.guide else 1.0

    @property
    def changes_its_start(self) -> bool:
        """True with a guide: evaluations then also measure images of the moments without the guide."""
        return self.guide

    @property
    def drawing_seconds(self) -> float:
        return (6e-4 if self.texture else 5e-5) + (3e-3 * self.guide_steps if self.guide else 0.0)

    @property
    def classifier(self) -> DpClassifierConfig:
        """Parameters of the guide: the defaults of `dp_classifier`."""
        return DpClassifierConfig(**CLASSIFIERS["default"])

    def latent_size(self, facts: PublicFacts) -> int:
        """Return the size of a latent vector: `components`, or fewer if the images have fewer coefficients."""
        rows, columns = self.grid(facts)
        seen = facts.channels * rows * columns
        seen = seen if self.coefficients is None else min(seen, self.coefficients)
        return min(self.components, seen + self.texture_size(facts))

    def texture_size(self, facts: PublicFacts) -> int:
        """Return how many numbers of an image's texture are released; 0 without texture."""
        return min(texture_size(facts.height, facts.width), self.texture_waves) if self.texture else 0

    def class_size(self, facts: PublicFacts) -> int:
        """Return the number of components in which a class has its own covariance."""
        latent = self.latent_size(facts)
        return latent if self.class_components is None else min(self.class_components, latent)

    def grid(self, facts: PublicFacts) -> tuple[int, int]:
        """Return the number of cosine frequencies kept along height and width."""
        return min(self.frequencies, facts.height), min(self.frequencies, facts.width)


def config_that_follows(options: Mapping[str, Any], mu: float, facts: PublicFacts) -> MomentsConfig:
    """Complete a request's options with defaults from the budget and declared facts. Read no private data.

    Args:
        options: stated options, which keep their values.
        mu: parameter of one Gaussian release that uses the whole budget, of which moments get `start_fraction`.

    Raises:
        InvalidParameter: an unknown option, or a value out of range.
    """
    config, given, q = MomentsConfig(**options), set(options), signal(facts, mu)
    if q >= TEXTURE_FROM and _suits_texture(facts) and "texture" not in given:
        config = config.with_values(texture=True)
    q *= config.start_fraction**0.5
    follows = detail_for(facts, q, config.texture, options.get("clusters"))
    if "frequencies" in given and "coefficients" not in given:
        del follows["coefficients"]  # the whole requested grid
    if not given.isdisjoint(_FRACTIONS):  # they add up to 1; a request that sets one of them divides the budget
        follows = _without(follows, {*_FRACTIONS, "class_components", "clusters"})
    if "colour" in given and config.colour == "rgb" and facts.channels > 1:
        follows.pop("coefficients", None)  # the prior's colour strengths do not apply to red, green and blue
        follows["frequencies"] = config.frequencies
    config = config.with_values(**_without(follows, given))
    return config.with_values(**_without(clips_for(config, facts, q), given))


def _without(follows: Mapping[str, Any], given: Set[str]) -> dict[str, Any]:
    return {name: value for name, value in follows.items() if name not in given}


def _suits_texture(facts: PublicFacts) -> bool:
    whole = facts.height % TEXTURE_CELL == 0 and facts.width % TEXTURE_CELL == 0
    return whole and texture_size(facts.height, facts.width) <= TEXTURE_MAX


def plan_from_options(options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    """Plan the class moments and, with a guide, the steps of a classifier, with noise that fits the budget."""
    config = config_that_follows(options, mu_of(budget_nano), facts)
    plan = plan_moments(config, privacy_filter, budget_nano, facts)
    share = fraction_above_noise(config, facts, plan.noise_stddev[MEANS] / QUANTISATION)(facts.units_per_class)
    q = signal(facts, mu_of(budget_nano))
    seen = [band for band, least in bands_of(options, facts, facts.units_per_class).items() if least <= q][-1]
    notes = [SEEN[seen]]
    finest = coefficients_of(config, facts)  # from light to dark in the shortest wave
    pixels = float(min(facts.height / max(1, finest.row.max()), facts.width / max(1, finest.column.max())))
    if seen != "noise" and not config.texture and pixels >= COARSE_PIXELS:
        part = COARSE_PIXELS / pixels / 2
        width, height = (8 * math.ceil(side * part / 8) for side in (facts.width, facts.height))
        notes.append(
            f"The finest detail that is released is about {pixels:.0f} pixels wide at this epsilon, whatever the "
            f"images show. Images of {width} x {height} pixels would show as much, and train faster."
        )
    shown = {**plan.facts, "fraction_above_noise": round(share, 3), "expected_detail": seen}
    return dataclasses.replace(plan, facts=shown, notes=(*notes, *plan.notes))


def bands_of(options: Mapping[str, Any], facts: PublicFacts, units: float) -> Mapping[str, float]:
    """Return the smallest signal of each band in SEEN that `units` units per class can reach, worst first."""
    return _bands(tuple(options.items()), facts, units)


@functools.lru_cache(maxsize=256)  # the same at every epsilon
def _bands(options: tuple[tuple[str, Any], ...], facts: PublicFacts, units: float) -> Mapping[str, float]:
    sensitivity = warm_start_event(MEANS, 1e9).sensitivity / QUANTISATION

    def share(q: float) -> float:
        mu = q / units
        config = config_that_follows(dict(options), mu, facts)
        noise = sensitivity / (math.sqrt(config.start_fraction * config.mean_fraction) * mu)
        return fraction_above_noise(config, facts, noise)(units)

    place = bisect.bisect_left(_SIGNALS, VISIBLE, key=share)
    if place == len(_SIGNALS):
        return {"noise": 0.0}
    bands = dict(_BANDS["colour" if facts.channels > 1 else "grey"])
    if not (dict(options).get("texture", True) and _suits_texture(facts)):
        bands.pop("detail", None)
    part = config_that_follows(dict(options), 1.0, facts).start_fraction ** 0.5  # a guide takes its share of the signal
    return {"noise": 0.0, **{band: max(least / part, _SIGNALS[place]) for band, least in bands.items()}}


def plan_moments(config: MomentsConfig, privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    """Plan a complete configuration. `plan_from_options` adds the forecast of visible details."""
    _check_images(config, facts)
    guide_nano = math.floor(config.guide_fraction * budget_nano) if config.guide else 0
    stages = warm_start_stages(config, budget_nano - guide_nano, privacy_filter)
    noise = {stage.name: stage.noise_stddev for stage in stages}
    what = (
        "means and covariances" if config.pooled_covariance_fraction + config.class_covariance_fraction > 0 else "means"
    )
    what += " of pixels and texture" if config.texture else ""
    notes = [*UNIT_NOTES[facts.unit], f"Noisy class {what} are released first; the generator starts from them."]
    if config.symmetry != "none":
        notes.append(f"{_DECLARED[config.symmetry]} If that is false, the images are worse, but no less private.")
    if config.clusters > 1:
        notes.append(f"Each class is a mixture of {config.clusters} clusters, found by noisy k-means.")
    if facts.unit == "subject":
        notes.append(
            "The statistics use one record of each subject, so that no subject contributes more than one record."
        )
    shown: dict[str, Any] = {"protects": facts.protects, "units_declared": facts.units_declared, "noise_stddev": noise}
    if config.guide:
        steps, steps_notes, steps_shown = plan_steps(config.classifier, privacy_filter, guide_nano, facts)
        stages.append(steps)
        notes += [
            f"A classifier is trained with {config.guide_fraction:.0%} of the budget. It moves each generated image in "
            f"{config.guide_steps} steps towards the image's class. Convolutional networks learn more from such "
            "images, but the images look no better, and generating them is many times slower.",
            *steps_notes,
        ]
        shown = {"guide_fraction": config.guide_fraction, "noise_stddev": noise, **steps_shown}
    return Plan(
        recipe="moments",
        config=config,
        stages=tuple(stages),
        budget_nano=budget_nano,
        notes=(*notes, *GENERATOR_NOTES),
        facts=shown,
    )


def _check_images(config: MomentsConfig, facts: PublicFacts) -> None:
    size = f"{facts.width} x {facts.height}"
    if config.texture and not _suits_texture(facts):
        raise config.refusal(
            "texture",
            f"texture needs sides that are multiples of {TEXTURE_CELL}, and at most {TEXTURE_MAX} numbers per image; "
            f"images of {size} have {texture_size(facts.height, facts.width):,}",
        )
    if config.symmetry == "square" and facts.height != facts.width:
        raise config.refusal(
            "symmetry",
            f"images of {size} are not square, so rows and columns cannot be swapped: declare mirror or none",
        )
    numbers = len(facts.classes) * facts.pixels * config.latent_size(facts)
    if numbers > GENERATOR_NUMBERS_MAX:
        raise config.refusal(
            "components",
            f"{len(facts.classes)} classes of {size} pixels in {facts.channels} channels make a generator of "
            f"{numbers:,} numbers, above the limit of {GENERATOR_NUMBERS_MAX:,}: declare smaller images, or ask for at "
            f"most {GENERATOR_NUMBERS_MAX // (len(facts.classes) * facts.pixels)} components",
        )
    least, most = min(facts.height, facts.width), max(facts.height, facts.width)
    if config.guide and (least < SCATTER_SIZE_MIN or most > GUIDE_SIDE_MAX):
        raise config.refusal(
            "guide",
            f"the guide needs images of {SCATTER_SIZE_MIN} to {GUIDE_SIDE_MAX} pixels a side, but these have "
            f"{size}: omit the guide, or declare another size",
        )


def smallest_class(plan: Plan, facts: PublicFacts) -> int | None:
    """Return how many units a class needs to be visible in the noise; None if no number suffices.

    A class's mean has the noise of the sum divided by its n units, so the visible fraction grows with n alone. The
    result is the n at which `fraction_above_noise` reaches VISIBLE. Measurements: docs/research/uneven_classes.md.
    """
    share = fraction_above_noise(plan.config_of(MomentsConfig), facts, plan.noise_stddev[MEANS] / QUANTISATION)
    if share(_UNITS_MAX) < VISIBLE:
        return None
    return bisect.bisect_left(range(_UNITS_MAX), VISIBLE, lo=1, key=share)


RECIPE = Recipe(
    name="moments",
    title="Moments",
    publishes="generator",
    releases="A generator of labelled images; generating images from it is free.",
    config=MomentsConfig,
    plan=plan_from_options,
    units=frozenset(UNITS),
    follows=_FOLLOWS,
    # If the classes' own covariances are missing, the pooled covariance replaces them.
    start=lambda plan: {name: 1 for name in (MEANS, POOLED) if plan.stage(name) is not None},
    smallest_class=smallest_class,
    bands=bands_of,
)
