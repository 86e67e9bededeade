"""DataLens: teachers on disjoint shards vote on how synthetic images should change (Wang et al. 2021).

The loop is Algorithm 1 (arXiv:2103.11109), on pixels as it was published: from nothing, with the authors' generator. Of
ours, and switchable, are a start paid from the same budget, and votes on *latents* instead of pixels. In a class's
latent space every direction has unit variance, so the few coordinates for which a teacher may vote are the ones that
matter, and few coordinates mean little noise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.portable.conditional_dcgan import ConditionalDcganConfig, ConditionalDcganGenerator
from models.portable.generator import Generator
from privacy.plans.datalens.options import TEACHER_BYTES, DataLensConfig
from privacy.plans.datalens.plan import VOTES
from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.datalens.moment_votes import gaussians_by_votes, moment_votes_work
from workers.recipes.datalens.student import LatentStudent, PixelStudent, vote_stddev
from workers.recipes.datalens.votes import stage_config, vote, votes_work
from workers.recipes.interface import NothingUseful, Piece, Run, load_checkpoint
from workers.recipes.moments.coefficients import RoundedMatrix, texture_coefficients
from workers.recipes.moments.loop import Keep, empty_generator, started
from workers.recipes.moments.warm_start import ClassGaussians, noisy_gaussians, prior, warm_start_work
from workers.recipes.ranks import share

_LATENT_CLIP = 4.0  # public: of a record further out than that, in standard deviations, teachers see that much
_BLOCK = 4096


def train(run: Run) -> Generator | ConditionalDcganGenerator:
    """Train and return the released generator; see `workers.recipes.interface.Trainer`.

    Privacy:
        Add or remove one unit: a record, or all records of a subject. The releases are those of the plan's stages: at
        most one of each statistic or round of the start and one per aggregated image, each charged before its noise is
        drawn. The generator is computed from them and public parameters alone; the statistics that its BatchNorm draws
        with, where it has one, are measured on public latents. A subject's records all lie in one teacher's shard, and
        one of them stands for the subject in the warm start, so every sensitivity is that of a record.

    Raises:
        BudgetExceeded: the budget ended before the start was paid for, or a statistic was paid for and lost in a crash
            before it was kept, more often than the rest of the hold can make up for.
        NothingUseful: there is neither a start nor a vote.
        ContributionUnbounded: a unit could change a release by more than was priced; raised before it is charged.
        MemoryError: the teachers do not fit where they are to train; raised before anything is charged.
    """
    config = run.plan.config_of(DataLensConfig)
    if VOTES in run.plan.noise_stddev:
        _require_memory(run)
    return _train_on_pixels(run, config) if config.votes_on == "pixels" else _train_on_latents(run, config)


def _require_memory(run: Run) -> None:
    """Refuse teachers that a GPU has no memory left for, or that are larger than the machine's."""
    config = run.plan.config_of(DataLensConfig)
    teachers = share(config.teachers) if config.teacher_network == "convolutional" else slice(0, config.teachers)
    held = TEACHER_BYTES * config.parameters_per_teacher(run.facts) * (teachers.stop - teachers.start)
    if run.device.type == "cuda":
        there = torch.cuda.mem_get_info(run.device)[0]
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if held > there:
        raise MemoryError


def _train_on_pixels(run: Run, config: DataLensConfig) -> ConditionalDcganGenerator:
    sizes = (len(run.facts.classes), run.facts.channels, run.facts.height, run.facts.width)
    seed = int(torch.randint(1 << 62, (1,), generator=run.generator("generator weights")))
    network = ConditionalDcganGenerator(ConditionalDcganConfig(*sizes), seed).to(run.device)
    student = PixelStudent(network, config.generator_learning_rate, run.generator("latents"))
    images = np.asarray(run.data.private_images)
    images = np.moveaxis(images, 3, 1) if images.ndim == 4 else images
    private_records = torch.from_numpy(np.array(images, order="C")).flatten(1)  # copied: torch takes no read-only map
    saved = load_checkpoint(run.checkpoints)
    if not vote(run, private_records, student, None if saved is None else saved.state, lambda votes: votes):
        raise NothingUseful
    network.settle()
    return network.cpu()


