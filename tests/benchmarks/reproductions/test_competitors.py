"""DataLens' competitors: what one record can change in a release, who attains it, that all is paid for, and audits.

Confidence and chances are those of `test_aggregators`; a broken mechanism has at least 1.4 times the claimed mu of 1.5.
"""

from __future__ import annotations

import math
import secrets
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.audited import Audited
from benchmarks.broken_mechanisms import half_the_noise
from benchmarks.reproductions.competitors import audited as games
from benchmarks.reproductions.competitors import broken, dp_gan
from benchmarks.reproductions.competitors.dc_gan import DcGan, train_dc_gan
from benchmarks.reproductions.competitors.dp_gan import DpGan, plan_dp_gan, train_dp_gan
from benchmarks.reproductions.competitors.g_pate import GPate, HistogramVotes, train_g_pate
from benchmarks.reproductions.competitors.gs_wgan import GsWgan, train_gs_wgan
from benchmarks.reproductions.competitors.pate_gan import PateGan, privatise_votes, train_pate_gan, votes_for_real
from benchmarks.reproductions.competitors.players import members_of
from benchmarks.small_data import facts_of
from models.discriminator import Discriminator
from models.portable.dcgan import DcganGenerator
from models.teacher_ensemble import TeacherConfig, TeacherEnsemble
from privacy.accounting.filter import open_filter
from privacy.auditing.distinguishing import mu_lower_bound
from privacy.errors import BudgetExceeded
from tests.benchmarks.reproductions.test_orders import pictures
from workers.recipes.interface import NothingUseful, TrustedCurator

SURE, MU = 1 - 1e-7, 1.5
SIZES: dict[str, Any] = {"features": 4, "latent": 4}
ANY = st.floats(width=32, allow_nan=True, allow_infinity=True)
GRADIENTS = arrays(np.float32, (2, 64), elements=ANY) | arrays(np.float32, (2, 64), elements=st.floats(-2, 2, width=32))


class Account:
    """Counts what is charged, and lets pass only what fits."""

    def __init__(self, epsilon: float = 10.0) -> None:
        self.capacity = open_filter(epsilon, 1e-5).capacity_nano
        self.spent, self.events = 0.0, 0

    def charge(self, event: Any, _stage: str) -> None:
        self.events += event.count
        self.spent += event.count * float(event.mu_squared_exact) * 1e9
        if self.spent > self.capacity:
            raise BudgetExceeded(int(self.spent), self.capacity)


def trained(method: str, account: Any, secret: bytes = bytes(32)) -> DcganGenerator:
    folder, means = pictures(True), TrustedCurator(budget=account, secret=secret)
    capacity = open_filter(10.0, 1e-5).capacity_nano
    if method == "pate_gan":
        config = PateGan(teachers=6, iterations=3, batch=4, student_steps=2, hidden=3, **SIZES)
        return train_pate_gan(folder, config, capacity, means, 0)
    if method == "g_pate":
        return train_g_pate(folder, GPate(teachers=6, iterations=3, batch=4, hidden=3, **SIZES), capacity, means, 0)
    config = GsWgan(critics=3, visits=2, batch=4, warm_up=1, critic_steps=1, hidden=3, **SIZES)
    return train_gs_wgan(folder, config, capacity, means, 0)


RELEASES = {"pate_gan": 3 * 2 * 4, "g_pate": 3 * 4, "gs_wgan": 2 * 4}


@pytest.mark.parametrize("method", sorted(RELEASES))
def test_a_training_spends_its_budget_on_every_image(method: str) -> None:
    """For GS-WGAN that is what one record has a part in: the visits to its own critic."""
    account = Account()
    generator = trained(method, account)
    assert account.events == RELEASES[method]
    assert 0.98 < account.spent / account.capacity <= 1
    facts = facts_of(pictures(True))
    drawn = generator.sample(torch.tensor([0, 1, 1]), torch.Generator().manual_seed(0))
    assert drawn.shape == (3, facts.channels, facts.height, facts.width)
    assert 0 <= float(drawn.min()) <= float(drawn.max()) <= 1


