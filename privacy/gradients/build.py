"""Build the gradient estimator that a plan names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import cast

from torch import nn

from privacy.errors import InvalidParameter
from privacy.gradients.dpsgd import DpSgd
from privacy.gradients.estimator import Common, Curator, Estimator, shapes_of
from privacy.gradients.gep import AnchorTraces, Gep
from privacy.gradients.per_sample import check_model
from privacy.gradients.rgp import Rgp
from privacy.gradients.topagg import TopAggSgd
from privacy.plans.private_steps import EstimatorName, StepsConfig


def build_estimator(
    config: StepsConfig,
    model: nn.Module,
    *,
    noise_multiplier: float,
    expected_batch: float,
    steps: int,
    anchors: AnchorTraces | None,
    curator: Curator | None = None,
) -> Estimator:
    """Build the estimator that a plan names.

    Args:
        config: public parameters.
        model: the one network that sees private records.
        noise_multiplier: of the plan's event.
        expected_batch: q n.
        steps: of the whole training.
        anchors: public anchors, needed by GEP and B-GEP only.
        curator: adds the noise, if several processes share the steps.

    Raises:
        InvalidParameter: a layer has no per-record gradients, GEP has no anchors, or a size does not fit.
    """
    check_model(model)
    if config.estimator in ("gep", "bgep") and anchors is None:
        raise InvalidParameter("estimator", config.estimator, "a basis needs public anchor images")
    shapes = shapes_of(model)
    common: Common = {"noise_multiplier": noise_multiplier, "expected_batch": expected_batch}
    if curator is not None:
        common["curator"] = curator
    gep = functools.partial(
        Gep,
        shapes,
        cast("AnchorTraces", anchors),  # checked above
        basis_size=config.basis_size,
        clip=config.clip,
        seed=config.initial_seed,
        iterations=config.power_iterations,
        groups=config.basis_groups,
        **common,
    )
    rgp = functools.partial(
        Rgp,
        model,
        shapes,
        rank=config.rank,
        rank_share=config.rank_share,
        iterations=config.power_iterations,
        clip=config.clip,
        warm_up_steps=round(config.warm_up_share * steps),
        seed=config.initial_seed,
        **common,
    )
    posterior = config.freeze == "posterior"
    builders: Mapping[EstimatorName, Callable[[], Estimator]] = {
        "dpsgd": functools.partial(DpSgd, shapes, clip=config.clip, freeze_after_clipping=posterior, **common),
        "topagg": functools.partial(TopAggSgd, shapes, clip=config.clip, keep=config.keep, **common),
        "gep": functools.partial(gep, clip_residual=config.residual_bound),
        "bgep": functools.partial(gep, clip_residual=None),
        "rgp": functools.partial(rgp, random=False),
        "rgp_random": functools.partial(rgp, random=True),
    }
    return builders[config.estimator]()
