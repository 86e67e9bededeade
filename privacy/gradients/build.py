"""Build the gradient estimator that a plan names."""

from __future__ import annotations

from torch import nn

from privacy.errors import InvalidParameter
from privacy.gradients.dpsgd import DpSgd
from privacy.gradients.estimator import Common, Curator, Estimator, shapes_of
from privacy.gradients.gep import AnchorTraces, Gep
from privacy.gradients.per_sample import check_model
from privacy.gradients.rgp import Rgp
from privacy.gradients.topagg import TopAggSgd
from privacy.plans.private_steps import StepsConfig


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
        expected_batch: q n, the expected number of sampled units.
        steps: number of steps of the whole training.
        anchors: public anchors, needed by GEP and B-GEP only.
        curator: adds the noise, if several processes share the steps.

    Raises:
        InvalidParameter: a layer has no per-record gradients, GEP has no anchors, or a size does not fit.
    """
    check_model(model)
    shapes = shapes_of(model)
    common: Common = {"noise_multiplier": noise_multiplier, "expected_batch": expected_batch, "curator": curator}
    if config.estimator == "dpsgd":
        return DpSgd(shapes, clip=config.clip, freeze_after_clipping=config.freeze == "posterior", **common)
    if config.estimator == "topagg":
        return TopAggSgd(shapes, clip=config.clip, keep=config.keep, **common)
    if config.estimator in ("gep", "bgep"):
        if anchors is None:
            raise InvalidParameter("estimator", config.estimator, "it finds a basis, which needs public anchor images")
        return Gep(
            shapes,
            anchors,
            basis_size=config.basis_size,
            clip=config.clip,
            clip_residual=config.residual_bound if config.estimator == "gep" else None,
            seed=config.initial_seed,
            iterations=config.power_iterations,
            groups=config.basis_groups,
            **common,
        )
    return Rgp(
        model,
        shapes,
        rank=config.rank,
        rank_fraction=config.rank_fraction,
        iterations=config.power_iterations,
        clip=config.clip,
        warm_up_steps=round(config.warm_up_fraction * steps),
        random=config.estimator == "rgp_random",
        seed=config.initial_seed,
        **common,
    )
