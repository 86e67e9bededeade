"""The student finds a field in noisy votes, finds nothing in noise alone, and goes on from a checkpoint."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from models.portable.generator import Generator, GeneratorConfig
from privacy.aggregation import topagg
from privacy.aggregation.topagg_config import TopAggConfig
from workers.recipes.datalens.student import LatentStudent, fit_field, vote_stddev
from workers.recipes.datalens.teacher_stage import Release

CLASSES, D, H = 3, 6, 8
CONFIG = GeneratorConfig(classes=CLASSES, channels=1, height=4, width=4, components=D, features=H)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def questions(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features of random latents, and labels: (rows, B) and (rows,)."""
    labels = torch.arange(rows) % CLASSES
    return Generator(CONFIG).psi(torch.randn(rows, D, generator=stream(seed))), labels


def answers(basis: Tensor, labels: Tensor, field: Tensor, noise: float, seed: int) -> Tensor:
    """Votes (rows, D) along a planted field (classes, D, B)."""
    votes = torch.einsum("rb,rdb->rd", basis, field[labels])
    return votes + noise * torch.randn(votes.shape, generator=stream(1000 + seed))


@pytest.mark.parametrize("seed", range(10))
def test_votes_of_pure_noise_bend_next_to_nothing(seed: int) -> None:
    """The evidence may see a trace of a field in noise; it averages it down to a small part of one vote's noise."""
    basis, labels = questions(90, seed)
    silence = torch.zeros(CLASSES, D, 1 + D + H)
    votes = answers(basis, labels, silence, 0.1, seed)
    found = answers(basis, labels, fit_field(basis, labels, votes, CLASSES, 0.1), 0.0, 0)
    assert found.square().mean().sqrt() < 0.015
    assert not fit_field(basis, labels, votes, CLASSES, 0.2).any()  # less than the known noise: exactly nothing
    assert not fit_field(basis, labels, torch.zeros_like(votes), CLASSES, 0.1).any()


@pytest.mark.parametrize("own", [False, True], ids=["shared", "by class"])
@pytest.mark.parametrize("varying", [False, True], ids=["constant", "linear"])
def test_a_planted_field_is_found(own: bool, varying: bool) -> None:
    planted = torch.zeros(CLASSES, D, 1 + D + H)
    columns = slice(1, 1 + D) if varying else slice(0, 1)
    width = D if varying else 1
    values = torch.randn(CLASSES if own else 1, D, width, generator=stream(5)) * 0.1 / math.sqrt(width)
    planted[:, :, columns] = values
    basis, labels = questions(300, 1)
    found = fit_field(basis, labels, answers(basis, labels, planted, 0.1, 2), CLASSES, 0.1)
    fresh, fresh_labels = questions(500, 7)
    truth = answers(fresh, fresh_labels, planted, 0.0, 0)
    error = answers(fresh, fresh_labels, found, 0.0, 0) - truth
    assert error.square().mean() < 0.15 * truth.square().mean()
    if not own and not varying:
        torch.testing.assert_close(found[0], found[2], atol=0.02, rtol=0)


def test_more_noise_trusts_votes_less() -> None:
    planted = torch.zeros(CLASSES, D, 1 + D + H)
    planted[:, :, 0] = 0.2
    basis, labels = questions(90, 1)
    votes = answers(basis, labels, planted, 0.05, 1)
    lengths = [fit_field(basis, labels, votes, CLASSES, noise).norm() for noise in (0.05, 0.5, 5.0)]
    assert lengths[0] > lengths[1] > lengths[2] == 0


@pytest.mark.parametrize("rows", [1, 2])
def test_a_single_vote_is_enough_to_ask(rows: int) -> None:
    basis, labels = questions(rows, 0)
    assert torch.isfinite(fit_field(basis, labels, torch.full((rows, D), 0.9), CLASSES, 0.1)).all()


