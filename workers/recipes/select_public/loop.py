"""select_public: every private record votes for the public pictures that are nearest to it, and those are drawn.

Private Evolution (Lin et al. 2024, arXiv:2305.15560) over a folder of public pictures in the place of what a foundation
model draws. The first iteration votes over clusters of them, the second over pictures of the clusters that won, and over
variations of these where a cluster has too few.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from models.portable.selected import SelectedConfig, SelectedPictures, vary
from privacy.errors import BudgetExceeded
from privacy.plans.select_public.plan import VOTES, SelectPublicConfig, votes_event
from workers.recipes.anchors import AnchorsMissing, public_images
from workers.recipes.blocks import alike_block, in_blocks
from workers.recipes.interface import Piece, load_checkpoint, save_checkpoint
from workers.recipes.ranks import share
from workers.recipes.select_public.choices import Clusters, cluster, shares_of, winners
from workers.recipes.select_public.space import Space, describe_with
from workers.recipes.units import pixels_of, records_to_sum

if TYPE_CHECKING:
    import numpy.typing as npt

    from privacy.plans.plan import Plan, PublicFacts
    from workers.recipes.interface import Run

_SEED = 0  # public
_BLOCK = 256  # pictures described at once
_VARIED = {"shift": 0.1, "colour": 0.3}  # how a picture varies that is voted for a second time


@dataclass(frozen=True)
class Candidates:
    """What one class draws. Public pictures, selected and weighted by what was released.

    Attributes:
        pictures: (m, c, h, w) uint8.
        weights: (m,), adding up to 1.
    """

    pictures: Tensor
    weights: Tensor


def train(run: Run) -> SelectedPictures:
    """Let records vote and return the selection; see `workers.recipes.interface.Trainer`.

    Privacy:
        Add or remove one unit. Each iteration is one release, of L2 sensitivity 1 (the proof stands in
        `privacy.plans.select_public.plan.votes_event`), paid for before its noise is drawn. Everything else is a
        function of public pictures and of what was released.

    Raises:
        AnchorsMissing: there are no public pictures from which a class can select; nothing was charged.
        BudgetExceeded: an attempt that was lost had paid for the first iteration, and the hold does not pay twice.
        ContributionUnbounded: the account protects subjects, and nobody knows whose the records are.
    """
    config, facts = run.plan.config_of(SelectPublicConfig), run.facts
    pools = public_pools(config, facts, run)
    space, clusters = run.on_first(lambda: _clusters(config, facts, run, pools))
    checkpoint = load_checkpoint(run.checkpoints)
    released: list[Tensor] = [] if checkpoint is None else list(checkpoint.state["votes"])
    centres = [each.centres for each in clusters]
    candidates: list[Candidates] = []
    for iteration in range(config.iterations):
        run.progress(stage=VOTES, step=iteration, steps=config.iterations)
        if iteration == len(released):
            private_votes = count_votes(run, space, centres)
            try:
                released.append(release_votes(run, private_votes, iteration))
            except BudgetExceeded:
                if not iteration:
                    raise
                break  # ended early: the first iteration's winners are drawn
            save_checkpoint(run.checkpoints, step=iteration + 1, state={"votes": released})
        candidates = run.on_first(lambda at=iteration: _selected(run, clusters, candidates, released[at], at))  # type: ignore[misc]
        centres = [space.place(each.pictures.float() / 255) for each in candidates] if iteration == 0 else []
    return _generator(config, facts, candidates)


def public_pools(config: SelectPublicConfig, facts: PublicFacts, run: Run) -> list[npt.NDArray[np.int64]]:
    """Return for each class the rows of the public pictures from which it selects.

    Raises:
        AnchorsMissing: a class has none.
    """
    images, labels = run.data.public_anchors, run.data.public_anchor_labels
    there = 0 if images is None else len(images)
    order = torch.randperm(there, generator=torch.Generator().manual_seed(_SEED))[: config.public_pictures]
    rows = np.sort(order.numpy())
    pools = [rows] * len(facts.classes)
    if config.public_labels and labels is not None:
        names = run.data.public_anchor_classes
        pools = [rows[np.isin(labels[rows], [at for at, each in enumerate(names) if each == name])] for name in facts.classes]
    for name, pool in zip(facts.classes, pools, strict=True):
        if not len(pool) or len(rows) < 2:
            raise AnchorsMissing(f"there are no public pictures from which the class {name} can select")
    return pools


def count_votes(run: Run, space: Space, centres: list[Tensor]) -> Tensor:
    """Return how many of this rank's records vote for each choice of each class, (classes, choices) int64. Private.

    Privacy:
        A record votes once, for that choice of its own class which is nearest to it. It is described by itself, in
        blocks in which this machine computes every picture alike wherever it stands.

    Args:
        space: public.
        centres: of each class, (k, axes): public, or of what was released before.
    """
    images, labels = records_to_sum(run.facts, run.data, run.secret)
    own = share(len(labels))
    classes, most = len(centres), max(map(len, centres))

    def distances(block: npt.NDArray[np.uint8]) -> Tensor:
        places = space.place(pixels_of(block, np.arange(len(block))))[:, None]  # (n, 1, axes)
        return torch.cat([(places - each).square().sum(2) for each in centres], dim=1)  # (n, choices of all classes)

    def nearest(block: npt.NDArray[np.uint8]) -> Tensor:
        by_class = torch.split(distances(block), [len(each) for each in centres], dim=1)
        return torch.stack([each.argmin(1) for each in by_class], dim=1)  # (n, classes)

    size = alike_block(distances, images.shape[1:], _BLOCK, run.all_agree)
    private_choices = in_blocks(images[own], nearest, size).numpy()  # (n, classes)
    private_labels = np.asarray(labels[own])
    declared = (private_labels >= 0) & (private_labels < classes)
    votes = np.zeros((classes, most), dtype=np.int64)
    voters = private_labels[declared]
    np.add.at(votes, (voters, private_choices[declared, voters]), 1)
    return torch.from_numpy(votes)


def release_votes(run: Run, private_votes: Tensor, iteration: int) -> Tensor:
    """Pay for one iteration, add up the ranks' votes and release them with noise, (classes, choices) int64.

    Raises:
        BudgetExceeded: nothing was released.
    """
    stddev = run.plan.noise_stddev[VOTES]
    run.pay(votes_event(stddev), VOTES)

    def add_noise(votes: Tensor) -> Tensor:
        drawn = run.noise("public pictures", iteration).discrete_gaussian(tuple(votes.shape), stddev)
        return votes + torch.from_numpy(drawn)

    return run.release(private_votes, add_noise)


def work(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    """Return the pieces of a training."""
    config = plan.config_of(SelectPublicConfig)
    seen = config.public_pictures + config.iterations * facts.records_declared
    return (Piece(VOTES, config.iterations, 1e-3 * seen),)


def _clusters(
    config: SelectPublicConfig, facts: PublicFacts, run: Run, pools: list[npt.NDArray[np.int64]]
) -> tuple[Space, list[Clusters]]:
    """Describe the public pictures and cluster what each class selects from: once where all select from the same."""
    describe = describe_with(run.data.public_extractor)
    rows = np.unique(np.concatenate(pools))
    parts = [describe(public_images(run.data, rows[at : at + _BLOCK], facts)) for at in range(0, len(rows), _BLOCK)]
    space = Space([torch.cat(group) for group in zip(*parts, strict=True)], describe)
    places = torch.zeros(int(rows.max()) + 1, space.public.shape[1])
    places[torch.from_numpy(rows)] = space.public
    assert config.choices is not None
    if not config.public_labels:
        return space, [cluster(places, pools[0], config.choices)] * len(pools)
    return space, [cluster(places, pool, config.choices) for pool in pools]


def _selected(
    run: Run, clusters: list[Clusters], candidates: list[Candidates], noisy_votes: Tensor, iteration: int
) -> list[Candidates]:
    """Return what each class draws after an iteration: pictures of the clusters that won, then those with new weights."""
    config = run.plan.config_of(SelectPublicConfig)
    assert config.choices is not None
    least = config.threshold * run.plan.noise_stddev[VOTES]
    if iteration:
        return [
            replace(each, weights=shares_of(votes[: len(each.weights)], least))
            for each, votes in zip(candidates, noisy_votes, strict=True)
        ]
    stream = torch.Generator().manual_seed(_SEED)
    found = []
    for own, votes in zip(clusters, noisy_votes, strict=True):
        rows, repeats = winners(shares_of(votes[: len(own.members)], least), own, config.choices)
        pictures = (public_images(run.data, np.array(rows), run.facts) * 255).round().byte()
        again = torch.tensor(repeats) > 0
        if bool(again.any()):
            varied = vary(pictures[again], replace(_shape(config, run.facts, 1, 1), **_VARIED), stream)  # type: ignore[arg-type]
            pictures[again] = (varied * 255).round().byte()
        found.append(Candidates(pictures, torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)))
    return found


def _generator(config: SelectPublicConfig, facts: PublicFacts, candidates: list[Candidates]) -> SelectedPictures:
    """Return the selection, with no picture twice and none that is never drawn."""
    kept = [each.weights > 0 for each in candidates]
    every = torch.cat([each.pictures[drawn] for each, drawn in zip(candidates, kept, strict=True)])
    pictures, places = torch.unique(every.flatten(1), dim=0, return_inverse=True)
    most = max(int(drawn.sum()) for drawn in kept)
    generator = SelectedPictures(_shape(config, facts, len(pictures), most))
    generator.pictures.copy_(pictures.view(-1, *every.shape[1:]))
    generator.weights.zero_()
    at = 0
    for label, (each, drawn) in enumerate(zip(candidates, kept, strict=True)):
        count = int(drawn.sum())
        generator.rows[label, :count] = places[at : at + count]
        generator.weights[label, :count] = each.weights[drawn].float()
        at += count
    return generator.eval()


def _shape(config: SelectPublicConfig, facts: PublicFacts, pictures: int, choices: int) -> SelectedConfig:
    return SelectedConfig(
        classes=len(facts.classes),
        channels=facts.channels,
        height=facts.height,
        width=facts.width,
        pictures=pictures,
        choices=choices,
        shift=config.shift,
        colour=config.colour,
        mirror=config.mirror,
    )
