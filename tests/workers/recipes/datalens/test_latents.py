"""What a record is to its teacher: a latent of its own, which moves votes by at most the sensitivity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.portable.generator import Generator
from privacy.accounting.events import GaussianEvent
from privacy.aggregation import topagg
from privacy.plans.datalens.plan import VOTES
from tests.workers.recipes.datalens.trainings import FACTS, plan, start_alone, work_in
from workers.recipes.datalens import loop as datalens
from workers.recipes.interface import TrainingData, load_checkpoint
from workers.recipes.moments.coefficients import texture_coefficients
from workers.recipes.moments.warm_start import ClassGaussians

MIXED = {"clusters": 2, "mean_share": 0.2, "pooled_share": 0.3, "class_share": 0.3, "cluster_share": 0.2}


@pytest.mark.parametrize("options", [{}, {"texture": True, **MIXED}], ids=["pixels", "texture and clusters"])
def test_a_records_latent_ignores_the_other_records_to_the_last_bit(
    options: dict[str, Any], train: Callable[..., Generator], data: TrainingData
) -> None:
    generator = train(start_alone(**options))
    labels = torch.from_numpy(data.private_labels)
    whole = datalens.encode(generator, data.private_images, labels)
    assert whole.abs().max() <= 4.0 + (float(generator.centres.abs().max()) if options else 0.0)
    keep = np.arange(len(labels)) != 137
    assert torch.equal(datalens.encode(generator, data.private_images[keep], labels[keep]), whole[keep])
    for index in (0, 777):
        alone = datalens.encode(generator, data.private_images[index : index + 1], labels[index : index + 1])
        assert torch.equal(alone[0], whole[index])


def test_encoding_undoes_drawing(train: Callable[..., Generator]) -> None:
    generator = train(start_alone())
    generator.mean.fill_(0.5)
    generator.factor.mul_(0.05)  # far from the brightness limits
    labels = torch.arange(40) % 10
    z = torch.randn(40, 10, generator=torch.Generator().manual_seed(0)).clamp(-3, 3)
    pixels = (generator.decode(z, labels) * 255).round().to(torch.uint8)[:, 0].numpy()
    found = datalens.encode(generator, pixels, labels)
    strong = torch.linalg.vector_norm(generator.factor, dim=1)[labels] > 0.02  # (40, 10): not lost in 1/255
    assert strong.any()
    assert (found - z)[strong].abs().mean() < 0.1


def test_a_latent_of_texture_holds_what_pixels_alone_do_not(train: Callable[..., Generator]) -> None:
    """Two latents that draw the same pixels and different texture are told apart by their images."""
    generator = train(start_alone(texture=True))
    generator.factor.zero_()
    generator.factor[:, 64:, 0] = 1.0  # the first number of a latent is texture alone
    noise = np.random.default_rng(0).integers(0, 256, (8, 8)).astype(np.uint8)
    images, labels = np.stack([np.full((8, 8), 128, np.uint8), noise]), torch.zeros(2, dtype=torch.int64)
    flat, rough = datalens.encode(generator, images, labels)[:, 0]
    assert rough > flat + 0.1


@pytest.mark.parametrize("options", [{"warm_start": False}, {"texture": True}], ids=["prior", "texture"])
def test_one_records_presence_changes_votes_by_at_most_the_sensitivity(
    options: dict[str, Any],
    train: Callable[..., Generator],
    data: TrainingData,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """From one start, in one round, without noise: a record moves the votes of one teacher of a hundred."""
    monkeypatch.setattr(topagg, "noisy_sum", lambda votes, *_: votes.to(torch.int64))
    made, sums = plan(rounds=1, **options), []
    if "texture" in options:
        begun = train(start_alone(texture=True))
        start = ClassGaussians(begun.mean.double().numpy(), begun.factor.double().numpy())
        monkeypatch.setattr(datalens, "noisy_gaussians", lambda *_: start)
    for without in (-1, 55):
        keep = np.arange(1797) != without
        subset = TrainingData(data.private_images[keep], data.private_labels[keep], FACTS.classes)
        train(made, data=subset, checkpoints=work_in(tmp_path / str(without)))
        reached = load_checkpoint(work_in(tmp_path / str(without)))
        assert reached is not None
        sums.append(torch.cat([release["released_sums"] for release in reached.state["votes"]["stage"]["releases"]]))
    change = (sums[0] - sums[1]).norm(dim=1)  # (60,)
    votes = made.stage(VOTES)
    assert votes is not None
    assert isinstance(votes.event, GaussianEvent)
    assert 0 < change.max() <= votes.event.sensitivity


def test_a_neighbour_attains_the_sensitivity_with_texture(
    train: Callable[..., Generator], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A record beside another turns each vote of its teacher: on texture alone, on pixels alone, and on both together.

    One is dark and flat, and near the student's latents; the other is bright and rough, and far from them.
    """
    monkeypatch.setattr(topagg, "noisy_sum", lambda votes, *_: votes.to(torch.int64))
    made = plan(rounds=1, texture=True, components=3, top_k=3, teachers=1)
    rough = np.where(np.indices((8, 8)).sum(axis=0) % 2, 255, 160).astype(np.uint8)
    images, labels = np.stack([np.full((8, 8), 100, np.uint8), rough]), np.zeros(2, np.int64)
    seen = np.concatenate([images.reshape(2, 64) / 255, texture_coefficients(images, np.eye(64))], axis=1)
    between = seen[1] - seen[0]
    factor = np.zeros((128, 3))
    for number, parts in enumerate(([slice(96, 128)], [slice(32)], [slice(32, 64), slice(64, 96)])):
        for part in parts:
            factor[part, number] = between[part] / 5
        assert np.linalg.norm(factor[:, number]) > 0.01
    start = ClassGaussians(np.tile(seen[0] + between / 5, (10, 1)), np.tile(factor, (10, 1, 1)))  # at -1 and at 4
    monkeypatch.setattr(datalens, "noisy_gaussians", lambda *_: start)
    sums = []
    for own in ([0, 1], [0]):
        data = TrainingData(images[own], labels[own], FACTS.classes)
        train(made, data=data, checkpoints=work_in(tmp_path / str(len(own))))
        reached = load_checkpoint(work_in(tmp_path / str(len(own))))
        assert reached is not None
        sums.append(torch.cat([release["released_sums"] for release in reached.state["votes"]["stage"]["releases"]]))
    change, votes = (sums[0] - sums[1]).norm(dim=1), made.stage(VOTES)
    assert votes is not None
    assert isinstance(votes.event, GaussianEvent)
    assert float(change.max()) == pytest.approx(votes.event.sensitivity) == 2 * 3**0.5
