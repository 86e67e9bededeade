"""Every mechanism on its worst case, correct and broken: the measured mu stays below the claim, or the claim falls.

Noise is secret and fresh in each run, so verdicts are asked for with a confidence of 1 - 1e-7: a correct mechanism is
flagged by chance in one run of ten million at most. A broken one here has at least twice the claimed mu of about 1.5,
so its error rates are expected at Phi(-1.5) = 0.067 or below, and to escape, one of them would have to come out above
0.12 in 600 draws: a chance below 1e-6. The histogram's claim is 0.25, where 20,000 draws do the same.
"""

import math
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest

from benchmarks import broken_mechanisms as broken
from benchmarks.audited import Audited
from benchmarks.audited_releases import audited_mechanisms, audited_scatter, audited_votes, vote_config, vote_scores
from privacy.accounting.gaussian import gaussian_epsilon
from privacy.auditing.distinguishing import epsilon_lower_bound, mu_lower_bound
from privacy.auditing.one_run import epsilon_lower_bound as one_run_epsilon
from privacy.auditing.one_run import flip_coins, gaussian_refuted, guess
from privacy.plans.warm_start import POOLED

SURE = 1 - 1e-7
DELTA = 1e-5
*KINDS, TWICE = audited_mechanisms(1.5)  # the last one is not played for the most that its releases tell
VOTES, MEANS, POOLED_COVARIANCE, CLASS_COVARIANCE, MIRRORED_COVARIANCE, HISTOGRAM, SUBJECTS, PUBLIC = KINDS


@pytest.mark.parametrize("audited", KINDS, ids=lambda audited: audited.name)
def test_a_correct_mechanism_stays_below_its_claim_and_comes_near(audited: Audited) -> None:
    """Near, or the neighbours were not the worst case and the audit would see nothing.

    Half of the claim is exceeded at 95% but for a chance below 1e-6: the bound is expected five of its standard
    deviations higher.
    """
    errors, mu = audited.test(), audited.mu
    assert mu_lower_bound(errors, SURE) <= mu
    assert epsilon_lower_bound(errors, DELTA, SURE) <= gaussian_epsilon(mu, DELTA)
    assert mu_lower_bound(errors, 0.95) > 0.5 * mu


@pytest.mark.parametrize("audited", [TWICE, audited_votes(1, 2.5), audited_votes(1, 3.0)])
def test_two_iterations_and_noise_of_a_few_integers_stay_below_their_claim(audited: Audited) -> None:
    """Two iterations are tested for noise that was drawn once. Few integers have a claim far above continuous noise."""
    assert mu_lower_bound(audited.test(), SURE) <= audited.mu


FAULTS: list[tuple[Audited, tuple[Callable[[], AbstractContextManager[object]], ...]]] = [
    (VOTES, (broken.no_noise, broken.half_the_noise, broken.votes_beyond_k, broken.votes_beyond_one)),
    (VOTES, (broken.shared_shards,)),
    (MEANS, (broken.no_noise, broken.half_the_noise, broken.sums_beyond_clip, broken.mirrored_beside)),
    (POOLED_COVARIANCE, (broken.no_noise, broken.half_the_noise, broken.sums_beyond_clip)),
    (CLASS_COVARIANCE, (broken.half_the_noise,)),
    (MIRRORED_COVARIANCE, (broken.half_the_noise, broken.mirrored_beside)),
    (HISTOGRAM, (broken.no_noise, broken.half_the_noise)),
    (SUBJECTS, (broken.subjects_by_record,)),
    (PUBLIC, (broken.half_the_noise, broken.two_votes_each)),
    (TWICE, (broken.no_noise, broken.noise_once)),
]
BROKEN = [(audited, variant) for audited, variants in FAULTS for variant in variants]


@pytest.mark.parametrize(
    ("audited", "variant"), BROKEN, ids=[f"{audited.name}, {variant.__name__}" for audited, variant in BROKEN]
)
def test_a_broken_mechanism_is_flagged(audited: Audited, variant: Callable[[], AbstractContextManager[object]]) -> None:
    with variant():
        errors = audited.test()
    assert mu_lower_bound(errors, SURE) > audited.mu


def test_without_noise_epsilon_itself_is_refuted() -> None:
    """No tradeoff curve needed: at this claim (epsilon 0.74) the pair of error rates is enough."""
    audited = audited_votes(16, 40.0)
    with broken.no_noise():
        assert epsilon_lower_bound(audited.test(), DELTA, SURE) > gaussian_epsilon(audited.mu, DELTA)


def test_the_noise_off_the_diagonal_is_part_of_the_claim() -> None:
    """A row along one axis changes one number, one between the axes all of them: neither is cheaper to find."""
    spread = audited_scatter(POOLED, POOLED_COVARIANCE.claim.stddev)
    assert spread.claim.sensitivity == POOLED_COVARIANCE.claim.sensitivity
    with broken.no_noise():
        absent, present = (spread.draw(there, 1, bytes(32))[0] for there in (False, True))
    mu = math.sqrt(present - absent)  # the statistic is weighted so that its variance is its shift
    assert 0.99 * spread.mu < mu <= spread.mu * (1 + 1e-6)


CANARIES = 500


def play(cfg_stddev: float) -> tuple[np.ndarray, np.ndarray, float]:
    cfg = vote_config(1, CANARIES, cfg_stddev, teachers=2000)
    included = flip_coins(CANARIES, seed=1)
    scores = vote_scores(included, cfg, 1, secrets.token_bytes(32))[:, 0]
    return scores, included, math.sqrt(float(cfg.event(1).mu_squared_exact))


def test_one_run_with_all_canaries_stays_below_the_claim() -> None:
    """500 canaries in one vote sum, guessed all at once: (epsilon, delta) and mu both stand.

    The chance of a false alarm is at most 1e-7 for each; (epsilon, delta) cannot even be refuted with that confidence,
    because delta alone may give all coins away once in 1 / (2 m delta) runs.
    """
    scores, included, mu = play(4.0)
    for made in (50, 250):
        guesses = guess(scores, included, made)
        assert one_run_epsilon(guesses, DELTA, SURE) <= gaussian_epsilon(mu, DELTA)
        assert not gaussian_refuted(guesses, mu, SURE)


def test_one_run_without_noise_is_flagged() -> None:
    """Only teachers that got several canaries hide some: about 400 of the 500 show, far more than 250 guesses."""
    with broken.no_noise():
        scores, included, mu = play(8.0)
    guesses = guess(scores, included, 250)
    assert guesses.correct == guesses.made
    assert one_run_epsilon(guesses, DELTA, 0.95) > gaussian_epsilon(mu, DELTA)
    assert gaussian_refuted(guesses, mu, SURE)


def test_the_claims_are_what_accounts_are_charged() -> None:
    """An easier claim would make an easier audit: sensitivities and noise are what is charged and drawn."""
    assert [audited.claim.sensitivity for audited in audited_mechanisms(1.5)] == pytest.approx(
        [16.0, math.sqrt(17) / 4 * 1024, 1024**2, 1024**2, 1024**2, 1.0, 1.0, 1.0, 1.0], rel=1e-12
    )
    for audited in (VOTES, MEANS, POOLED_COVARIANCE, CLASS_COVARIANCE, MIRRORED_COVARIANCE):
        assert 1.5 <= audited.mu < 1.54  # the difference is the price of discreteness
    for audited in (HISTOGRAM, SUBJECTS, PUBLIC):
        assert audited.mu == pytest.approx(0.25, rel=1e-6)
