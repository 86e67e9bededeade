"""What an auditor reads of the votes on pixels of a whole training by DataLens' presets `published` and `kernel`."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.audited_trainings import Array, Population, Tap, decode
from models.closed_form_teachers import KernelTeachers, LinearTeachers
from models.shards import Shards
from privacy.aggregation import topagg
from privacy.aggregation.topagg_config import TopAggConfig
from privacy.mechanisms import partition
from privacy.mechanisms.noise import derive_key
from privacy.plans.datalens import VOTES, DataLensConfig
from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.teacher_stage import Release


def pixel_vote_scores(tap: Tap, plan: Plan, population: Population, secret: bytes, noise: float = 1.0) -> Array:
    """Decode the coins from the noisy sums of all images, by how each canary would turn its teacher's votes.

    Returns:
        (m,) a score for each canary.
    """
    config, facts = plan.config_of(DataLensConfig), population.facts
    aggregation = config.topagg(facts, plan.noise_stddev[VOTES])
    everyone = population.data(np.ones(len(population.canary_images), dtype=bool))
    units = partition.record_units(everyone.private_images, everyone.private_labels)
    teacher = partition.shard_of(units, derive_key(secret, "shards"), config.teachers)
    rows = torch.from_numpy(everyone.private_images.reshape(len(teacher), -1))
    labels, public = torch.from_numpy(everyone.private_labels), len(population.images)
    worlds = [
        _teachers(Shards(rows[:n], labels[:n], partition.shard_members(teacher[:n], config.teachers)), config, facts)
        for n in (public, len(teacher))
    ]
    home, label = torch.from_numpy(teacher[public:]), labels[public:]
    projections, gram = np.zeros(len(home)), np.zeros((len(home), len(home)))
    for number, release in enumerate(tap.releases):
        for world in worlds:
            if isinstance(world, KernelTeachers):
                world.show(*tap.shown[number])
        absent, present = (_votes(world, release, aggregation) for world in worlds)  # (N, images, d) each
        middle = (absent.sum(0) + present.sum(0)) / 2  # (images, d)
        rest = (release.released_sums - middle) / (noise * aggregation.stddev)
        same = (label[:, None] == release.released_labels)[:, :, None]  # (m, images, 1)
        turn = ((present[home] - absent[home]) * same / (noise * aggregation.stddev)).flatten(1)  # (m, images d)
        projections += (turn @ rest.flatten()).double().numpy()
        gram += (turn @ turn.T).double().numpy()
    return decode(projections, gram)


def _teachers(shards: Shards, config: DataLensConfig, facts: PublicFacts) -> LinearTeachers | KernelTeachers:
    if config.teacher_network == "kernel":
        return KernelTeachers(shards, len(facts.classes), config.teacher_bandwidth * facts.size**0.5)
    return LinearTeachers(shards, len(facts.classes))


def _votes(teachers: LinearTeachers | KernelTeachers, release: Release, cfg: TopAggConfig) -> torch.Tensor:
    """Return each teacher's votes, (N, images, d) int8; their coins are tossed only for gradients within the clip."""
    shape = len(release.released_inputs), cfg.dimension
    blocks = teachers.image_gradients(release.released_inputs, release.released_labels)
    return torch.cat(
        [topagg.topk_sto_sign_grad(g.reshape(-1, cfg.dimension), cfg, 0).view(-1, *shape) for _, g in blocks]
    )