def test_the_noise_of_votes_counts_undecided_teachers() -> None:
    """Coins of teachers without an opinion add k/d each per coordinate: measured on gradients that say nothing."""
    cfg = TopAggConfig(k=5, c=1.0, stddev=30.0, beta=0.5, teachers=2000, dimension=20, threshold=False)
    gradients = torch.randn(cfg.teachers, 200, 20, generator=stream()) * 1e-6
    votes = topagg.count_votes(gradients, cfg, stream(1)).double()
    votes += torch.from_numpy(np.random.default_rng(0).normal(0, cfg.stddev, votes.shape))
    expected = vote_stddev(cfg)
    assert expected == pytest.approx(math.sqrt(900 + 500))
    assert float(votes.std()) == pytest.approx(expected, rel=0.05)


def student(generator: Generator, *, round_iterations: int = 2, thresholded: bool = False) -> LatentStudent:
    return LatentStudent(
        generator,
        latents=stream(3),
        teachers=100,
        noise_stddev=10.0,
        step=0.5,
        round_iterations=round_iterations,
        thresholded=thresholded,
    )


def vote_towards(x: Tensor, labels: Tensor, seed: int) -> Release:
    """What teachers release who all want the first coordinate up."""
    sums = torch.randn(x.shape, generator=stream(seed)) * 10
    sums[:, 0] += 60
    return Release(x, labels, sums, (sums > 50).float() - (sums < -50).float(), x)


def teach(pupil: LatentStudent, releases: list[Release], iterations: int) -> list[Release]:
    for _ in range(iterations):
        labels = torch.arange(12) % CLASSES
        releases.append(vote_towards(pupil.propose(labels), labels, len(releases)))
        pupil.learn(releases)
    return releases


@pytest.mark.parametrize("thresholded", [False, True])
def test_a_round_bends_the_generator_along_the_votes(thresholded: bool) -> None:
    generator = Generator(CONFIG)
    pupil = student(generator, thresholded=thresholded)
    releases = teach(pupil, [], 1)
    assert not generator.bend.any()  # a round has two iterations
    teach(pupil, releases, 1)
    z = torch.randn(200, D, generator=stream(9))
    labels = torch.arange(200) % CLASSES
    moved = (generator.latent(z, labels) - z).mean(dim=0)
    assert moved[0] > 0.2  # half a step of 0.6, shrunk by what noise may explain
    assert moved[1:].abs().max() < 0.1
    bent = generator.bend.clone()
    teach(pupil, releases, 2)
    assert (generator.bend[:, 0, 0] > bent[:, 0, 0]).all()


def test_a_round_that_was_cut_short_is_learnt_at_the_end() -> None:
    generator = Generator(CONFIG)
    pupil = student(generator, round_iterations=5)
    releases = teach(pupil, [], 3)
    assert not generator.bend.any()
    pupil.finish(releases)
    assert (generator.bend[:, 0, 0] > 0).all()
    bent = generator.bend.clone()
    pupil.finish(releases)  # nothing is learnt twice
    assert torch.equal(generator.bend, bent)


def test_proposals_are_the_generators_bent_latents() -> None:
    generator, labels = Generator(CONFIG), torch.tensor([0, 2, 1])
    generator.bend.normal_(generator=stream(1))
    proposed = student(generator).propose(labels)
    assert torch.equal(proposed, generator.latent(torch.randn(3, D, generator=stream(3)), labels))


def test_a_restored_student_goes_on_identically() -> None:
    """Interrupted in the middle of a round, with votes that were not learnt yet."""
    pupil, restored = student(Generator(CONFIG)), student(Generator(CONFIG))
    first = teach(pupil, [], 3)
    saved, releases = pupil.state(), list(first)
    teach(pupil, first, 5)  # the one that was not interrupted
    restored.restore(saved)
    teach(restored, releases, 5)
    assert torch.equal(restored.generator.bend, pupil.generator.bend)
    assert all(torch.equal(a.released_inputs, b.released_inputs) for a, b in zip(first, releases, strict=True))
    assert not torch.equal(saved["bend"], pupil.generator.bend)  # the saved state was a copy
