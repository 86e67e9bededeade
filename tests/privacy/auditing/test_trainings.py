"""Whole trainings by moments and by DataLens on digits with hundreds of canaries, audited in one run each."""

import secrets
from typing import Any

import numpy as np
import pytest

from benchmarks import audited_trainings
from benchmarks.broken_mechanisms import no_noise
from benchmarks.one_run_audit import CLASS_MOMENTS
from models.portable.generator import Generator
from privacy.accounting.filter import open_filter
from privacy.accounting.gaussian import gaussian_mu
from privacy.auditing.one_run import epsilon_lower_bound, flip_coins, gaussian_refuted, guess
from privacy.plans.plan import Plan, PlanBudget
from privacy.plans.registry import build_plan

SURE = 1 - 1e-7  # the chance with which a correct training is flagged is at most 1e-7, whatever the canaries do
EPSILON, DELTA = 1.0, 1e-5
CANARIES = 640
POPULATION = audited_trainings.digits_population(CANARIES, records=400)
MOMENTS = {**CLASS_MOMENTS, "components": 10, "frequencies": 8}
PIXELS: dict[str, Any] = {"preset": "published", "teachers": 250, "images": 60}
KERNEL: dict[str, Any] = {**PIXELS, "preset": "kernel", "teacher_bandwidth": 100.0}  # canaries are far from all else
INCLUDED = flip_coins(CANARIES, seed=0)


def run(recipe: str, options: dict[str, Any], secret: bytes) -> tuple[Generator, Plan, audited_trainings.Tap]:
    account = open_filter(EPSILON, DELTA)
    plan = build_plan(recipe, options, account, account.capacity_nano, POPULATION.facts)
    tap = audited_trainings.Tap()
    return audited_trainings.train(plan, POPULATION, INCLUDED, tap, PlanBudget(plan.stages), secret), plan, tap


def assert_claim_stands(scores: np.ndarray) -> None:
    for made in (CANARIES // 20, CANARIES // 4):
        guesses = guess(scores, INCLUDED, made)
        assert not gaussian_refuted(guesses, gaussian_mu(EPSILON, DELTA), SURE)
        assert epsilon_lower_bound(guesses, DELTA, SURE) <= EPSILON


def assert_claim_falls(scores: np.ndarray) -> None:
    guesses = guess(scores, INCLUDED, CANARIES // 4)
    assert gaussian_refuted(guesses, gaussian_mu(EPSILON, DELTA), SURE)
    assert epsilon_lower_bound(guesses, DELTA, 0.95) > EPSILON


def test_moments_stay_below_their_claim_in_all_that_they_release() -> None:
    generator, plan, tap = run("moments", MOMENTS, secrets.token_bytes(32))
    assert (tap.means is not None, len(tap.scatters)) == (True, 11)
    for scores in (
        audited_trainings.warm_start_scores(tap, plan, POPULATION),
        audited_trainings.generator_scores(generator, POPULATION),
    ):
        assert_claim_stands(scores)


def test_moments_without_noise_are_flagged() -> None:
    """Their integers decode to the coins: with 64 orthogonal canaries a class there is nothing left to guess."""
    with no_noise():
        _, plan, tap = run("moments", MOMENTS, secrets.token_bytes(32))
    assert_claim_falls(audited_trainings.warm_start_scores(tap, plan, POPULATION, noise=1e-3))


@pytest.mark.parametrize("options", [PIXELS, KERNEL], ids=["linear", "kernel"])
def test_votes_on_pixels_stay_below_their_claim(options: dict[str, Any]) -> None:
    secret = secrets.token_bytes(32)
    _, plan, tap = run("datalens", options, secret)
    assert sum(len(release.released_labels) for release in tap.releases) == 60
    assert_claim_stands(audited_trainings.pixel_vote_scores(tap, plan, POPULATION, secret))


@pytest.mark.parametrize("options", [PIXELS, KERNEL], ids=["linear", "kernel"])
def test_votes_on_pixels_without_noise_are_flagged(options: dict[str, Any]) -> None:
    """Canaries that share a teacher and a class hide each other."""
    secret = secrets.token_bytes(32)
    with no_noise():
        _, plan, tap = run("datalens", options, secret)
    assert_claim_falls(audited_trainings.pixel_vote_scores(tap, plan, POPULATION, secret, noise=1e-3))


@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_decoding_finds_coins_that_overlap(noise: float) -> None:
    """Canaries in half as many dimensions again as there are canaries, each seen through its neighbours."""
    rng = np.random.default_rng(0)
    adds = rng.normal(size=(200, 300))
    included = flip_coins(200, 1)
    released = (included - 0.5) @ adds + noise * rng.normal(size=300)
    scores = audited_trainings.decode(adds @ released, adds @ adds.T, noise)
    assert guess(scores, included, 200).correct > 195
