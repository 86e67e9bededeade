"""What DataLens' options are where nobody gave them: they follow from what was declared and from the budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privacy.plans.datalens.options import PRESETS, DataLensConfig, config_from_options, suits_texture
from privacy.plans.moments.detail import TEXTURE_FROM, action_of, clips_for, clusters_for, detail_for, power_of, signal
from privacy.plans.plan import PublicFacts

UNITS_PER_TEACHER_MIN = 4
FOLLOWING = ("default", "warm_start_only")  # presets whose detail follows; the others' values are as they stand
_SHARES = ("mean_share", "pooled_share", "class_share", "cluster_share")
# Options that may then be something else than their defaults.
FOLLOWING_OPTIONS = frozenset((
    "vote_share", "frequencies", "coefficients", "colour", "centre", "noise_shape", "texture", "texture_waves",
    "shrink", "components", "class_components", "clusters", "mean_share", "pooled_share", "class_share",
    "cluster_share", "mean_clip", "deviation_clip", "component_clip", "teachers", "top_k",
))  # fmt: skip
_OF_VOTES = ("vote_share", "teachers", "top_k", "images", "stddev", "images_per_iteration", "rounds")


def config_that_follows(options: Mapping[str, Any], mu: float, facts: PublicFacts) -> DataLensConfig:
    """Complete the options of a request. What was given wins; nothing is looked up in private data.

    Args:
        options: as for `config_from_options`.
        mu: of the whole budget, as one Gaussian release.
        facts: what the owner declared.

    Raises:
        InvalidParameter: as `config_from_options`.
    """
    config = config_from_options(options)
    preset = options.get("preset", "default")
    given = set(options) | set(PRESETS[preset])
    teachers_max = facts.units_declared // UNITS_PER_TEACHER_MIN
    follows: dict[str, Any] = {"teachers": max(1, min(config.teachers, teachers_max))}
    if preset in FOLLOWING and config.warm_start:
        if teachers_max < config.teachers and not given.intersection(_OF_VOTES):
            follows["vote_share"] = 0.0  # so few records do not pay for votes (docs/research/datalens.md)
        q = signal(facts, mu)
        votes_asked = config.vote_share > 0 and given.intersection(_OF_VOTES)
        if q >= TEXTURE_FROM and suits_texture(facts) and not votes_asked and "texture" not in given:
            follows |= {"texture": True, "vote_share": 0.0}
        q *= (1.0 - follows.get("vote_share", config.vote_share)) ** 0.5
        follows |= _detail(config.with_values(**_without(follows, given)), given, q, facts)
        detailed = config.with_values(**_without(follows, given))
        power = power_of(detailed, facts)
        follows |= clips_for(power, detailed.noise_shape, q, facts.size, action_of(detailed, facts))
        follows["top_k"] = min(config.top_k, detailed.latent_size(facts))
    return config.with_values(**_without(follows, given))


def _detail(config: DataLensConfig, given: set[str], q: float, facts: PublicFacts) -> dict[str, Any]:
    clusters = config.clusters if "clusters" in given else clusters_for(q, config.texture)
    follows = detail_for(facts, q, config.texture, clusters)
    if "frequencies" in given and "coefficients" not in given:
        del follows["coefficients"]  # all of the grid that was asked for
    if given.intersection(_SHARES):  # they add up to 1, so whoever gives one of them divides the budget
        follows = _without(follows, {*_SHARES, "class_components", "clusters"})
    if "colour" in given and config.colour == "rgb" and facts.channels > 1:
        follows.pop("coefficients", None)  # strength by colour says nothing about red, green and blue
        follows["frequencies"] = config.frequencies
    return follows


def _without(follows: Mapping[str, Any], given: set[str]) -> dict[str, Any]:
    return {name: value for name, value in follows.items() if name not in given}
