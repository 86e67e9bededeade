"""Plan of select_public: private records vote for public images, from which the generator samples.

This is Private Evolution (Lin et al. 2024, arXiv:2305.15560), with public images in place of the images that a
foundation model generates. Its Algorithm 2 is the histogram of nearest neighbours. A second iteration votes over images
that the first iteration selected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from obscura.wire.budgets import UNITS
from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import Filter, stddev_for
from privacy.plans.options import EXTRACTOR_NAME, ClassFractionsConfig
from privacy.plans.plan import Plan, PublicFacts, Recipe, Stage

VOTES = "votes"
SENSITIVITY = 1.0  # see `votes_event`
RELEASE_BYTES_MAX = 2**26  # bytes of images in a release
_CHOICES = (2, 512)
_VOTES_OVER_NOISE = 3.0  # average votes of a choice, over the noise; see docs/research/select_public.md


class SelectPublicConfig(ClassFractionsConfig):
    """Public parameters of one selection."""

    groups = (("choices", "Noise and privacy"), ("mirror", "Images"))
    public_images_serve = "which this release shows: private records only decided how often each one is used"

    public_dataset_id: str = Field(
        "", max_length=64, description="Public dataset whose images are voted for and released. Required."
    )
    public_labels: bool = Field(
        False,
        description="If true, each class selects only among the public images of the class with the same name; "
        "otherwise among all public images.",
    )
    extractor: str = Field(
        "",
        max_length=64,
        description="Name of a public network that the operator installed. Its features define which image is nearest; "
        "empty: colours and texture do.",
    )
    public_images: int = Field(
        20_000, ge=2, le=200_000, description="Largest number of public images to consider; a public seed chooses them."
    )
    choices: int | None = Field(
        None,
        ge=_CHOICES[0],
        le=_CHOICES[1],
        description="Number of candidates that a record can vote for: clusters of public images in the first "
        "iteration, single images in the second. Each class generates from at most this many images.",
    )
    iterations: int = Field(2, ge=1, le=2, description="Number of rounds of votes; they share the budget evenly.")
    threshold: float = Field(
        1.5,
        ge=0,
        le=10,
        description="A noisy count of votes becomes zero below this many standard deviations of the noise.",
    )
    mirror: bool = Field(False, description="Mirror half of the generated images, left and right.")
    shift: float = Field(0.05, ge=0, le=0.25, description="Largest shift of a generated image, as a share of its side.")
    colour: float = Field(0.15, ge=0, le=1, description="How strongly the colours of generated images vary.")

    def check(self) -> None:
        if self.extractor and not EXTRACTOR_NAME.fullmatch(self.extractor):
            raise self.refusal("extractor", "the name of an extractor consists of at most 64 letters, digits, - and _")

    def require_public(self, images: int, public_classes: tuple[str, ...], classes: tuple[str, ...]) -> None:
        """Raise unless every declared class can select from a public dataset; see `RecipeConfig.require_public`."""
        if images < _CHOICES[0]:
            raise self.refusal(
                "public_dataset_id", "this dataset has fewer than two images: choose a dataset with more images"
            )
        missing = [name for name in classes if name not in public_classes] if self.public_labels else []
        if missing:
            raise self.refusal(
                "public_labels",
                f"the public dataset has no class named {missing[0]!r}, so that class could select no image: give the "
                "public classes the names of the private ones, or omit public_labels, so that every class selects "
                "among all public images",
            )


def votes_event(stddev: float) -> GaussianEvent:
    """Return the event of one iteration, which releases noisy counts of votes.

    There is one count for each choice of each class, with discrete noise. A choice is a candidate to vote for.

    Privacy:
        Adjacency add/remove of one unit. The choices are a function of public images and of earlier releases. A record
        votes once, for the nearest choice of its own class, which depends on that record alone. One more record changes
        one number of the whole histogram, by exactly 1. So its L2 sensitivity is 1. A pair of neighbours attains it if
        the label of the added record is declared. If the unit is the subject, one record per subject votes, and which
        record votes depends on that subject alone (`privacy.mechanisms.partition`). The second iteration's choices
        follow from the noisy votes of the first iteration: adaptive composition of two such events.
    """
    return GaussianEvent.of_discrete_noise(SENSITIVITY, stddev)


def plan_from_options(options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    """Plan the iterations of votes, with noise that fits the budget."""
    config = SelectPublicConfig(**options)
    if not config.public_dataset_id:
        raise config.refusal(
            "public_dataset_id",
            "select_public releases public images: upload a folder of them as a dataset with visibility public, and "
            "give its id here. Public images cost no budget",
        )
    stddev = stddev_for(SENSITIVITY, budget_nano // config.iterations)
    affordable = RELEASE_BYTES_MAX // (facts.pixels * len(facts.classes))
    if (config.choices or _CHOICES[0]) > affordable:
        raise config.refusal(
            "choices",
            f"a release has at most {RELEASE_BYTES_MAX // 2**20} MiB of images. That is {affordable} images of this "
            f"size for each of {len(facts.classes)} classes: request fewer choices, or declare smaller images",
        )
    if config.choices is None:
        wanted = facts.units_per_class / (_VOTES_OVER_NOISE * stddev)
        low, high = _CHOICES
        config = config.with_values(choices=min(max(math.floor(wanted), low), high, affordable))
    assert config.choices is not None
    event = votes_event(stddev)
    one_nano = privacy_filter.cost_nano(event)
    event = GaussianEvent.of_discrete_noise(SENSITIVITY, stddev, count=config.iterations)
    voters = "record" if facts.unit == "record" else "subject, with one of their records,"
    within = "the public images of its own class" if config.public_labels else "all public images"
    nearness = f"features of the extractor {config.extractor}" if config.extractor else "colours and texture"
    return Plan(
        recipe="select_public",
        config=config,
        stages=(Stage(VOTES, event, config.iterations * one_nano, stddev),),
        budget_nano=budget_nano,
        notes=(
            f"Generated images are slightly varied images of the public dataset {config.public_dataset_id}. They are "
            "public and cost nothing: private images only decide how often each one is used.",
            f"In each of {config.iterations} iterations every {voters} votes once, for the nearest of "
            f"{config.choices:,} choices of its class among {within}, by {nearness}. Each count gets noise with a "
            f"standard deviation of {stddev:.3g}.",
            "Images look like public images, because they are. For more accurate classifiers, choose a recipe that "
            "learns from the private images.",
        ),
        facts={
            "public_dataset": config.public_dataset_id,
            "iterations": config.iterations,
            "choices": config.choices,
            "votes_expected": facts.units_per_class / config.choices,
            "standard_error": stddev,
            "release_bytes": config.choices * len(facts.classes) * facts.pixels,
            "noise_stddev": {VOTES: stddev},
        },
    )


RECIPE = Recipe(
    name="select_public",
    title="Public selection",
    publishes="generator",
    releases="Public images, and how often each is drawn.",
    config=SelectPublicConfig,
    plan=plan_from_options,
    units=frozenset(UNITS),
    follows=frozenset({"choices"}),
)
