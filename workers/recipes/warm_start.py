"""Warm start: one noisy Gaussian per class, from a few integer releases, before any training.

A public basis describes images: the lowest cosine frequencies of luma and chroma, where a few numbers describe most of
an image and noise is small. The plan may add their texture (`portable.textured`). The releases are (1) counts and means
by class; (2) the covariance around the released means pooled over classes, whose eigenvectors are the principal
components; (3) clusters' counts and centres in those components, if the plan has clusters; (4) each class's covariance
in them, around its centres. Each release is then shrunk according to its known noise (`shrinkage`). The plan may omit
(4), which the pooled covariance replaces, and (2), which the public prior replaces.

Adjacency: add or remove one record. Each release sums one integer array per record, of norm at most the sensitivity
stated in the plan, and adds exact discrete Gaussian noise. Everything after that is post-processing. The idea of first
spending a little on "central" statistics is from DP-FETA (Gong et al. 2025).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from models.portable.generator import Generator
from privacy.errors import BudgetExceeded
from privacy.plans.moments import MomentsConfig
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.symmetry import Places
from privacy.plans.warm_start import (
    BY_CLASS,
    CLUSTERS,
    COUNT_WEIGHT,
    MEANS,
    POOLED,
    QUANTISATION,
    WARM_START,
    WITHIN,
    noise_shape,
)
from workers.recipes import shrinkage
from workers.recipes.coefficients import Factors, exact_product, numbers_of
from workers.recipes.interface import Piece, Run, save_checkpoint
from workers.recipes.records import records_to_sum
from workers.recipes.released_sums import (
    Clusters,
    Kept,
    KMeans,
    PaidNoise,
    in_latents,
    noisy_clusters,
    noisy_means,
    noisy_scatter,
)

Array = npt.NDArray[np.float64]
_FAR = 64.0  # a bound for the distance from a class mean; exceeded only if the mean is lost in noise
_FLOOR = 1e-5
REPORTED = "warm_start"  # the stage of its reports


@dataclass(frozen=True)
class ClassGaussians:
    """Released: for each class one Gaussian over images, or a mixture of a few Gaussians with one covariance.

    An image is mean + factor z with z ~ N(0, I): `mean` (classes, pixels) in units of full brightness, `factor`
    (pixels, latent) for each class. If texture is released, its numbers follow the pixels. `clusters` has the means of
    z; None: one Gaussian per class.
    """

    mean: Array
    factor: Sequence[Array]
    clusters: Clusters | None = None


def warm_start(
    private_images: npt.NDArray[np.uint8],
    private_labels: npt.NDArray[np.int64],
    config: MomentsConfig,
    facts: PublicFacts,
    stddevs: Mapping[str, float],
    releases: Kept,
) -> ClassGaussians:
    """Make the missing releases, and fit one Gaussian per class to all releases.

    `stddevs` has the discrete Gaussian's parameter by stage, for integers of norm QUANTISATION. Stages without an entry
    are not released. Raise BudgetExceeded if the budget cannot pay for means or pooled covariance, for example after
    a crash between payment and saving. If it cannot pay for the classes' own covariances, the pooled covariance
    replaces them.
    """
    seen, classes, size = numbers_of(config, facts), len(facts.classes), math.sqrt(facts.size)
    shape = noise_shape(seen.power, config.noise_shape)  # (f,)
    expected = seen.power / shape**2
    private = seen.of(private_images)
    private /= shape
    blocks = seen.action.blocks()
    may_differ = blocks[0][0]  # means of all other numbers are zero by a declared symmetry
    mean_clip, deviation_clip = config.mean_clip * size, config.deviation_clip * size
    means_stddev, pooled_stddev = stddevs[MEANS], stddevs.get(POOLED, 0.0)

    table = releases.once(  # (classes, 1 + f)
        MEANS, partial(noisy_means, private[:, may_differ], private_labels, classes, mean_clip, means_stddev)
    )
    counts, released = table[:, 0], table[:, 1:]
    if config.shrink:
        sums = released * counts[:, None]
        counts = shrinkage.shrink_counts(counts, means_stddev / COUNT_WEIGHT)
        noise_stddev = means_stddev * config.mean_clip * size / QUANTISATION
        released = shrinkage.shrink_means(sums, counts, expected[may_differ], noise_stddev)
    means = np.zeros((classes, len(shape)))
    means[:, may_differ] = released
    for label, mean_of_class in enumerate(means):
        private[private_labels == label] -= mean_of_class

    covariance = np.diag(WITHIN * expected)
    if POOLED in stddevs:
        parts = [part for pair in blocks for part in pair]
        scatter = releases.once(
            POOLED, lambda noise: noisy_scatter(private, deviation_clip, pooled_stddev, noise, parts)
        )
        covariance = scatter / counts.sum()
    noise_stddev = pooled_stddev * (deviation_clip / QUANTISATION) ** 2 / counts.sum()

    def fit_pooled(part: Array, places: Places, noise_stddev: float) -> Array:
        kept = POOLED not in stddevs or not config.shrink
        return part if kept else shrinkage.shrink_pooled(part, expected[places], noise_stddev)

    covariance = shrinkage.block_by_block(covariance, blocks, noise_stddev, fit_pooled) * np.outer(shape, shape)
    found = shrinkage.principal_components(covariance, seen.action, config.class_size(facts), config.latent_size(facts))
    components, pooled = found.vectors, np.maximum(found.variances, _FLOOR)  # (f, d) and (d,)
    clusters = None
    roots = [np.diag(np.sqrt(pooled)) for _ in range(classes)]
    if BY_CLASS in stddevs:
        leading = len(found.action.across)
        own_shape = noise_shape(pooled[:leading], config.noise_shape)  # (d,), like the noise shape of coefficients
        private *= shape
        private = exact_product(private, components[:, :leading], largest=_FAR * size) / own_shape
        middle, clip = pooled[:leading] / own_shape**2, config.component_clip * size
        if CLUSTERS in stddevs:
            rounds = KMeans(config.clusters, clip, stddevs[CLUSTERS], found.action)
            clusters = noisy_clusters(private, private_labels, middle, counts, rounds, releases)
            if clusters is not None:
                private -= clusters.centres[private_labels, clusters.nearest(private, private_labels)]
        own_blocks, own_stddev = found.action.blocks(), stddevs[BY_CLASS]
        own_parts = [part for pair in own_blocks for part in pair]
        rows = [private[private_labels == label] for label in range(classes)]
        scatters = np.empty((0, 1, 1))  # (classes, d, d), if they are paid for
        with suppress(BudgetExceeded):
            scatters = releases.once(
                BY_CLASS,
                lambda noise: np.stack([noisy_scatter(each, clip, own_stddev, noise, own_parts) for each in rows]),
            )

        def fit_own(part: Array, places: Places, noise_stddev: float) -> Array:
            fitted = shrinkage.shrink(part, middle[places], noise_stddev)
            if config.shrink:
                fitted = shrinkage.for_new_records(shrinkage.at_least(fitted, middle[places]), float(counts.mean()))
            values, vectors = np.linalg.eigh(fitted * np.outer(own_shape[places], own_shape[places]))
            root: Array = (vectors * np.sqrt(np.maximum(values, _FLOOR)))[:, ::-1]  # falling variance
            return root

        for root, scatter, count in zip(roots, scatters, counts, strict=False):
            # Beyond the leading components, use the pooled covariance.
            noise_stddev = own_stddev * (clip / QUANTISATION) ** 2 / count
            root[:leading, :leading] = shrinkage.block_by_block(scatter / count, own_blocks, noise_stddev, fit_own)
        if clusters is not None:
            clusters = in_latents(clusters, own_shape, roots)
    mean = seen.drawn(means * shape)
    mean[:, : facts.pixels] += config.centre
    return ClassGaussians(mean, Factors(seen, components, roots), clusters)


def noisy_gaussians(run: Run, config: MomentsConfig, released: Mapping[str, Any]) -> ClassGaussians:
    """Release the planned class statistics that are not yet in the checkpoint, and fit a Gaussian to each class.

    Only the rank that computes the statistics pays. `released` holds the tensors that an earlier attempt saved, by
    stage. After each release, the checkpoint's `start` contains everything released so far.
    """
    private_images, private_labels = records_to_sum(run.facts, run.data, run.secret)
    steps = warm_start_work(run.plan, run.facts).steps

    def keep(reached: Mapping[str, Array]) -> None:
        start = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in reached.items()}
        save_checkpoint(run.checkpoints, {"start": start})
        run.progress(stage=REPORTED, step=len(reached), steps=steps)

    run.progress(stage=REPORTED, step=len(released), steps=steps)
    kept = Kept({name: tensor.cpu().numpy() for name, tensor in released.items()}, partial(PaidNoise, run), keep)
    return warm_start(private_images, private_labels, config, run.facts, run.plan.noise_stddev, kept)


def put_into(generator: Generator, gaussians: ClassGaussians) -> None:
    generator.mean.copy_(torch.from_numpy(gaussians.mean))
    for place, factor in zip(generator.factor, gaussians.factor, strict=True):
        place.copy_(torch.from_numpy(factor))
    if gaussians.clusters is not None:
        generator.centres.copy_(torch.from_numpy(gaussians.clusters.centres))
        generator.shares.copy_(torch.from_numpy(gaussians.clusters.shares))


def warm_start_work(plan: Plan, facts: PublicFacts) -> Piece:
    releases = sum(stage.event.count for stage in plan.stages if stage.name in WARM_START)
    return Piece(REPORTED, releases, 4e-4 * facts.records_declared * facts.size)