def _train_on_latents(run: Run, config: DataLensConfig) -> Generator:
    unbent = config.texture and config.vote_share == 0  # as it was before votes knew of texture
    generator = empty_generator(config, run.facts, 0 if unbent else config.features)
    fit = _STARTS[config.starts_from].fit
    state = started(run, generator, lambda released, keep: fit(run, released, keep))
    generator.to(run.device)
    if VOTES not in run.plan.noise_stddev:
        return generator.cpu().eval()
    stage = stage_config(run.plan, run.facts)
    student = LatentStudent(
        generator,
        latents=run.generator("latents"),
        teachers=config.teachers,
        noise_stddev=vote_stddev(stage.aggregation),
        step=config.step,
        round_iterations=max(1, stage.iterations // config.rounds),
        thresholded=config.use_threshold,
    )
    private_labels = torch.from_numpy(np.array(run.data.private_labels, dtype=np.int64))
    private_latents = encode(generator, run.data.private_images, private_labels)

    def with_votes(votes: dict[str, Any]) -> dict[str, Any]:
        return {"generator": generator.state_dict(), "votes": votes}

    releases = vote(run, private_latents, student, state.get("votes"), with_votes)
    if not releases and not config.has_start:
        raise NothingUseful
    student.finish(releases)
    return generator.cpu().eval()


class Start(NamedTuple):
    """What a generator of latents starts from: what fits it to releases, and the pieces of a training that this is."""

    fit: Callable[[Run, Mapping[str, Any], Keep], ClassGaussians]
    work: Callable[[Plan, PublicFacts], tuple[Piece, ...]]


def _statistics(run: Run, released: Mapping[str, Any], keep: Keep) -> ClassGaussians:
    return noisy_gaussians(run, run.plan.config_of(DataLensConfig), released, keep)


def _nothing(run: Run, _released: Mapping[str, Any], _keep: Keep) -> ClassGaussians:
    return prior(run.plan.config_of(DataLensConfig), run.facts)


_STARTS = {
    "statistics": Start(_statistics, lambda plan, facts: (warm_start_work(plan, facts),)),
    "votes": Start(gaussians_by_votes, lambda plan, facts: (moment_votes_work(plan, facts),)),
    "nothing": Start(_nothing, lambda _plan, _facts: ()),
}


def work(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    """Return the pieces of a training."""
    pieces = _STARTS[plan.config_of(DataLensConfig).starts_from].work(plan, facts)
    return (*pieces, votes_work(plan, facts)) if plan.stage(VOTES) is not None else pieces


def encode(generator: Generator, private_images: npt.NDArray[np.uint8], private_labels: Tensor) -> Tensor:
    """Return the latents (n, d) from which the unbent generator would draw what it can of each image. Private.

    Where the generator draws texture, a latent stands for pixels and texture together: it is the least-squares answer
    to both. Each record's latent is a function of that record and the generator alone, to the last bit, so a unit moves
    one shard and no more than k votes of one teacher, as on pixels.
    """
    latents = torch.zeros(len(private_images), generator.config.components)
    pixels_of, clip = generator.config.pixels, _LATENT_CLIP
    if generator.config.clusters > 1:
        clip += float(generator.centres.abs().max())  # released
    for label in range(generator.config.classes):
        factor, mean = generator.factor[label].cpu().double(), generator.mean[label].cpu().double()
        inverse = torch.linalg.pinv(factor, rtol=1e-3).T.numpy()  # (outputs, d)
        origin, of_pixels = mean.numpy() @ inverse, RoundedMatrix(inverse[:pixels_of])  # (d,), (pixels, d)
        rows = (private_labels == label).nonzero().squeeze(1)
        for block in torch.split(rows, _BLOCK):
            images = np.asarray(private_images[block.numpy()])
            if images.ndim == 4:
                images = np.moveaxis(images, 3, 1)
            pixels = images.reshape(len(images), pixels_of) / 255.0
            found = of_pixels.exact_product(pixels, largest=1.0) - origin
            if generator.config.outputs > pixels_of:
                found += texture_coefficients(np.asarray(private_images[block.numpy()]), inverse[pixels_of:].T)
            latents[block] = torch.from_numpy(found).float()
    return latents.clamp_(-clip, clip)
