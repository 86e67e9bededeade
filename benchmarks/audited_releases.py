"""Every kind of release, set up for an audit: production code on designed worst cases, and the auditor's statistic.

Each function plays one game: canaries that the coins chose are in the data, and the mechanism runs once with secret
noise. The result is one number for each canary (and draw), higher where the release looks as if it was in. The
statistic is the projection on what the canary adds by itself, which for Gaussian noise grows with the likelihood ratio.
The auditor knows everything but coins and noise: the mechanism, the other records, the partition key.
"""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.audited import Audited, Coins, Scores
from benchmarks.broken_mechanisms import no_noise
from obscura.wire.budgets import Unit
from privacy.accounting.events import GaussianEvent, PoissonGaussianEvent
from privacy.accounting.filter import NANO, open_filter
from privacy.mechanisms import partition, topagg
from privacy.mechanisms.noise import SecureNoise, derive_key
from privacy.plans.datalens import TopAggConfig
from privacy.plans.dp_diffusion import DpDiffusionConfig
from privacy.plans.plan import PlanBudget, PublicFacts
from privacy.plans.registry import build_plan
from privacy.plans.warm_start import BY_CLASS, COUNT_WEIGHT, MEANS, POOLED, QUANTISATION, warm_start_event
from workers.recipes import class_histogram, released_sums, select_public
from workers.recipes.dp_diffusion import CentralConfig, noisy_central_images
from workers.recipes.interface import Run, TrainingData
from workers.recipes.records import Units
from workers.recipes.select_public import Space

_CLIP = 1.0
_BASE = 40  # records of each class beside the canary: counts stay away from their lower bound


def vote_config(k: int, canaries: int, stddev: float, teachers: int, width: int = 4) -> TopAggConfig:
    """Return parameters under which every canary has `width` k coordinates to itself."""
    return TopAggConfig(
        k=k, c=1e-5, stddev=stddev, beta=0.5, teachers=teachers, dimension=canaries * width * k, threshold=False
    )