@pytest.mark.parametrize("method", sorted(RELEASES))
def test_nothing_is_drawn_before_it_is_paid_for(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Mock()
    monkeypatch.setattr("privacy.mechanisms.noise.SecureNoise.discrete_gaussian", drawn)
    empty = Mock()
    empty.charge.side_effect = BudgetExceeded(1, 0)
    with pytest.raises(BudgetExceeded):
        trained(method, empty)
    assert drawn.mock_calls == []


def ensemble(count: int) -> TeacherEnsemble:
    return TeacherEnsemble(TeacherConfig(12, 3, 4), count, generator=torch.Generator().manual_seed(0))


def test_a_teacher_s_logits_are_those_whose_gradients_it_votes_with() -> None:
    teachers, images, labels = ensemble(5), torch.rand(4, 12), torch.tensor([0, 1, 2, 0])
    ((_, gradients),) = teachers.image_gradients(images, labels)
    step = 1e-2 * gradients[3] / gradients[3].norm(dim=1, keepdim=True)
    before, after = (torch.cat([part for _, part in teachers.image_logits(x, labels)]) for x in (images, images + step))
    assert before.shape == (5, 4)
    assert torch.all(after[3] > before[3])


def test_one_teacher_moves_a_count_of_votes_by_one_and_an_empty_one_by_none() -> None:
    teachers, images, labels = ensemble(5), torch.rand(4, 12), torch.tensor([0, 1, 2, 0])
    counts = []
    for opinion in (-100.0, 100.0):
        with torch.no_grad():
            teachers.bias[2] = opinion
        counts.append(
            [
                votes_for_real(teachers, torch.tensor(who), images, labels)
                for who in ([True] * 5, [True, True, False, True, True])
            ]
        )
    assert (counts[1][0] - counts[0][0]).tolist() == [1] * 4
    assert torch.equal(counts[0][1], counts[1][1])
    assert torch.equal(counts[0][1], counts[0][0])


@given(pair=GRADIENTS, seed=st.integers(0, 100))
def test_no_teacher_moves_more_than_two_bins_of_a_direction(pair: np.ndarray, seed: int) -> None:
    of = HistogramVotes(teachers=3, dimension=64, stddev=4.0, projected=5, seed=seed)
    both = of.shares(torch.from_numpy(pair), 0)
    assert set(both.unique().tolist()) <= {0, 1}
    assert int((both[0] - both[1]).square().sum()) <= of.sensitivity**2
    assert int((both[0]).square().sum()) in (0, 5)


def test_a_gradient_and_its_opposite_attain_the_histogram_s_sensitivity() -> None:
    of = games.histogram()
    g = torch.ones(1, 64)
    change = of.shares(g, 0) - of.shares(-g, 0)
    assert int(change.square().sum()) == 2 * of.projected
    assert math.sqrt(2 * of.projected) <= of.sensitivity <= math.sqrt(2 * of.projected) * (1 + 1e-15)


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_a_teacher_without_a_direction_votes_for_no_bin(value: float) -> None:
    rows = torch.stack([torch.full((64,), value), torch.ones(64)])
    shares = games.histogram().shares(rows, 0)
    assert shares.sum(dim=1).tolist() == [0, games.histogram().projected]


def test_a_vote_depends_on_no_other_teacher() -> None:
    of, stream = games.histogram(), torch.Generator().manual_seed(1)
    rows, others = torch.randn(50, 64, generator=stream), 1e6 * torch.randn(50, 64, generator=stream)
    others[7] = rows[7]
    assert torch.equal(of.shares(rows, 0)[7], of.shares(others, 0)[7])


def test_agreeing_teachers_are_followed_and_a_missing_quorum_says_nothing() -> None:
    of = HistogramVotes(teachers=20, dimension=64, stddev=4.0, projected=40, quorum=0.5)
    g = torch.randn(64, generator=torch.Generator().manual_seed(3))
    agreed = of.direction(of.sums(g.expand(20, 1, 64), torch.Generator()))[0]
    assert torch.cosine_similarity(agreed, g, dim=0) > 0.4  # 40 of 64 directions
    assert not of.direction(of.sums(g.expand(9, 1, 64), torch.Generator())).any()


def test_a_record_is_in_one_shard_and_moves_no_other() -> None:
    folder = pictures(True)
    whole = members_of(folder.images, folder.labels, 5, bytes(32))
    assert sorted(np.concatenate(whole).tolist()) == list(range(len(folder.labels)))
    fewer = members_of(folder.images[:-1], folder.labels[:-1], 5, bytes(32))
    assert sum(not np.array_equal(a, b) for a, b in zip(whole, fewer, strict=True)) == 1


def least_mu(game: Audited, confidence: float) -> float:
    return mu_lower_bound(game.test((secrets.token_bytes(32), secrets.token_bytes(32))), confidence)


@pytest.mark.parametrize("name", sorted(games.GAMES))
def test_an_audit_bears_the_claim_out_and_comes_near(name: str) -> None:
    game = games.GAMES[name](MU)
    assert game.mu == pytest.approx(MU, rel=1e-3)
    assert least_mu(game, SURE) <= game.mu
    assert least_mu(game, 0.95) > 0.5 * game.mu
    with half_the_noise():
        assert least_mu(game, SURE) > game.mu


@pytest.mark.parametrize(
    ("name", "fault"), broken.FAULTS, ids=[f"{name}, {fault.__name__}" for name, fault in broken.FAULTS]
)
def test_an_audit_flags_a_fault(name: str, fault: Any) -> None:
    with fault():
        assert least_mu(games.GAMES[name](MU), SURE) > MU * (1 + 1e-6)


def test_dp_gan_makes_the_steps_of_its_plan_and_keeps_weights_in_the_box(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, account, config = pictures(True), Mock(), DpGan(steps=4, critic_steps=2, batch=5, box=0.01, **SIZES)
    account_filter = open_filter(10.0, 1e-5)
    critics: list[Discriminator] = []

    def remembered(*arguments: Any) -> Discriminator:
        critics.append(Discriminator(*arguments))
        return critics[-1]

    monkeypatch.setattr(dp_gan, "Discriminator", remembered)
    budget, paid = account_filter.capacity_nano, Mock()
    train_dp_gan(folder, config, account_filter, budget, TrustedCurator(budget=paid, secret=bytes(32)), 0)
    (stage,) = plan_dp_gan(folder, config, account_filter, budget, 0).stages
    assert sum(call.args[0].count for call in paid.charge.call_args_list) == stage.event.count == 4
    largest = max(float(weight.detach().abs().max()) for weight in critics[0].parameters())
    assert largest == pytest.approx(0.01)
    account.charge.side_effect = BudgetExceeded(1, 0)
    with pytest.raises(NothingUseful):
        train_dp_gan(folder, config, account_filter, budget, TrustedCurator(budget=account, secret=bytes(32)), 0)


def test_dc_gan_learns_which_class_is_light() -> None:
    folder = pictures(True)
    generator = train_dc_gan(folder, DcGan(steps=60, batch=16, rate=5e-3, **SIZES), 0)
    drawn = generator.sample(torch.tensor([0, 1]).repeat(20), torch.Generator().manual_seed(0)).flatten(1).mean(dim=1)
    assert drawn[1::2].mean() > drawn[::2].mean() + 0.05


def test_labels_are_released_one_by_one() -> None:
    account = Account()
    noise = Mock()
    noise.discrete_gaussian.return_value = np.array([3, -3])
    assert privatise_votes(torch.tensor([5, 5]), 100.0, account, noise).tolist() == [8, 2]
    assert account.events == 2
