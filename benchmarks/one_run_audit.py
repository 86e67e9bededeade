"""Games of one run: whole trainings, and single releases in which every canary is a worst case."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import Any

from benchmarks.audited import Scores
from benchmarks.audited_gradients import SETTINGS, Setting, dpsgd, play, projection, train_steps
from benchmarks.audited_releases import vote_config, vote_scores
from benchmarks.audited_trainings import Population, Tap, generator_scores, pixel_vote_scores, train, warm_start_scores
from benchmarks.broken_gradients import BROKEN_GRADIENTS
from benchmarks.broken_mechanisms import BROKEN
from benchmarks.payment_order import PaymentJournal
from privacy.accounting.certificate import pld_epsilon
from privacy.accounting.events import PoissonGaussianEvent
from privacy.accounting.filter import open_filter
from privacy.accounting.gaussian import gaussian_epsilon, gaussian_mu
from privacy.auditing import one_run
from privacy.plans.plan import Plan, PlanBudget, Stage
from privacy.plans.private_steps import STEPS
from privacy.plans.registry import build_plan

DELTA = 1e-5
CONFIDENCE = 0.95  # of both bounds of a game together
VERDICT = 0.99  # of the same bounds where they decide about a flag
SHARES = (50, 20, 10, 4)  # one canary in so many is guessed; the best of these numbers of guesses counts
COINS_SEED = 2023
CLASS_MOMENTS: dict[str, Any] = {
    "frequencies": 16,
    "coefficients": None,
    "colour": "rgb",
    "centre": 0.25,
    "noise_shape": 0.0,
    "texture": False,
    "shrink": False,
    "components": 80,
    "class_components": None,
    "clusters": 1,
    "mean_fraction": 0.1,
    "pooled_covariance_fraction": 0.45,
    "class_covariance_fraction": 0.45,
    "cluster_fraction": 0.0,
    "mean_clip": 5.0,  # shorter than the canaries, which are then as strong as a record can be
    "deviation_clip": 5.0,
    "component_clip": 5.0,
}
PIXEL_VOTES: dict[str, Any] = {"preset": "published", "images": 300}
ONE_STEP_MU, MANY_CANARIES, MANY_MU = 0.5, 50_000, 0.7
TRAINING = PoissonGaussianEvent(0.25, 4.0, 8)
Row = dict[str, Any]


def one_run_row(
    release: str, variant: str, claims: tuple[float, float | None], scores: Scores, included: Any, certain: bool
) -> Row:
    """Bound epsilon and mu from one game's scores; the best of some numbers of guesses, corrected for the choice."""
    games = [one_run.guess(scores, included, max(1, len(scores) // share)) for share in SHARES]
    bounds = [_best(games, confidence) for confidence in (CONFIDENCE, VERDICT)]
    epsilon, mu = claims
    (measured_epsilon, measured_mu), sure = bounds
    return {
        "release": release,
        "variant": variant,
        "canaries": len(scores),
        "guesses": [[game.made, game.correct] for game in games],
        "claimed_epsilon": round(epsilon, 4),
        "measured_epsilon": round(measured_epsilon, 4),
        "claimed_mu": None if mu is None else round(mu, 4),
        "measured_mu": None if mu is None else round(measured_mu, 4),
        "flagged": sure[0] > epsilon or (mu is not None and sure[1] > mu),
        "must_be_flagged": False if variant == "correct" else True if certain else None,
    }


def _best(games: list[one_run.Guesses], confidence: float) -> tuple[float, float]:
    each = 1 - (1 - confidence) / (2 * len(games))
    return (
        max(one_run.epsilon_lower_bound(game, DELTA, each) for game in games),
        max(one_run.mu_lower_bound(game, each) for game in games),
    )


def audit_trainings(population: Population, epsilon: float, variant: str) -> list[Row]:
    """Train by `moments` and by `datalens`, and audit all that each releases."""
    account = open_filter(epsilon, DELTA)
    claims = epsilon, gaussian_mu(epsilon, DELTA)
    included = one_run.flip_coins(len(population.canary_images), COINS_SEED)
    believed = 1.0 if variant == "correct" else 1e-3  # the auditor knows what is wrong
    rows = []

    def trained(recipe: str, options: dict[str, Any]) -> tuple[Plan, Tap, bytes, Any]:
        plan = build_plan(recipe, options, account, account.capacity_nano, population.facts)
        secret, journal = secrets.token_bytes(32), PaymentJournal(PlanBudget(plan.stages))
        tap = Tap(journal)
        with BROKEN[variant]():
            return plan, tap, secret, train(plan, population, included, tap, journal, secret)

    plan, tap, secret, generator = trained("moments", CLASS_MOMENTS)
    for release, scores in (
        ("moments: all three statistics", warm_start_scores(tap, plan, population, believed)),
        ("finished generator (moments)", generator_scores(generator, population)),
    ):
        rows.append(one_run_row(release, variant, claims, scores, included, certain=False))
    plan, tap, secret, _ = trained("datalens", {**PIXEL_VOTES, "teachers": population.facts.records_declared // 5})
    scores = pixel_vote_scores(tap, plan, population, secret, believed)
    rows.append(one_run_row("votes on pixels: all images", variant, claims, scores, included, certain=False))
    return rows


def audit_vote_sum(epsilon: float, variant: str, canaries: int = 1000) -> Row:
    """One vote sum in which every canary turns the vote of a teacher round: TopAgg's worst case, all at once."""
    mu = gaussian_mu(epsilon, DELTA)
    cfg = vote_config(1, canaries, math.sqrt((2 / mu) ** 2 + 4), teachers=4 * canaries)
    included = one_run.flip_coins(canaries, COINS_SEED)
    with BROKEN[variant]():
        scores = vote_scores(included, cfg, 1, secrets.token_bytes(32))[:, 0]
    return one_run_row("TopAgg vote sum, worst case", variant, (epsilon, mu), scores, included, variant == "no noise")


def audit_step(make: Callable[[int], Setting], canaries: int, mu: float, variant: str) -> Row:
    """One step of a gradient estimator on all the canaries."""
    setting, included = make(canaries), one_run.flip_coins(canaries, COINS_SEED)
    with BROKEN_GRADIENTS[variant]():
        scores = play(setting, projection(setting, mu), included, mu, 1.0, 1, secrets.token_bytes(32))
    claims = gaussian_epsilon(mu, DELTA), mu
    certain = variant != "half the noise" or canaries >= MANY_CANARIES
    return one_run_row(f"{setting.name}: one step", variant, claims, scores, included, certain)


def audit_private_steps(
    make: Callable[[int], Setting], event: PoissonGaussianEvent, epsilon: float, variant: str, freeze: str = "none"
) -> Row:
    """A whole training of a gradient estimator, of which the finished network is seen."""
    setting, included = make(1000), one_run.flip_coins(1000, COINS_SEED)
    priced = Stage(STEPS, event, open_filter(50.0, DELTA).cost_nano(event))
    journal, secret = PaymentJournal(PlanBudget([priced])), secrets.token_bytes(32)
    with BROKEN_GRADIENTS[variant]():
        weights = projection(setting, 1 / event.noise_multiplier)
        scores = train_steps(setting, weights, included, event, journal, secret, freeze)
    name = f"{setting.name}{'' if freeze == 'none' else f', {freeze} freeze'}: {event.count} sampled steps"
    return one_run_row(name, variant, (epsilon, None), scores, included, certain=freeze == "none")


def collect_runs(population: Population, epsilons: list[float]) -> list[Row]:
    """Measure all rows of the first part."""
    rows: list[Row] = []
    for epsilon in epsilons:
        rows.append(audit_vote_sum(epsilon, "correct"))
        rows += audit_trainings(population, epsilon, "correct")
    rows += [audit_vote_sum(min(epsilons), variant) for variant in ("no noise", "shared shards")]
    rows += audit_trainings(population, min(epsilons), "no noise")
    for make in SETTINGS:
        rows += [
            audit_step(make, 1000, ONE_STEP_MU, variant)
            for variant in ("correct", "no noise", "half the noise", "no clip")
        ]
    rows += [audit_step(dpsgd, MANY_CANARIES, MANY_MU, variant) for variant in ("correct", "half the noise")]
    epsilon = pld_epsilon([TRAINING], DELTA)
    for make in SETTINGS:
        rows += [
            audit_private_steps(make, TRAINING, epsilon, variant) for variant in ("correct", "no noise", "no clip")
        ]
    rows.append(audit_private_steps(dpsgd, TRAINING, epsilon, "correct", "ranked"))
    return rows