def vote_scores(included: Coins, cfg: TopAggConfig, images: int, secret: bytes) -> Scores:
    """Play TopAgg's worst case: a canary turns the vote of its teacher from all down to all up.

    Canary i is a record that pulls up a block of 4 k coordinates which are its own; a public record in the same shard
    pulls the same block down, half as strongly. Shards come from the production partition.

    Returns:
        (m, images).
    """
    m, d = len(included), cfg.dimension
    assigned = partition.shard_of(partition.subject_units(np.arange(m)), derive_key(secret, "shards"), cfg.teachers)
    members = partition.shard_members(assigned, cfg.teachers)

    def votes(present: Coins, images: int) -> torch.Tensor:
        gradients = torch.zeros(cfg.teachers, images, m, d // m)
        for teacher, records in enumerate(members):
            pull = torch.from_numpy(np.where(present[records], 1.0, -1.0)).float()  # 2 - 1, or -1 alone
            gradients[teacher, :, torch.from_numpy(records)] = pull[None, :, None]
        return topagg.count_votes(gradients.view(cfg.teachers, images, d), cfg, torch.Generator().manual_seed(0))

    released = topagg.noisy_sum(votes(included, images), cfg, SecureNoise.derive(secret, "votes"))  # (images, d)
    adds = votes(np.ones(m, dtype=bool), 1) - votes(np.zeros(m, dtype=bool), 1)  # (1, d)
    return (released * adds).view(images, m, -1).sum(2).double().numpy().T  # (m, images)


def audited_votes(k: int, stddev: float, teachers: int = 8) -> Audited:
    """TopAgg's vote sum on one image."""
    cfg = vote_config(k, 1, stddev, teachers)

    def draw(present: bool, draws: int, secret: bytes) -> Scores:
        parts = [
            vote_scores(np.array([present]), cfg, min(500, draws - at), derive_key(secret, at))[0]
            for at in range(0, draws, 500)
        ]
        return np.concatenate(parts)

    return Audited(f"votes on an image (k={k})", cfg.event(1), draw)


def audited_means(stddev: float) -> Audited:
    """Counts and means: the canary is a record at the clip; each class is an independent draw."""
    direction = np.full((1, 4), 10 * _CLIP)  # ten times beyond: the clip decides its length
    other = np.tile([[0.3, -0.2, 0.1, 0.0]], (_BASE, 1))

    def sums(present: bool, draws: int, secret: bytes, stddev: float) -> Scores:
        rows = np.concatenate([np.tile(other, (draws, 1)), np.tile(direction, (draws if present else 0, 1))])
        labels = np.concatenate([np.repeat(np.arange(draws), _BASE), np.arange(draws if present else 0)])
        noise = SecureNoise.derive(secret, "warm start")
        table = released_sums.noisy_means(rows, labels, draws, _CLIP, stddev, noise)
        weighted = [table[:, 1:] * table[:, :1] * (QUANTISATION / _CLIP), table[:, 0] * COUNT_WEIGHT]
        integers: Scores = np.column_stack(weighted)  # (draws, 5)
        return integers

    def draw(present: bool, draws: int, secret: bytes) -> Scores:
        with no_noise():
            adds = sums(True, 1, secret, stddev) - sums(False, 1, secret, stddev)
        scores: Scores = sums(present, draws, secret, stddev) @ adds[0]
        return scores

    return Audited("warm start: counts and means", warm_start_event(MEANS, stddev), draw)


def audited_scatter(stage: str, stddev: float, mirrored: bool = False) -> Audited:
    """A covariance: the canary is a row at the clip, spread over four coordinates.

    Two of them change their sign in the mirror, where that is declared, and products with the others are not released.
    """
    parts = [np.arange(2), np.arange(2, 4)] if mirrored else [np.arange(4)]
    direction = np.full((1, 4), 10 * _CLIP)
    other = np.tile([[0.3, -0.2, 0.1, 0.0]], (_BASE, 1))
    noise_stddev = np.full((4, 4), released_sums.off_diagonal_stddev(stddev))
    np.fill_diagonal(noise_stddev, stddev)
    noise_stddev *= (_CLIP / QUANTISATION) ** 2  # in the unit of what is released
    weight = np.triu(np.ones((4, 4))) / noise_stddev**2  # each number of the symmetric matrix once

    def draw(present: bool, draws: int, secret: bytes) -> Scores:
        rows = np.concatenate([other, direction]) if present else other
        noise = SecureNoise.derive(secret, "warm start")
        with no_noise():
            adds = released_sums.noisy_scatter(direction, _CLIP, stddev, noise, parts)
        released = [released_sums.noisy_scatter(rows, _CLIP, stddev, noise, parts) for _ in range(draws)]
        return np.array([float((one * adds * weight).sum()) for one in released])

    names = {POOLED: "warm start: pooled covariance", BY_CLASS: "warm start: covariance of a class"}
    name = "warm start: covariance, mirror declared" if mirrored else names[stage]
    return Audited(name, warm_start_event(stage, stddev), draw)


def audited_histogram(unit: Unit, mu: float) -> Audited:
    """The class histogram, by its whole recipe; each class is an independent draw.

    A count changes by one only, so mu must be small or the price of discreteness hides everything else. A subject has
    three records, one of which is counted.
    """
    account = open_filter(100.0, 1e-5)

    def facts(classes: int) -> PublicFacts:
        names = tuple(map(str, range(classes)))
        return PublicFacts(names, 1, 1, 1, 3 * classes, unit, classes if unit == "subject" else None)

    plan = build_plan("class_histogram", {}, account, int(mu**2 * NANO), facts(1))

    def draw(present: bool, draws: int, secret: bytes) -> Scores:
        units = np.arange(draws if present else 0)
        labels = units.repeat(3 if unit == "subject" else 1)
        images = np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1)
        data = TrainingData(images, labels, facts(draws).classes, labels if unit == "subject" else None)
        budget = PlanBudget(plan.stages)
        histogram = class_histogram.train(Run(plan=plan, facts=facts(draws), data=data, budget=budget, secret=secret))
        return np.array(histogram.noisy_counts, dtype=np.float64)

    claim = plan.stages[0].event
    assert isinstance(claim, GaussianEvent)
    return Audited(f"class histogram ({unit}s)", claim, draw, draws=20_000)


