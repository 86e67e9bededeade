"""The warm start as a training makes it: each release paid for at the last moment, and kept at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from models.portable.generator import Generator
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.datalens.options import DataLensConfig
from privacy.plans.moments.warm_start import BY_CLASS, CLUSTERS, MEANS, POOLED, WARM_START, warm_start_event
from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.interface import Piece, Run
from workers.recipes.moments.released_sums import Kept
from workers.recipes.moments.warm_start import ClassGaussians, NoiseScales, warm_start
from workers.recipes.units import records_to_sum

REPORTED = "warm_start"  # the stage of its reports


class PaidNoise:
    """Noise that does not exist before it is paid for: the first draw charges, at the last moment.

    The sums below it are ready by then, so that only milliseconds lie between the payment and the checkpoint that
    keeps what was paid for.
    """

    def __init__(self, pay: Callable[[], None], derive: Callable[[], SecureNoise]) -> None:
        self._pay, self._derive = pay, derive
        self._noise: SecureNoise | None = None

    def discrete_gaussian(self, shape: int | tuple[int, ...], stddev: float) -> npt.NDArray[np.int64]:
        """Draw, after paying.

        Raises:
            BudgetExceeded: it cannot be paid; there is no noise and no release.
        """
        if self._noise is None:
            self._pay()
            self._noise = self._derive()
        return self._noise.discrete_gaussian(shape, stddev)


def release_gaussians(
    run: Run, config: DataLensConfig, released: Mapping[str, Any], keep: Callable[[Mapping[str, Any]], None]
) -> ClassGaussians:
    """Make the plan's releases of class statistics, as far as no earlier attempt has, and fit a Gaussian to each class.

    Payments are made by the one rank that works.

    Args:
        run: whose plan has the stages.
        config: of the warm start.
        released: what an earlier attempt has kept, tensors by stage.
        keep: is given all that was released so far, after each release.

    Raises:
        BudgetExceeded: as `workers.recipes.moments.warm_start.warm_start`.
        ContributionUnbounded: a unit could change a release by more than was priced.
        Cancelled: from `run.progress`.
    """
    private_images, private_labels = records_to_sum(run.facts, run.data, run.secret)
    noise_stddev, steps = run.plan.noise_stddev, _releases(run.plan)

    def tell(reached: Mapping[str, Any]) -> None:
        run.progress(stage=REPORTED, step=len(reached), steps=steps)

    def keep_arrays(reached: Mapping[str, npt.NDArray[np.float64]]) -> None:
        keep({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in reached.items()})
        tell(reached)

    def noise(name: str) -> PaidNoise:
        stage = name.partition(" ")[0]  # a number follows where a stage has several releases
        event = warm_start_event(stage, noise_stddev[stage])
        return PaidNoise(lambda: run.budget.charge(event, stage), lambda: run.noise("warm start", name))

    tell(released)
    of_covariances = noise_stddev.get(POOLED), noise_stddev.get(BY_CLASS)
    scales = NoiseScales(noise_stddev[MEANS], *of_covariances, noise_stddev.get(CLUSTERS))
    kept = Kept({name: tensor.cpu().numpy() for name, tensor in released.items()}, noise, keep_arrays)
    return warm_start(private_images, private_labels, config, run.facts, scales, kept)


def put_into(generator: Generator, gaussians: ClassGaussians) -> None:
    """Give a generator what was released."""
    generator.mean.copy_(torch.from_numpy(gaussians.mean))
    generator.factor.copy_(torch.from_numpy(gaussians.factor))
    if gaussians.clusters is not None:
        generator.centres.copy_(torch.from_numpy(gaussians.clusters.centres))
        generator.shares.copy_(torch.from_numpy(gaussians.clusters.shares))


def warm_start_work(plan: Plan, facts: PublicFacts) -> Piece:
    """Return the piece of a plan's warm start."""
    return Piece(REPORTED, _releases(plan), 4e-5 * facts.records_declared * facts.size)


def _releases(plan: Plan) -> int:
    return sum(stage.event.count for stage in plan.stages if stage.name in WARM_START)
