"""select_public: private records vote for the nearest public images; the generator samples the winners.

Private Evolution (Lin et al. 2024, arXiv:2305.15560) over a folder of public images instead of a foundation model. The
first iteration votes over clusters of public images. The second votes over images of the winning clusters, and over
variations of these images if a cluster has too few.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor
from torch.nn import functional

from models.portable.selected import SelectedConfig, SelectedPictures, vary
from models.portable.textured import texture
from privacy.errors import BudgetExceeded
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.select_public import VOTES, SelectPublicConfig, votes_event
from workers.recipes.interface import Piece, Run, load_checkpoint, save_checkpoint
from workers.recipes.ranks import all_agree
from workers.recipes.records import (
    AnchorsMissing,
    computed_alike,
    pixels_of,
    public_images,
    records_of_rank,
    records_to_sum,
)

_BLOCK = 256  # images described at once
_VARIED_SHIFT, _VARIED_TINT = 0.1, 0.3  # variation of a repeated image, as one more choice
Describe = Callable[[Tensor], Sequence[Tensor]]  # images (n, c, h, w) in [0, 1] to groups of numbers, (n, any) each
_SIDE, _COLOUR_CELLS, _TEXTURE_CELLS = 32, 8, 4  # pixels and cells per side
_AXES = 64
_FLOOR = 1e-12
_UNIT = 2.0**-12  # unit of a place
FAR = 2**20  # in units: farther than any place
_SEED = 0  # public seeds of the clusters and of varied images
_ROUNDS = 20


def train(run: Run) -> SelectedPictures:
    """Count the records' votes and return the selection.

    Raise AnchorsMissing, before anything is paid, if there are no public images from which a class can select.

    Privacy:
        Adjacency: add or remove one unit. Each iteration is one release with L2 sensitivity 1 (proof at
        `privacy.plans.select_public.votes_event`), paid for before its noise is drawn. Everything else is a function of
        public images and of releases.
    """
    config, facts = run.plan.config_of(SelectPublicConfig), run.facts
    assert config.choices is not None  # the plan sets it
    sizes = (len(facts.classes), facts.channels, facts.height, facts.width, config.choices)
    shape = SelectedConfig(*sizes, shift=config.shift, tint=config.colour, mirror=config.mirror)
    pools = public_pools(config, facts, run)
    space, clusters = run.on_first(lambda: _clusters(run, pools, shape.choices))
    released: list[Tensor] = list(load_checkpoint(run.checkpoints).get("votes", ()))
    axes = space.public.shape[1]
    centres = torch.full((len(clusters), shape.choices, axes), FAR)  # a missing choice is far from every record
    for row, own in zip(centres, clusters, strict=True):
        row[: len(own.centres)] = own.centres
    least = config.threshold * run.plan.noise_stddev[VOTES]  # fewer votes count as noise
    pictures: list[Tensor] = []  # of each class (choices, c, h, w) uint8
    weights: list[Tensor] = []  # of each class (choices,), adding up to 1
    for iteration in range(config.iterations):
        run.progress(stage=VOTES, step=iteration, steps=config.iterations)
        if iteration == len(released):
            private_votes = count_votes(run, space, centres)
            try:
                released.append(privatise_votes(run, private_votes, iteration))
            except BudgetExceeded:
                if not iteration:
                    raise
                break  # ended early: use the first iteration's winners
            save_checkpoint(run.checkpoints, {"votes": released})
        if iteration == 0:
            pictures = run.on_first(partial(_winners, run, shape, clusters, released[0], least))
            weights = [torch.full((len(each),), 1 / len(each), dtype=torch.float64) for each in pictures]
        else:
            weights = [shares_of(votes, least) for votes in released[iteration]]
        if iteration + 1 < config.iterations:
            places = [space.place(each.float() / 255) for each in pictures]
            centres = run.agree(torch.stack(places))
    run.progress(stage=VOTES, step=config.iterations, steps=config.iterations)
    generator = SelectedPictures(shape)
    generator.pictures.copy_(torch.stack(pictures))
    generator.weights.copy_(torch.stack(weights))
    return generator.eval()


def public_pools(config: SelectPublicConfig, facts: PublicFacts, run: Run) -> list[npt.NDArray[np.int64]]:
    """Return the rows of the public images from which each class selects, or raise AnchorsMissing."""
    images, labels = run.data.public_anchors, run.data.public_anchor_labels
    there = 0 if images is None else len(images)
    order = torch.randperm(there, generator=torch.Generator().manual_seed(_SEED))[: config.public_images]
    rows = np.sort(order.numpy())
    pools = [rows] * len(facts.classes)
    if config.public_labels and labels is not None:
        names = run.data.public_anchor_classes
        pools = [
            rows[np.isin(labels[rows], [at for at, each in enumerate(names) if each == name])] for name in facts.classes
        ]
    for name, pool in zip(facts.classes, pools, strict=True):
        if not len(pool) or len(rows) < 2:
            raise AnchorsMissing(f"the public dataset has no images from which the class {name} can select")
    return pools


def count_votes(run: Run, space: Space, centres: Tensor) -> Tensor:
    """Return this rank's number of votes for each choice of each class, (classes, choices) int64. Private.

    `centres` (classes, choices, axes) int64 are public, or were released before.

    Privacy:
        A record votes once, for the nearest choice of its own class. The record's coordinates depend on that record
        alone, because every image is computed in a block where this machine computes all images identically.
        Distances are exact integers.
    """
    images, labels = records_of_rank(*records_to_sum(run.facts, run.data, run.secret), run.secret)
    places = computed_alike(
        images, lambda block: space.place(pixels_of(block, np.arange(len(block)))), _BLOCK, all_agree
    )
    labels_there = torch.from_numpy(np.array(labels, dtype=np.int64))
    declared = (labels_there >= 0) & (labels_there < len(centres))
    private_votes = torch.zeros(centres.shape[:2], dtype=torch.int64)
    blocks = zip(*(torch.split(values[declared], _BLOCK) for values in (places, labels_there)), strict=True)
    for private_places, private_labels in blocks:
        apart = (private_places[:, None] - centres[private_labels]).square().sum(2)  # (b, choices)
        votes = torch.ones(len(apart), dtype=torch.int64)
        private_votes.index_put_((private_labels, apart.argmin(1)), votes, accumulate=True)
    return private_votes


def privatise_votes(run: Run, private_votes: Tensor, iteration: int) -> Tensor:
    """Pay for one iteration, sum the ranks' votes and privatise them, (classes, choices) int64."""
    stddev = run.plan.noise_stddev[VOTES]
    run.pay(votes_event(stddev), VOTES)
    noise, shape = run.noise("public pictures", iteration), tuple(private_votes.shape)
    return run.privatise(private_votes, lambda votes: votes + torch.from_numpy(noise.discrete_gaussian(shape, stddev)))


