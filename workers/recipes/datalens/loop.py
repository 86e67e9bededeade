"""DataLens: teachers on disjoint shards vote on how synthetic images should change (Wang et al. 2021).

The loop is Algorithm 1 (arXiv:2103.11109) with two additions of ours, both switchable: a warm start paid from the
same budget, and votes on *latents* instead of pixels. In a class's latent space every direction has unit variance, so
the few coordinates for which a teacher may vote are the ones that matter, and few coordinates mean little noise.
`pixel_votes` has the algorithm as it was published.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.portable.conditional_dcgan import ConditionalDcganGenerator
from models.portable.generator import Generator
from models.shards import Shards
from privacy.mechanisms.partition import shard_members
from privacy.plans.datalens.moment_votes import planned_rounds
from privacy.plans.datalens.options import TEACHER_BYTES, DataLensConfig
from privacy.plans.datalens.plan import VOTES, planned_iterations
from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.datalens.moment_votes import cosine_features, run_moment_votes
from workers.recipes.datalens.pixel_votes import pixel_votes_work, stage_config, train_on_pixels
from workers.recipes.datalens.student import LatentStudent, vote_stddev
from workers.recipes.datalens.teacher_stage import TeacherStageState, run_teacher_stage, start_teacher_stage
from workers.recipes.interface import NothingUseful, Piece, Run, save_checkpoint
from workers.recipes.moments.coefficients import exact_product, texture_coefficients
from workers.recipes.moments.loop import Keep, empty_generator, started
from workers.recipes.moments.warm_start import ClassGaussians, prior, release_gaussians, warm_start_work
from workers.recipes.ranks import share
from workers.recipes.units import teacher_of_each

_LATENT_CLIP = 4.0  # public: of a record further out than that, in standard deviations, teachers see that much
_BLOCK = 4096


def train(run: Run) -> Generator | ConditionalDcganGenerator:
    """Train and return the released generator; see `workers.recipes.interface.Trainer`.

    Privacy:
        Add or remove one unit: a record, or all records of a subject. The releases are those of the plan's stages: at
        most one of each warm start statistic and one per aggregated image, each charged before its noise is drawn.
        The generator is computed from them and public parameters alone. A subject's records all lie in one teacher's
        shard, and one of them stands for the subject in the warm start, so every sensitivity is that of a record.

    Raises:
        BudgetExceeded: the budget ended before the start was paid for, or a statistic was paid for and lost in a crash
            before it was kept, more often than the rest of the hold can make up for.
        NothingUseful: there is neither a start nor a vote.
        ContributionUnbounded: a unit could change a release by more than was priced; raised before it is charged.
        MemoryError: the teachers do not fit where they are to train; raised before anything is charged.
    """
    cfg = run.plan.config_of(DataLensConfig)
    if run.plan.stage(VOTES) is not None:
        _require_memory(cfg, run)
    if cfg.votes_on == "pixels":
        return train_on_pixels(run)
    features = 0 if cfg.texture and cfg.vote_share == 0 else cfg.features  # so it was before votes knew of texture
    generator = empty_generator(cfg, run.facts, features)
    state = started(run, generator, lambda released, keep: _start(run, cfg, released, keep))
    generator.to(run.device)
    if run.plan.stage(VOTES) is not None:
        _vote(run, cfg, generator, state.get("votes"))
    return generator.cpu().eval()


def _require_memory(cfg: DataLensConfig, run: Run) -> None:
    """Refuse teachers that a GPU has no memory left for, or that are larger than the machine's."""
    teachers = share(cfg.teachers) if cfg.teacher_network == "convolutional" else slice(0, cfg.teachers)
    held = TEACHER_BYTES * cfg.parameters_per_teacher(run.facts) * (teachers.stop - teachers.start)
    if run.device.type == "cuda":
        there = torch.cuda.mem_get_info(run.device)[0]
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if held > there:
        raise MemoryError


