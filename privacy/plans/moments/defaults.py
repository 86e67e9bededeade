"""What the options of class moments are where nobody gave them: they follow from what was declared and the budget."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, TypeVar

from privacy.plans.moments.detail import TEXTURE_FROM, action_of, clips_for, clusters_for, detail_for, power_of, signal
from privacy.plans.moments.options import MomentsConfig, suits_texture
from privacy.plans.plan import PublicFacts

_SHARES = ("mean_share", "pooled_share", "class_share", "cluster_share")
# Options that may then be something else than their defaults.
FOLLOWING_OPTIONS = frozenset((
    "frequencies", "coefficients", "colour", "centre", "noise_shape", "texture", "texture_waves", "shrink",
    "components", "class_components", "clusters", *_SHARES, "mean_clip", "deviation_clip", "component_clip",
))  # fmt: skip
C = TypeVar("C", bound=MomentsConfig)


def config_that_follows(options: Mapping[str, Any], mu: float, facts: PublicFacts) -> MomentsConfig:
    """Complete the options of a request for moments; see `completed`."""
    return completed(MomentsConfig, options, mu, facts)


def completed(kind: type[C], options: Mapping[str, Any], mu: float, facts: PublicFacts) -> C:
    """Complete the options of a request. What was given wins; nothing is looked up in private data.

    Args:
        kind: the configuration of moments, or of a recipe that starts from them.
        options: of the request.
        mu: of the whole budget, as one Gaussian release.
        facts: what the owner declared.

    Raises:
        InvalidParameter: an unknown option, or a value out of range.
    """
    return with_detail(kind(**options), set(options), mu, facts)


def with_detail(config: C, given: Set[str], mu: float, facts: PublicFacts) -> C:
    """Give a configuration the detail that suits it, but for options that were given.

    Args:
        config: of moments, or of a recipe that starts from them.
        given: names of the options that stand as they are.
        mu: of the whole budget, of which `config.start_share` pays for the moments.
        facts: what the owner declared.
    """
    q = signal(facts, mu)
    if q >= TEXTURE_FROM and suits_texture(facts) and "texture" not in given:
        config = config.with_values(texture=True)
    q *= config.start_share**0.5
    config = config.with_values(**without(_detail(config, given, q, facts), given))
    clips = clips_for(power_of(config, facts), config.noise_shape, q, facts.size, action_of(config, facts))
    return config.with_values(**without(clips, given))


def _detail(config: MomentsConfig, given: Set[str], q: float, facts: PublicFacts) -> dict[str, Any]:
    clusters = config.clusters if "clusters" in given else clusters_for(q, config.texture)
    follows = detail_for(facts, q, config.texture, clusters)
    if "frequencies" in given and "coefficients" not in given:
        del follows["coefficients"]  # all of the grid that was asked for
    if not given.isdisjoint(_SHARES):  # they add up to 1, so whoever gives one of them divides the budget
        follows = without(follows, {*_SHARES, "class_components", "clusters"})
    if "colour" in given and config.colour == "rgb" and facts.channels > 1:
        follows.pop("coefficients", None)  # strength by colour says nothing about red, green and blue
        follows["frequencies"] = config.frequencies
    return follows


def without(follows: Mapping[str, Any], given: Set[str]) -> dict[str, Any]:
    """Return what follows, but for what was given."""
    return {name: value for name, value in follows.items() if name not in given}