def audited_public_votes(mu: float, *, both: bool = False) -> Audited:
    """The votes for public images, by the recipe's own counting and privatising; each class is an independent draw.

    There are two public images, a light one and a dark one. As for the histogram, mu must be small.
    """
    account = open_filter(100.0, 1e-5)
    options = {"public_dataset_id": "public", "choices": 2, "iterations": 1 + both}

    def facts(classes: int) -> PublicFacts:
        return PublicFacts(tuple(map(str, range(classes))), 8, 8, 1, classes, "record")

    plan = build_plan("select_public", options, account, int(mu**2 * NANO), facts(1))
    public = torch.stack([torch.full((1, 8, 8), level) for level in (1.0, 0.0)])

    def pixels(pictures: torch.Tensor) -> list[torch.Tensor]:
        return [pictures.flatten(1)]

    space = Space(pixels(public), pixels)

    def draw(present: bool, draws: int, secret: bytes) -> Scores:
        labels = np.arange(draws if present else 0)
        data = TrainingData(np.full((len(labels), 8, 8), 255, dtype=np.uint8), labels, facts(draws).classes)
        run = Run(plan=plan, facts=facts(draws), data=data, budget=PlanBudget(plan.stages), secret=secret)
        released = []
        for iteration in range(1 + both):
            centres = (space.public.flip(0) if iteration else space.public).expand(draws, -1, -1)
            votes = select_public.count_votes(run, space, centres)  # (draws, 2)
            released.append(select_public.privatise_votes(run, votes, iteration).double().numpy())
        scores: Scores = released[0][:, 0]
        if both:
            scores = (released[0] - released[1]) @ np.array([0.5, -0.5])
        return scores

    claim = plan.stages[0].event
    assert isinstance(claim, GaussianEvent)
    name = "two iterations of votes for public pictures" if both else "votes for public pictures"
    return Audited(name, claim, draw, draws=2000 if both else 20_000)


def audited_central_images(mu: float, probability: float = 0.5) -> Audited:
    """A diffusion model's central images, of one pixel: the canary is a white image; each class is a draw.

    The release is cut at black, below the auditor's threshold.
    """
    event = PoissonGaussianEvent(probability, 1 / mu)
    bound, divisor = _CLIP / 4, 20.0  # a quarter of a white pixel: the clip decides what the canary adds

    def draw(present: bool, draws: int, secret: bytes) -> Scores:
        labels = np.arange(draws if present else 0)
        facts = PublicFacts(tuple(map(str, range(draws))), 2, 2, 1, draws, "record")
        data = TrainingData(np.full((len(labels), 2, 2), 255, dtype=np.uint8), labels, facts.classes)
        config = CentralConfig(draws, 1, (1, 1), bound, event, divisor)
        coins, noise = SecureNoise.derive(secret, "coins"), SecureNoise.derive(secret, "central images")
        units = Units(facts, DpDiffusionConfig(), data)
        released = noisy_central_images(config, data, units, coins, noise)  # (draws, 1, 1, 1)
        return released.flatten().double().numpy() * divisor / bound

    return Audited("central images", event, draw, draws=2000, cut=0.9)


def audited_mechanisms(mu: float) -> tuple[Audited, ...]:
    """Return one of every kind, with noise at which one release is mu-GDP (up to what discreteness costs)."""
    q = float(QUANTISATION)
    return (
        audited_votes(64, 16.0 / mu),
        audited_means(warm_start_event(MEANS, 9.0).sensitivity / mu),
        audited_scatter(POOLED, q * q / mu),
        audited_scatter(BY_CLASS, q * q / mu),
        audited_scatter(POOLED, q * q / mu, mirrored=True),
        audited_histogram("record", 0.25),
        audited_histogram("subject", 0.25),
        audited_public_votes(0.25),
        audited_public_votes(0.35, both=True),
    )