def work(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    config = plan.config_of(SelectPublicConfig)
    seen = config.public_images + config.iterations * facts.records_declared
    return (Piece(VOTES, config.iterations, 1e-3 * seen),)


def _clusters(run: Run, pools: list[npt.NDArray[np.int64]], choices: int) -> tuple[Space, list[Clusters]]:
    facts, extractor = run.facts, run.data.public_extractor
    describe: Describe = colours_and_texture if extractor is None else lambda images: [extractor(images)]
    rows = np.unique(np.concatenate(pools))
    parts = [describe(public_images(run.data, rows[at : at + _BLOCK], facts)) for at in range(0, len(rows), _BLOCK)]
    space = Space([torch.cat(group) for group in zip(*parts, strict=True)], describe)
    places = space.public.new_zeros(int(rows.max()) + 1, space.public.shape[1])
    places[torch.from_numpy(rows)] = space.public
    if not run.plan.config_of(SelectPublicConfig).public_labels:
        return space, [cluster(places, pools[0], choices)] * len(pools)
    return space, [cluster(places, pool, choices) for pool in pools]


def _winners(
    run: Run, shape: SelectedConfig, clusters: list[Clusters], noisy_votes: Tensor, least: float
) -> list[Tensor]:
    """Return the images of each class's winning clusters, (choices, c, h, w) uint8. Vary images that are repeated."""
    variation = replace(shape, shift=_VARIED_SHIFT, tint=_VARIED_TINT)
    stream, chosen = torch.Generator().manual_seed(_SEED), []
    for own, votes in zip(clusters, noisy_votes, strict=True):
        rows, repeats = winners(shares_of(votes[: len(own.members)], least), own, shape.choices)
        pictures = (public_images(run.data, np.array(rows), run.facts) * 255).round().byte()
        again = torch.tensor(repeats) > 0
        pictures[again] = (vary(pictures[again], variation, stream) * 255).round().byte()
        chosen.append(pictures)
    return chosen


class Space:
    """A public space in which Euclidean distances compare images. Its axes are the principal axes of public images.

    An image is described by groups of numbers, which have equal weight. Without an extractor, the groups are colour and
    texture at 32 x 32 pixels. Coordinates are integers, so distances are exact. `public` has one tensor
    (n, any) per group, for n >= 2 public images.
    """

    def __init__(self, public: Sequence[Tensor], describe: Describe) -> None:
        self._describe = describe
        self._means = [group.mean(0) for group in public]
        spreads = [group.var(0).sum().clamp_min(_FLOOR).sqrt() for group in public]
        self._scales = [1 / spread for spread in spreads]
        rows = self._standard(public)
        _, axes = torch.linalg.eigh((rows.T @ rows).double())  # ascending
        self._axes = axes[:, -_AXES:].float()
        self.public = self._on_grid(rows)  # (n, axes)

    def place(self, pictures: Tensor) -> Tensor:
        """Map images (n, c, h, w) in [0, 1] to coordinates (n, axes) int64, clamped to [-FAR / 2, FAR / 2]."""
        return self._on_grid(self._standard(self._describe(pictures)))

    def _on_grid(self, rows: Tensor) -> Tensor:
        places: Tensor = rows @ self._axes / _UNIT
        return places.round().clamp(-FAR / 2, FAR / 2).long()

    def _standard(self, groups: Sequence[Tensor]) -> Tensor:
        parts = zip(groups, self._means, self._scales, strict=True)
        return torch.cat([(group - mean) * scale for group, mean, scale in parts], dim=1)


def colours_and_texture(pictures: Tensor) -> Sequence[Tensor]:
    """Return each channel's means in 8 x 8 cells, (n, 64 c), and the brightness's texture in 4 x 4 cells, (n, 256)."""
    small = functional.interpolate(pictures, (_SIDE, _SIDE), mode="bilinear", antialias=True)
    waves = texture(small.mean(1, keepdim=True))  # (n, 16, 8, 8)
    cells = ((small, _COLOUR_CELLS), (waves, _TEXTURE_CELLS))
    return [functional.adaptive_avg_pool2d(maps, count).flatten(1) for maps, count in cells]


@dataclass(frozen=True)
class Clusters:
    """Clusters of the public images from which a class may select.

    Attributes:
        centres: (k, axes) int64, as `Space.place` returns them.
        members: for each cluster, the row numbers of its public images, nearest to the centre first.
    """

    centres: Tensor
    members: tuple[npt.NDArray[np.int64], ...]


def cluster(places: Tensor, rows: npt.NDArray[np.int64], count: int) -> Clusters:
    """Return at most `count` k-means clusters of the public images `rows`. `places` has all images' coordinates."""
    own = places[torch.from_numpy(rows)].double().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an empty cluster is left out
        centres, nearest = kmeans2(own, min(count, len(own)), iter=_ROUNDS, minit="++", rng=_SEED)
    found = [number for number in range(len(centres)) if (nearest == number).any()]
    members = []
    for number in found:
        there = np.flatnonzero(nearest == number)
        distance = ((own[there] - centres[number]) ** 2).sum(1)
        members.append(rows[there[np.argsort(distance, kind="stable")]])
    return Clusters(torch.from_numpy(centres[found]).round().long(), tuple(members))


def shares_of(noisy_votes: Tensor, least: float) -> Tensor:
    """Return each choice's share (k,) of a class's images. Shares add up to 1.

    Votes below `least` count as zero. If all are below `least`, all positive votes count. Without positive votes, all
    shares are equal.
    """
    votes = noisy_votes.double()
    for kept in (votes.where(votes >= least, 0.0), votes):
        if float(kept.clamp_min(0).sum()) > 0:
            return kept.clamp_min(0) / kept.clamp_min(0).sum()
    return torch.full_like(votes, 1 / len(votes))


def winners(shares: Tensor, clusters: Clusters, count: int) -> tuple[list[int], list[int]]:
    """Select `count` images from clusters, in proportion to the clusters' shares.

    Return their row numbers, and how often each was selected before. Images nearest to the centres come first. A
    cluster with too few images repeats them; the caller varies repetitions.
    """
    quotas = (shares * count).floor()
    missing = count - int(quotas.sum())
    quotas[torch.argsort(shares * count - quotas, descending=True, stable=True)[:missing]] += 1
    rows, repeats = [], []
    for quota, members in zip(quotas.int().tolist(), clusters.members, strict=True):
        rows += [int(members[place % len(members)]) for place in range(quota)]
        repeats += [place // len(members) for place in range(quota)]
    return rows, repeats
