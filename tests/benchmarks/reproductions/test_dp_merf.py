"""DP-MERF's release: one record adds a vector of norm Q to one row, it is paid for first, and audits see its faults."""

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from benchmarks import broken_mechanisms as broken
from benchmarks.audited import Audited
from benchmarks.reproductions import dp_merf
from benchmarks.reproductions.dp_merf import UNIT, embedded_sums, fit_generator, frequencies, privatise_embedding
from benchmarks.runs import NoLedger
from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import NANO, stddev_for
from privacy.auditing.distinguishing import mu_lower_bound
from privacy.errors import BudgetExceeded
from privacy.mechanisms.noise import SecureNoise

FEATURES, BUDGET_NANO = 16, int(2.25 * NANO)  # mu = 1.5
WAVES = frequencies(4, FEATURES, seed=0)


def pictures(n: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 2, 2)).astype(np.uint8), rng.integers(0, 3, n)


def test_a_record_adds_a_vector_of_norm_q_to_its_class_alone():
    images, labels = pictures(30)
    for record in range(30):
        others = np.arange(30) != record
        added = embedded_sums(images, labels, WAVES, 3) - embedded_sums(images[others], labels[others], WAVES, 3)
        norms = np.linalg.norm(added, axis=1)
        assert 0.9999 * UNIT < norms[labels[record]] <= UNIT
        assert norms.sum() == norms[labels[record]]


def test_what_a_record_adds_depends_on_no_other():
    images, labels = pictures(50)
    alone = [embedded_sums(images[i : i + 1], labels[i : i + 1], WAVES, 3) for i in range(50)]
    assert np.array_equal(embedded_sums(images, labels, WAVES, 3), np.sum(alone, axis=0))


def test_nothing_is_drawn_before_it_is_paid_for():
    nobody, empty = Mock(), Mock()
    empty.charge.side_effect = BudgetExceeded(1, 0)
    with pytest.raises(BudgetExceeded):
        privatise_embedding(np.zeros((1, 4)), BUDGET_NANO, empty, nobody)
    assert nobody.mock_calls == []


def audited() -> Audited:
    """A class for each draw, with one record in it, and the canary where it is present."""
    record, canary = np.zeros((1, 2, 2), np.uint8), np.full((1, 2, 2), 255, np.uint8)

    def draw(present: bool, draws: int, secret: bytes) -> Any:
        images = np.concatenate([np.repeat(record, draws, 0), np.repeat(canary, draws if present else 0, 0)])
        labels = np.concatenate([np.arange(draws), np.arange(draws if present else 0)])
        sums = embedded_sums(images, labels, WAVES, draws)
        released = privatise_embedding(sums, BUDGET_NANO, NoLedger(), SecureNoise.derive(secret, "sums"))
        return released @ embedded_sums(canary, np.zeros(1, np.int64), WAVES, 1)[0]

    return Audited("mean embedding", GaussianEvent.of_discrete_noise(UNIT, stddev_for(UNIT, BUDGET_NANO)), draw)


def test_an_audit_bears_the_claim_out_and_flags_what_breaks_it(monkeypatch):
    game = audited()
    assert game.mu == pytest.approx(1.5, rel=1e-3)

    def least_mu(confidence: float) -> float:
        return mu_lower_bound(game.test(), confidence)

    assert least_mu(1 - 1e-7) <= game.mu
    assert least_mu(0.95) > 0.5 * game.mu  # or the canary is not the worst case
    with broken.half_the_noise():
        assert least_mu(1 - 1e-7) > game.mu
    monkeypatch.setattr(dp_merf, "clip_integer_rows", lambda rows, _bound: 2 * rows)
    assert least_mu(1 - 1e-7) > game.mu


def test_the_generator_learns_what_the_sums_say():
    """Two classes of one picture each: what is drawn is nearer to its own than to the other's."""
    images = np.stack([np.full((4, 4), 230), np.full((4, 4), 20)]).astype(np.uint8)
    images[:, :2] = images[::-1, :2].copy()  # dark above bright, and bright above dark
    labels = np.repeat([0, 1], 100)
    waves = frequencies(16, 200, seed=0)
    released = embedded_sums(images[labels], labels, waves, 2) / UNIT
    generator = fit_generator(released, 200, waves, steps=40, seed=0)
    drawn = generator.sample(torch.tensor([0] * 50 + [1] * 50), torch.Generator().manual_seed(0)).numpy()
    own = images.reshape(2, -1) / 255.0
    for label in (0, 1):
        far = np.abs(drawn[50 * label : 50 * label + 50, None] - own).mean(axis=(0, 2))
        assert far[label] < 0.5 * far[1 - label]
