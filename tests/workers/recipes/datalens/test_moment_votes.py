"""Linear teachers on public features: isolation, payment before noise, and moments that the votes recover."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pytest
import torch

from privacy.accounting.filter import open_filter
from privacy.errors import BudgetExceeded
from privacy.plans.datalens.moment_votes import MomentRound, MomentVotesConfig, moment_rounds
from privacy.plans.plan import PublicFacts
from tests.workers.small_trainings import Purse
from workers.recipes.datalens import moment_votes
from workers.recipes.datalens.moment_votes import Moments, cosine_features, fit_gaussians, run_moment_votes
from workers.recipes.interface import Run, TrainingData

FACTS = PublicFacts(("a", "b"), 8, 8, 1, 6000, "record")
CONFIG = MomentVotesConfig(
    teachers=600,
    coefficients=10,
    class_coefficients=4,
    means_share=0.3,
    class_scales_share=0.17,
    products_share=0.25,
    class_products_share=0.25,
)


def quiet(*, stage: str, step: int, steps: int) -> None:
    """Report to nobody."""


@pytest.fixture(scope="module")
def records() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two classes of correlated pictures with different means and spreads."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 6000)
    rows = np.linspace(-1, 1, 8)
    tilt = rng.normal(size=(6000, 1, 1)) * np.where(labels == 0, 0.15, 0.05)[:, None, None]
    picture = (
        0.35 + 0.15 * labels[:, None, None] * rows[None, :, None] + tilt * (rows[None, :, None] + rows[None, None])
    )
    picture = picture + rng.normal(scale=0.03, size=(6000, 8, 8))
    return (picture.clip(0, 1) * 255).round().astype(np.uint8), labels, rng.integers(0, 600, 6000)


def rounds_at(epsilon: float, config: MomentVotesConfig = CONFIG) -> tuple[MomentRound, ...]:
    account = open_filter(epsilon, 1e-5)
    return moment_rounds(config, account.capacity_nano, 2)


def run(records, purse: Purse, epsilon: float = 500.0, secret: bytes = b"s" * 32):  # type: ignore[no-untyped-def]
    images, labels, shard = records
    features = cosine_features(FACTS, CONFIG.coefficients)
    data = TrainingData(images, labels, FACTS.classes)
    training = Run(plan=cast("Any", None), facts=FACTS, data=data, budget=purse, secret=secret)
    return run_moment_votes(training, rounds_at(epsilon), features, shard)


def test_votes_recover_class_means_and_spreads(records) -> None:  # type: ignore[no-untyped-def]
    images, labels, _ = records
    fitted = run(records, Purse())
    flat = images.reshape(len(images), -1) / 255
    features = cosine_features(FACTS, CONFIG.coefficients)
    low = features.basis.double().numpy()
    for label in range(2):
        own = flat[labels == label]
        error = low @ (fitted.mean[label] - own.mean(0))
        assert np.abs(error).max() < 0.08
        spread = np.sqrt(np.trace(low @ fitted.factor[label] @ fitted.factor[label].T @ low.T))
        assert spread == pytest.approx(np.sqrt(np.trace(np.cov((own @ low.T).T))), rel=0.2)
    assert np.linalg.norm(fitted.factor[0]) > 1.5 * np.linalg.norm(fitted.factor[1])


def test_every_round_is_paid_before_its_noise_and_the_plan_knows_the_price(records) -> None:  # type: ignore[no-untyped-def]
    purse = Purse()
    run(records, purse)
    planned = rounds_at(500.0)
    assert [(r.name, r.event) for r in planned] == purse.paid
    account = open_filter(500.0, 1e-5)
    price = sum(account.price_nano(event) for event in purse.events)
    assert 0.999 * account.capacity_nano < price <= account.capacity_nano


def test_nothing_is_released_that_was_not_paid(records, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    purse = Purse(charges=0)

    def forbidden(*_: object) -> None:
        raise AssertionError("noise was drawn for a release that was not paid")

    monkeypatch.setattr(moment_votes.topagg, "noisy_sum", forbidden)
    with pytest.raises(BudgetExceeded):
        run(records, purse)


def test_rounds_after_the_means_are_left_out_when_they_cannot_be_paid(records) -> None:  # type: ignore[no-untyped-def]
    for limit in (1, 2):
        with pytest.raises(BudgetExceeded):
            run(records, Purse(charges=limit))
    coarse, fine = run(records, Purse(charges=3)), run(records, Purse())
    np.testing.assert_array_equal(coarse.mean, fine.mean)
    assert np.isfinite(coarse.factor).all()
    assert not np.allclose(coarse.factor, fine.factor)


def test_a_removed_record_changes_one_teachers_direction_bit_for_bit(records) -> None:  # type: ignore[no-untyped-def]
    images, labels, shard = (a[:2000] for a in records)
    features = cosine_features(FACTS, CONFIG.coefficients)
    moments = Moments(torch.randn(2, 10), torch.rand(2, 10) + 0.5, torch.eye(10))
    keep = np.arange(2000) != 137
    for current in rounds_at(1.0):
        found = []
        for rows in (np.ones(2000, dtype=bool), keep):
            private = moment_votes._by_teacher(features(images[rows]), labels[rows], shard[rows])
            found.append(torch.cat(list(moment_votes._directions(current, moments, private))))
        assert found[0].shape == (600, current.images, current.aggregation.dimension)
        changed = (found[0] != found[1]).flatten(1).any(1).nonzero().flatten().tolist()
        assert set(changed) <= {int(shard[137])}


def test_teachers_without_the_class_abstain(records) -> None:  # type: ignore[no-untyped-def]
    images, labels, _ = (a[:4] for a in records)
    labels = np.zeros(4, dtype=np.int64)
    features = cosine_features(FACTS, 10)
    private = moment_votes._by_teacher(features(images), labels, np.array([3, 3, 5, 5]))
    moments = Moments(torch.zeros(2, 10), torch.ones(2, 10), torch.eye(10))
    direction = torch.cat(list(moment_votes._directions(rounds_at(1.0)[0], moments, private)))
    assert direction.abs().sum(2).nonzero().tolist() == [[3, 0], [5, 0]]


def test_noise_alone_leaves_a_valid_gaussian() -> None:
    features = cosine_features(FACTS, 10)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(10, 10, generator=generator).triu(1)
    moments = Moments(torch.zeros(2, 10), torch.ones(2, 10), torch.eye(10) + noise + noise.T, noise=1.0)
    moments.class_correlation, moments.class_noise = moments.correlation[:4, :4].repeat(2, 1, 1), 1.0
    fitted = fit_gaussians(moments, features)
    assert np.isfinite(fitted.factor).all()
    low = features.basis.double().numpy() / features.scale.double().numpy()[:, None]
    np.testing.assert_allclose(np.diag(low @ fitted.factor[0] @ fitted.factor[0].T @ low.T), 1.0, atol=0.3)


def test_colour_and_odd_sizes_have_features() -> None:
    facts = dataclasses.replace(FACTS, height=6, width=5, channels=3)
    features = cosine_features(facts, 20)
    gram = features.basis @ features.basis.T
    torch.testing.assert_close(gram, torch.eye(20), atol=1e-5, rtol=0)
    images = np.random.default_rng(0).integers(0, 256, (3, 6, 5, 3)).astype(np.uint8)
    assert features(images).shape == (3, 20)
    assert features(images[:0]).shape == (0, 20)
