"""What DataLens' options are where nobody gave them: they follow from what was declared and from the budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privacy.plans.datalens.options import PRESETS, DataLensConfig, config_from_options
from privacy.plans.moments import defaults as moments
from privacy.plans.plan import PublicFacts

UNITS_PER_TEACHER_MIN = 4
FOLLOWING_OPTIONS = moments.FOLLOWING_OPTIONS | {"teachers", "top_k"}
# k of 784 pixels and beta of the preset "published": with much noise for each teacher (epsilon 1) and with little (10).
_LOUD, _QUIET, _QUIET_FROM = (200, 0.7), (350, 0.2), 1.0  # mu of the whole budget
_KERNEL_TOP_K = 400  # of 784 pixels, in the preset "kernel"


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
    if preset in ("published", "kernel"):
        k, beta = _QUIET if mu >= _QUIET_FROM else _LOUD
        k, follows = (k, {"beta": beta}) if preset == "published" else (_KERNEL_TOP_K, {})
        top_k = max(1, round(k * config.vote_size(facts) / 784))
        return config.with_values(**moments.without({"top_k": top_k, **follows}, given))
    if preset not in moments.FOLLOWING or not config.warm_start:
        return config
    config = moments.with_detail(config, given, mu, facts)
    top_k = min(config.top_k, config.latent_size(facts))
    return config.with_values(**moments.without({"top_k": top_k}, given))