def work(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    """Return the pieces of a training."""
    cfg, pieces = plan.config_of(DataLensConfig), []
    if cfg.votes_on == "pixels":
        return (pixel_votes_work(plan, facts),)
    if cfg.warm_start:
        pieces.append(warm_start_work(plan, facts))
    elif cfg.moment_votes:
        rounds = len(planned_rounds(cfg.moments(facts), len(facts.classes), plan.noise_stddev))
        pieces.append(Piece("votes", rounds, 1e-4 * facts.records_declared * facts.size))
    if plan.stage(VOTES) is not None:
        iterations = planned_iterations(plan)
        votes = cfg.teachers * cfg.images_per_iteration * (1 + cfg.teacher_steps)
        pieces.append(Piece(VOTES, iterations, 2e-6 * votes * iterations))
    return tuple(pieces)


def _start(run: Run, cfg: DataLensConfig, released: Mapping[str, Any], keep: Keep) -> ClassGaussians:
    """Release what the generator starts from, and keep each release; `released` is what an earlier attempt kept."""
    facts, noise_stddev = run.facts, run.plan.noise_stddev
    if cfg.moment_votes:
        moments = cfg.moments(facts)
        rounds = planned_rounds(moments, len(facts.classes), noise_stddev)
        shard = teacher_of_each(facts, run.data, run.secret, cfg.teachers)
        return run_moment_votes(run, rounds, cosine_features(facts, moments.coefficients), shard, released, keep)
    if not cfg.warm_start:
        return prior(cfg, facts)
    return release_gaussians(run, cfg, released, keep)


def _vote(run: Run, cfg: DataLensConfig, generator: Generator, saved: dict[str, Any] | None) -> None:
    """Run the teacher stage; the generator's bend is changed in place."""
    stage_cfg = stage_config(run.plan, cfg, run.facts)
    agg = stage_cfg.aggregation
    student = LatentStudent(
        generator,
        latents=run.generator("latents"),
        teachers=cfg.teachers,
        noise_stddev=vote_stddev(agg.stddev, cfg.teachers, agg.votes_max, agg.dimension),
        step=cfg.step,
        round_iterations=max(1, stage_cfg.iterations // cfg.rounds),
        thresholded=cfg.use_threshold,
    )
    private_shards = _shards(run, cfg, generator)
    state = start_teacher_stage(stage_cfg, run)
    if saved is not None:
        state.restore(saved["stage"])
        student.restore(saved["student"])

    def checkpoint(reached: TeacherStageState) -> None:
        votes = {"stage": reached.tensors(), "student": student.state()}
        state = {"generator": generator.state_dict(), "votes": votes}
        save_checkpoint(run.checkpoints, step=reached.iteration, state=state)

    releases = run_teacher_stage(stage_cfg, private_shards, student, state, run, checkpoint)
    if not releases and not cfg.has_start:
        raise NothingUseful
    student.finish(releases)


def _shards(run: Run, cfg: DataLensConfig, generator: Generator) -> Shards:
    """Give every teacher its records as latents."""
    assigned = teacher_of_each(run.facts, run.data, run.secret, cfg.teachers)
    private_labels = torch.from_numpy(np.array(run.data.private_labels, dtype=np.int64))  # torch takes no read-only map
    private_latents = encode(generator, run.data.private_images, private_labels)
    return Shards(private_latents, private_labels, shard_members(assigned, cfg.teachers), device=run.device)


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
        origin = mean.numpy() @ inverse  # (d,)
        rows = (private_labels == label).nonzero().squeeze(1)
        for block in torch.split(rows, _BLOCK):
            images = np.asarray(private_images[block.numpy()])
            if images.ndim == 4:
                images = np.moveaxis(images, 3, 1)
            pixels = images.reshape(len(images), pixels_of) / 255.0
            found = exact_product(pixels, inverse[:pixels_of], largest=1.0) - origin
            if generator.config.outputs > pixels_of:
                found += texture_coefficients(np.asarray(private_images[block.numpy()]), inverse[pixels_of:].T)
            latents[block] = torch.from_numpy(found).float()
    return latents.clamp_(-clip, clip)
