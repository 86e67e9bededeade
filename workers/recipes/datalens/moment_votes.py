"""Linear teachers on public features: the teacher stage where an image's features are what is voted on.

Algorithm 1 of Wang et al. 2021 (arXiv:2103.11109) with D(x, y) = sigmoid(w_y . phi(x)). One gradient step from w = 0
on -E_real log D - E_fake log(1 - D), each class weighted alike, gives w_y = (mean_real,y phi - mean_fake,y phi) / 2,
so d log D / d phi points from the student's mean feature to the shard's, for every image of the class. A teacher of
fifteen records has nothing else to learn, hence nothing to memorise, and one release per class serves all its images.
The student is one Gaussian per class, whose mean features are known, so the generator's fit to the votes is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from privacy.aggregation import topagg
from privacy.errors import BudgetExceeded
from privacy.plans.datalens.moment_votes import MomentRound, planned_rounds
from privacy.plans.datalens.options import DataLensConfig
from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.blocks import computed_alike
from workers.recipes.interface import Piece, Run
from workers.recipes.moments.coefficients import cosine_basis
from workers.recipes.moments.warm_start import ClassGaussians
from workers.recipes.units import teacher_of_each

_CENTRE_BYTE = 64  # public constant near the mean brightness of pictures
_STEPS = 2**20  # steps per unit of a cosine wave's integers
_HALF_NORMAL = 0.75  # mean of |r| / stddev: 0.80 for a Gaussian, less for the heavier tails of cosine coefficients
_PRODUCT_MAX = 4.0
_BLOCK = 250  # teachers at a time
_FEATURES_BLOCK = 512  # images whose features are computed together
_REPORTED = "votes"  # the stage of its reports


def gaussians_by_votes(
    run: Run, released: Mapping[str, Any], keep: Callable[[Mapping[str, Any]], None]
) -> ClassGaussians:
    """Let the teachers of a training vote on the moments of its classes; arguments and errors of `run_moment_votes`."""
    config, rounds = run.plan.config_of(DataLensConfig), _rounds(run.plan, run.facts)
    features = cosine_features(run.facts, config.moments(run.facts).coefficients)
    private_shard = teacher_of_each(run.facts, run.data, run.secret, config.teachers)
    return run_moment_votes(run, rounds, features, private_shard, released, keep)


def moment_votes_work(plan: Plan, facts: PublicFacts) -> Piece:
    """Return the piece of a training that such votes are."""
    return Piece(_REPORTED, len(_rounds(plan, facts)), 1e-4 * facts.records_declared * facts.size)


def _rounds(plan: Plan, facts: PublicFacts) -> tuple[MomentRound, ...]:
    moments = plan.config_of(DataLensConfig).moments(facts)
    return planned_rounds(moments, len(facts.classes), plan.noise_stddev)


@dataclass(frozen=True)
class CosineFeatures:
    """Public: the lowest cosine waves as rows (F, pixels), and the scale that images' coefficients have (F,)."""

    basis: torch.Tensor
    scale: torch.Tensor

    def __call__(self, images: npt.NDArray[np.uint8]) -> torch.Tensor:
        """Return scaled coefficients (n, F) of images (n, h, w[, c]) around mid-grey.

        Integer arithmetic in float64 is exact, so a record's coefficients do not depend on how a matrix product
        groups the records around it: one record cannot change another's features even in the last bit.
        """
        waves = (self.basis.double() * _STEPS).round().T  # (pixels, F) integers; sums stay below 2^53
        unit = self.scale.double() * (255 * _STEPS)

        def compute(block: npt.NDArray[np.uint8]) -> torch.Tensor:
            flat = (np.moveaxis(block, 3, 1) if block.ndim == 4 else block).reshape(len(block), -1)
            rows = torch.from_numpy(flat.astype(np.float64)) - _CENTRE_BYTE
            return (rows @ waves / unit).float()

        return computed_alike(images, compute, _FEATURES_BLOCK)


