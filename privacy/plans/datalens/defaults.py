"""What DataLens' options are where nobody gave them: they follow from what was declared and from the budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privacy.plans.datalens.options import PRESETS, DataLensConfig, config_from_options
from privacy.plans.moments import defaults as moments
from privacy.plans.plan import PublicFacts

UNITS_PER_TEACHER_MIN = 4
FOLLOWING_OPTIONS = (moments.FOLLOWING_OPTIONS - {"texture", "texture_waves", "clusters", "cluster_share"}) | {
    "teachers",
    "top_k",
}


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
    teachers = max(1, min(config.teachers, facts.units_declared // UNITS_PER_TEACHER_MIN))
    config = config.with_values(**moments.without({"teachers": teachers}, given))
    if preset not in moments.FOLLOWING or not config.warm_start:
        return config
    config = moments.with_detail(config, given, mu, facts, texture=False)
    top_k = min(config.top_k, config.latent_size(facts))
    return config.with_values(**moments.without({"top_k": top_k}, given))
