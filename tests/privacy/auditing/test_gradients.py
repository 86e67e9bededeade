"""Every gradient estimator on worst-case records, correct and broken, by many draws and in one run.

Verdicts are asked for with a confidence of 1 - 1e-7, as for the releases beside. What a broken estimator's bound is
expected to be lies more than five of its standard deviations above the claimed mu.
"""

import secrets
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.audited import Audited
from benchmarks.audited_gradients import (
    SETTINGS,
    Setting,
    b_gep,
    dpsgd,
    frozen,
    gep,
    play,
    projection,
    rgp,
    topagg,
    train_steps,
    watched,
)
from benchmarks.audited_releases import audited_central_images
from benchmarks.broken_gradients import BROKEN_GRADIENTS
from benchmarks.broken_mechanisms import LateBudget
from benchmarks.gradient_games import PLAIN_MU, exchanged, owned, ranked, scaled, seen, spread
from benchmarks.payment_order import PaymentJournal, ReleasedUnpaid
from privacy.accounting.events import PoissonGaussianEvent
from privacy.accounting.filter import open_filter
from privacy.accounting.gaussian import gaussian_epsilon
from privacy.auditing.distinguishing import epsilon_lower_bound, mu_lower_bound
from privacy.auditing.one_run import epsilon_lower_bound as one_run_epsilon
from privacy.auditing.one_run import flip_coins, gaussian_refuted, guess
from privacy.plans.plan import PlanBudget, Stage
from privacy.plans.private_steps import STEPS

SURE = 1 - 1e-7
MU, DELTA = 1.5, 1e-5
Make = Callable[[int], Setting]
ACCOUNT = open_filter(2.0, DELTA)


def each_estimator() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("make", SETTINGS, ids=lambda make: make.__name__)


@each_estimator()
def test_a_worst_case_record_stays_below_the_claim_and_comes_near(make: Make) -> None:
    """Drawn with a chance of one half, as claimed; near, or the record would not be the worst case."""
    audited = seen(make, MU, 0.5)
    errors = audited.test()
    assert mu_lower_bound(errors, SURE, 0.5) <= MU
    assert epsilon_lower_bound(errors, DELTA, SURE) <= gaussian_epsilon(MU, DELTA)
    assert mu_lower_bound(errors, 0.95, 0.5) > 0.5 * MU


@each_estimator()
@pytest.mark.parametrize("fault", ["no noise", "half the noise", "no clip"])
def test_an_estimator_with_too_little_noise_or_without_a_clip_is_flagged(make: Make, fault: str) -> None:
    with BROKEN_GRADIENTS[fault]():
        errors = seen(make, MU, 0.5).test()
    assert mu_lower_bound(errors, SURE, 0.5) > MU


OTHER_FAULTS = [
    (seen(topagg, MU, 0.5), "everything kept"),
    (exchanged(dpsgd, MU), "one batch size"),
    (exchanged(dpsgd, MU), "first in line"),
    (exchanged(gep, MU), "one batch size"),
    (owned(dpsgd, MU, 0.5), "rows by themselves"),
    (owned(gep, MU, 0.5), "rows by themselves"),
    (scaled(dpsgd), "realised batch"),
    (scaled(rgp), "realised batch"),
    (spread(gep), "private basis"),
    (spread(b_gep), "private basis"),
    (spread(rgp), "private basis"),
    (ranked(), "private ranks"),
    *((audited_central_images(MU, 0.5), fault) for fault in ("no noise", "half the noise", "no clip")),
]


@pytest.mark.parametrize(("audited", "fault"), OTHER_FAULTS, ids=[f"{game.name}, {it}" for game, it in OTHER_FAULTS])
def test_a_fault_is_flagged_by_the_game_that_is_made_for_it(audited: Audited, fault: str) -> None:
    with BROKEN_GRADIENTS[fault]():
        errors = audited.test()
    assert mu_lower_bound(errors, SURE, audited.probability) > audited.mu