def cosine_features(facts: PublicFacts, coefficients: int) -> CosineFeatures:
    """Choose the `coefficients` lowest frequencies; amplitudes fall off like 1 / frequency, as in natural pictures."""
    rows, columns = np.arange(facts.height), np.arange(facts.width)
    frequency = np.hypot(rows[:, None] * 28 / facts.height, columns[None, :] * 28 / facts.width).ravel()
    chosen = np.argsort(np.tile(frequency, facts.channels), kind="stable")[:coefficients]
    pixels = facts.height * facts.width
    row, column = np.divmod(chosen % pixels, facts.width)
    down, across = cosine_basis(facts.height, facts.height)[row], cosine_basis(facts.width, facts.width)[column]
    basis = np.zeros((len(chosen), facts.channels, pixels))
    waves = down[:, :, None] * across[:, None, :]  # (F, height, width)
    basis[np.arange(len(chosen)), chosen // pixels] = waves.reshape(len(chosen), pixels)
    scale = math.sqrt(pixels / 784) * 3.0 / (1.0 + frequency[chosen % pixels])
    return CosineFeatures(torch.from_numpy(basis.reshape(len(chosen), -1)).float(), torch.from_numpy(scale).float())


@dataclass
class Moments:
    """What the rounds have released so far, in scaled coefficients; the defaults are the public starting point."""

    mean: torch.Tensor  # (classes, F)
    scale: torch.Tensor  # (classes, F) standard deviations
    correlation: torch.Tensor  # (F, F), unit diagonal
    class_correlation: torch.Tensor | None = None  # (classes, f, f)
    noise: float = 0.0  # standard deviation of the noise left in one entry of `correlation`
    class_noise: float = 0.0


def run_moment_votes(
    run: Run,
    rounds: tuple[MomentRound, ...],
    features: CosineFeatures,
    private_shard: npt.NDArray[np.int64],
    released: Mapping[str, Any] = MappingProxyType({}),
    keep: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> ClassGaussians:
    """Let teachers vote round after round and return one Gaussian per class.

    Args:
        run: pays round by round, before the round's noise exists, and is told of each.
        rounds: from `moment_rounds`.
        features: the public map.
        private_shard: (n,) the teacher of each record, by keyed hash of its unit. Private.
        released: what an earlier attempt has kept.
        keep: is given the state after each round, at once.

    Privacy:
        One unit lies in one shard, so it changes one teacher's vote vector on each image of a round: L2 sensitivity
        2 sqrt(k), one Gaussian event per image (`MomentRound.event`). Feature maps of later rounds are functions of
        earlier releases.

    Raises:
        BudgetExceeded: a round on the means cannot be paid (again, after a crash between payment and `keep`): without
            them there is no generator. Later rounds refine one, and are left out when they cannot be paid.
    """
    private = _by_teacher(features(run.data.private_images), run.data.private_labels, private_shard)
    classes, f = len(run.facts.classes), len(features.basis)
    moments = Moments(torch.zeros(classes, f), torch.full((classes, f), 0.8), torch.eye(f))
    if released:
        moments = Moments(**released["moments"])
    coins = run.generator("moment coins")
    for step in range(int(released.get("rounds", 0)), len(rounds)):
        current = rounds[step]
        agg = current.aggregation
        votes = torch.zeros(current.images, agg.dimension, dtype=torch.int32)
        for g in _directions(current, moments, private):  # (n, images, dimension)
            votes += topagg.count_votes(g, agg, coins)
        try:
            run.budget.charge(current.event, current.name)  # at the last moment: little is lost when the process dies
        except BudgetExceeded:
            if current.moment == "means":
                raise
            break
        g_star = topagg.noisy_sum(votes, agg, run.noise("votes", current.name))  # (images, dimension), charged above
        g_bar = topagg.threshold(g_star, agg)
        _learn(current, moments, g_bar * current.clip / _share_that_votes(current, run.facts))
        keep({"rounds": step + 1, "moments": vars(moments)})
        run.progress(stage=_REPORTED, step=step + 1, steps=len(rounds))
    return fit_gaussians(moments, features)


@dataclass(frozen=True, repr=False)
class _Private:
    """Records sorted by teacher."""

    coefficients: torch.Tensor
    labels: torch.Tensor
    shard: torch.Tensor

    def __repr__(self) -> str:
        return "_Private()"


def _by_teacher(coefficients: torch.Tensor, labels: npt.NDArray[np.int64], shard: npt.NDArray[np.int64]) -> _Private:
    order = np.argsort(shard, kind="stable")
    return _Private(coefficients[torch.from_numpy(order)], *(torch.from_numpy(a[order]) for a in (labels, shard)))


def _directions(current: MomentRound, moments: Moments, private: _Private) -> Iterator[torch.Tensor]:
    """Yield each teacher's mean feature minus the student's, zero where it has no record of the class (PRIVATE)."""
    teachers, images = current.aggregation.teachers, current.images
    edges = torch.searchsorted(private.shard, torch.arange(0, teachers + _BLOCK, _BLOCK)).tolist()
    for index, start in enumerate(range(0, teachers, _BLOCK)):
        rows = slice(edges[index], edges[index + 1])
        labels = private.labels[rows]
        phi = _features(current, moments, private.coefficients[rows], labels)  # (r, dimension), student's mean is 0
        image = labels if images > 1 else torch.zeros_like(labels)
        group = (private.shard[rows] - start) * images + image
        n = min(_BLOCK, teachers - start)
        sums = torch.zeros(n * images, phi.shape[1]).index_add_(0, group, phi)
        counts = torch.bincount(group, minlength=n * images).clamp_(min=1)
        yield (sums / counts[:, None]).view(n, images, -1)


def _features(current: MomentRound, moments: Moments, coefficients: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return phi minus its mean under the student, (r, dimension)."""
    deviation = coefficients - moments.mean[labels]  # (r, F)
    if current.moment == "means":
        return deviation
    normal = deviation / moments.scale[labels]
    if current.moment in ("scales", "class_scales"):
        return normal.abs() - _HALF_NORMAL
    believed = _believed_correlation(current, moments)  # (classes or 1, f, f)
    f = believed.shape[1]
    left, right = torch.triu_indices(f, f, 1)
    products = (normal[:, left] * normal[:, right]).clamp_(-_PRODUCT_MAX, _PRODUCT_MAX)
    known = believed[:, left, right]  # (classes or 1, pairs)
    return products - (known if len(known) == 1 else known[labels])


def _learn(current: MomentRound, moments: Moments, step: torch.Tensor) -> None:
    """Move the student by the estimated step (images, dimension): post-processing."""
    step = step * current.damping
    left_noise = current.aggregation.stddev / current.aggregation.teachers * current.clip
    if current.moment == "means":
        moments.mean += step
    elif current.moment in ("scales", "class_scales"):
        moments.scale *= (1 + step / _HALF_NORMAL).clamp_(0.3, 2.0)
    elif current.moment == "products":
        moments.correlation += _symmetric(step[0], len(moments.correlation))
        moments.noise = left_noise / math.sqrt(current.index + 1)
    else:
        own = _believed_correlation(current, moments)
        moments.class_correlation = own + torch.stack([_symmetric(row, own.shape[1]) for row in step])
        moments.class_noise = left_noise / math.sqrt(current.index + 1)


def _believed_correlation(current: MomentRound, moments: Moments) -> torch.Tensor:
    """Return the correlations that the round corrects: (1, F, F) pooled, or (classes, f, f) per class."""
    if current.moment == "products":
        return moments.correlation[None]
    if moments.class_correlation is not None:
        return moments.class_correlation
    f = round((1 + math.sqrt(1 + 8 * current.aggregation.dimension)) / 2)  # f (f - 1) / 2 pairs
    return moments.correlation[:f, :f].repeat(len(moments.mean), 1, 1)


def _symmetric(pairs: torch.Tensor, f: int) -> torch.Tensor:
    matrix = torch.zeros(f, f)
    left, right = torch.triu_indices(f, f, 1)
    matrix[left, right] = pairs
    return matrix + matrix.T


def _share_that_votes(current: MomentRound, facts: PublicFacts) -> float:
    """Return the expected share of teachers with a record of a class, if classes are even; 1 for pooled rounds."""
    if current.images == 1:
        return 1.0
    return 1.0 - math.exp(-facts.records_declared / (current.aggregation.teachers * len(facts.classes)))


def fit_gaussians(moments: Moments, features: CosineFeatures) -> ClassGaussians:
    """Turn released moments into one Gaussian per class over images: post-processing.

    Eigenvalues of the pooled correlation that noise alone would give are dropped and the rest shrunk (the edge of a
    symmetric noise matrix of F rows is at 2 stddev sqrt(F)); what is dropped returns as independent noise of the
    coefficients. Each class's own deviation from the pooled correlation is scaled down by the James-Stein rule.
    """
    pooled = _denoised(moments.correlation, moments.noise)
    factors = []
    for label in range(len(moments.mean)):
        correlation = pooled.clone()
        if moments.class_correlation is not None:
            f = moments.class_correlation.shape[1]
            deviation = moments.class_correlation[label] - pooled[:f, :f]
            deviation.fill_diagonal_(0.0)
            mean_square = float(deviation.square().sum()) / (f * (f - 1))
            correlation[:f, :f] += deviation * max(0.0, 1.0 - moments.class_noise**2 / max(mean_square, 1e-12))
        values, vectors = torch.linalg.eigh(correlation.double())
        root = (vectors * values.clamp(min=0.0).sqrt()).float().flip(1)  # (F, F)
        spread = moments.scale[label] * features.scale
        factors.append(features.basis.T @ (spread[:, None] * root))
    mean = (moments.mean * features.scale) @ features.basis + _CENTRE_BYTE / 255
    return ClassGaussians(mean.double().numpy(), [factor.double().numpy() for factor in factors])


def _denoised(correlation: torch.Tensor, noise: float) -> torch.Tensor:
    values, vectors = torch.linalg.eigh(correlation.double())
    edge = 2.2 * noise * math.sqrt(len(values))
    kept = torch.where(values > edge, (values + (values.square() - edge**2).clamp(min=0).sqrt()) / 2, 0.0)
    clean: torch.Tensor = ((vectors * kept) @ vectors.T).float()
    return clean + torch.diag((1 - clean.diagonal()).clamp(min=0))