@pytest.mark.parametrize(
    "audited",
    [
        *(exchanged(dpsgd, MU), owned(topagg, MU, 0.5), scaled(frozen), spread(gep), spread(rgp), ranked()),
        audited_central_images(MU, 0.5),
    ],
    ids=lambda audited: audited.name,
)
def test_a_correct_estimator_stays_below_its_claim_in_these_games_too(audited: Audited) -> None:
    assert mu_lower_bound(audited.test(), SURE, audited.probability) <= audited.mu


@each_estimator()
def test_claims_are_what_accounts_are_charged_for_a_step(make: Make) -> None:
    setting = make(4)
    estimator = setting.make(setting.network(), 1 / MU)
    assert PoissonGaussianEvent(0.5, estimator.noise_multiplier) == seen(make, MU, 0.5).claim
    assert seen(make, MU, 0.5).mu == pytest.approx(MU)
    assert ranked().mu == pytest.approx(PLAIN_MU)  # of both steps together


CANARIES = 400
INCLUDED = flip_coins(CANARIES, seed=3)


@each_estimator()
@pytest.mark.parametrize("fault", ["correct", "no noise", "no clip"])
def test_one_step_with_all_canaries_in_one_run(make: Make, fault: str) -> None:
    """200 included records at once. A factor of four shows in 40 guesses, half the noise would not."""
    mu, setting = 0.4, make(CANARIES)
    with BROKEN_GRADIENTS[fault]():
        scores = play(setting, projection(setting, mu), INCLUDED, mu, 1.0, 1, secrets.token_bytes(32))
    guesses = guess(scores, INCLUDED, 40)
    if fault == "correct":
        assert not gaussian_refuted(guesses, mu, SURE)
        assert one_run_epsilon(guesses, DELTA, SURE) <= gaussian_epsilon(mu, DELTA)
    else:
        assert gaussian_refuted(guesses, mu, 0.95)


STEP = PoissonGaussianEvent(0.5, 8.0)
EVENT = replace(STEP, count=4)
STAGE = Stage(STEPS, EVENT, ACCOUNT.cost_nano(EVENT))
FREEZES = [(make, "none", 2) for make in SETTINGS] + [(dpsgd, "ranked", 2), (dpsgd, "ranked", 1)]


@pytest.mark.parametrize(("make", "freeze", "period"), FREEZES, ids=[f"{m.__name__}, {f}, {p}" for m, f, p in FREEZES])
def test_a_whole_training_stays_below_its_claim_pays_first_and_is_flagged_without_noise(make, freeze, period):
    """Four sampled steps of the production loop; the auditor sees the finished network."""
    setting, epsilon = make(CANARIES), ACCOUNT.epsilon_of(STAGE.cost_nano)
    journal = PaymentJournal(PlanBudget([STAGE]))
    weights = projection(setting, 1 / EVENT.noise_multiplier)
    with watched(journal, STEP):
        scores = train_steps(setting, weights, INCLUDED, EVENT, journal, secrets.token_bytes(32), freeze, period=period)
    assert journal.released == journal.paid
    assert journal.released.total() == 4
    assert one_run_epsilon(guess(scores, INCLUDED, 100), DELTA, SURE) <= epsilon

    with BROKEN_GRADIENTS["no noise"]():
        again = PlanBudget([STAGE])
        scores = train_steps(setting, weights, INCLUDED, EVENT, again, secrets.token_bytes(32), freeze, period=period)
    drawn = guess(scores, INCLUDED, 100)
    assert np.count_nonzero(scores[~INCLUDED] > 0.01) == 0
    if freeze == "none":
        assert one_run_epsilon(drawn, DELTA, 0.95) > epsilon


def test_a_training_that_pays_after_its_steps_is_flagged() -> None:
    setting = dpsgd(10)
    journal = PaymentJournal(PlanBudget([STAGE]))
    with watched(journal, STEP), pytest.raises(ReleasedUnpaid, match="of a sample"):
        train_steps(
            setting, projection(setting, 0.125), INCLUDED[:10], EVENT, LateBudget(journal), secrets.token_bytes(32)
        )
