"""Each gradient estimator on pairs of neighbours, each pair made to show one kind of mistake.

Where what is released about one canary does not depend on the others, many of them are drawn from one release.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.audited import Audited, Scores
from benchmarks.audited_gradients import (
    FAR,
    SETTINGS,
    Setting,
    b_gep,
    dpsgd,
    gep,
    play,
    projection,
    rgp,
    step,
    train_steps,
)
from benchmarks.runs import NoLedger
from privacy.accounting.events import PoissonGaussianEvent
from privacy.gradients import build
from privacy.mechanisms.noise import derive_key

Make = Callable[[int], Setting]
PLAIN_MU = 0.5  # claimed where a fault is plain to see whatever the noise, so that few draws refute it
_TOGETHER = 200  # canaries of one release, each of which is a draw
_ALONE = 64  # where each release is one draw
_OPPONENTS = 3


def seen(make: Make, mu: float, probability: float) -> Audited:
    """A record whose gradient attains the sensitivity: is it there?"""
    setting = make(_TOGETHER)

    def draw(present: bool, draws: int, secret: bytes) -> Scores:
        included, weights = np.full(setting.canaries, present), projection(setting, mu)
        parts = [
            play(setting, weights, included, mu, probability, 1, derive_key(secret, number))
            for number in range(math.ceil(draws / setting.canaries))
        ]
        return np.concatenate(parts)[:draws]

    return Audited(setting.name, PoissonGaussianEvent(probability, 1 / mu), draw, draws=2000, cut=0.5)


def exchanged(make: Make, mu: float, probability: float = 0.75) -> Audited:
    """All other records pull the other way: does the canary come in addition, or in the place of one of them?

    Where four units of which three are drawn make a batch, as three of three do, the canary moves the sum by two.
    """
    setting = make(_TOGETHER)
    model = setting.network()

    def draw(present: bool, draws: int, secret: bytes) -> Scores:
        weights, places = projection(setting, mu), (setting.rows[:, None], setting.columns)
        populations = [np.array([i] * present + [~i] * _OPPONENTS) for i in range(setting.canaries)]
        parts = [
            (step(setting, setting.make(model, 1 / mu), model, populations, probability, secret, n)[places] * weights)
            for n in range(math.ceil(draws / setting.canaries))
        ]
        return torch.cat(parts).sum(1).numpy()[:draws]

    event = PoissonGaussianEvent(probability, 1 / mu)
    return Audited(f"{setting.name}: exchange", event, draw, draws=2000, cut=1.0 - _OPPONENTS)


def scaled(make: Make) -> Audited:
    """Noise that is divided by the number of records gets smaller with one record more: is it smaller?"""
    setting = make(_ALONE)
    model = setting.network()

    def power(units: list[int], secret: bytes) -> float:
        estimator = setting.make(model, 1 / PLAIN_MU)
        return float(step(setting, estimator, model, [np.array(units)], 1.0, secret).square().sum())

    def draw(present: bool, draws: int, secret: bytes) -> Scores:
        usual = np.mean([power([1], derive_key(bytes(32), number)) for number in range(10)])
        units = [1, 0] if present else [1]
        return np.array([-power(units, derive_key(secret, number)) / usual for number in range(draws)])

    return Audited(f"{setting.name}: scale", PoissonGaussianEvent(1.0, 1 / PLAIN_MU), draw, draws=60, cut=-0.5)


def owned(make: Make, mu: float, probability: float) -> Audited:
    """A subject with several records, in a step of the production loop: does it add what one record adds?"""
    setting = make(_TOGETHER)
    event = PoissonGaussianEvent(probability, 1 / mu)

    def draw(present: bool, draws: int, secret: bytes) -> Scores:
        included, weights = np.full(setting.canaries, present), projection(setting, mu)
        parts = [
            train_steps(setting, weights, included, event, NoLedger(), derive_key(secret, number), subjects=True)
            for number in range(math.ceil(draws / setting.canaries))
        ]
        return np.concatenate(parts)[:draws]

    # Where two records that are clipped apart come in they add two: half of that tells best whether they did.
    return Audited(f"{setting.name}: subjects", event, draw, draws=2000, cut=1.0)


def spread(make: Make) -> Audited:
    """A record where the public basis, or carriers, do not reach: does noise of their size appear there?"""
    setting = make(16)
    outside = len(setting.weight) - 1  # the last row: of a flat weight the only one, of RGP's beyond the carriers
    setting = dataclasses.replace(
        setting,
        rows=torch.cat([torch.full((1,), outside), setting.rows[1:]]),
        values=torch.tensor([0.0] * (len(setting.values) - 1) + [FAR]),
    )
    model, place = setting.network(), (outside, int(setting.columns[0, -1]))

    def draw(present: bool, draws: int, secret: bytes) -> Scores:
        units = np.array([setting.canaries - 1] + [0] * present)
        scores = np.empty(draws)
        for number in range(draws):
            estimator = setting.make(model, 1 / PLAIN_MU)
            scores[number] = abs(float(step(setting, estimator, model, [units], 1.0, secret, number)[place]))
        return scores

    # Five deviations of the noise of GEP's residuals, and a fortieth of one of its embeddings.
    return Audited(f"{setting.name}: reach", PoissonGaussianEvent(1.0, 1 / PLAIN_MU), draw, draws=60, cut=0.07)


def ranked() -> Audited:
    """Ranked freeze of half of the coordinates after a first step: is the canary's coordinate free in the second?"""
    setting, each = dpsgd(_ALONE), PLAIN_MU / 2**0.5  # mu of one step
    model = setting.network()

    def draw(present: bool, draws: int, secret: bytes) -> Scores:
        units = np.arange(int(present))
        active = np.empty(draws, dtype=bool)
        for number in range(draws):
            estimator = setting.make(model, 1 / each)
            first = step(setting, estimator, model, [units], 1.0, secret, 2 * number)
            estimator.freeze(build.ranked_mask(first.flatten(), 0.5))
            second = step(setting, estimator, model, [units], 1.0, secret, 2 * number + 1)
            active[number] = bool(second[0, 0] != 0)
        return active.astype(np.float64)

    event = PoissonGaussianEvent(1.0, 1 / each, 2)
    return Audited("DP-SGD, ranked freeze: mask", event, draw, draws=60, cut=0.5)


def audited_gradients(mu: float) -> tuple[Audited, ...]:
    """Return every game for each estimator that can lose it, at a claimed mu where the noise matters."""
    return (
        *(seen(make, mu, 0.5) for make in SETTINGS),
        *(exchanged(make, mu) for make in SETTINGS),
        *(owned(make, mu, 0.5) for make in SETTINGS),
        *(scaled(make) for make in SETTINGS),
        *(spread(make) for make in (gep, b_gep, rgp)),
        ranked(),
    )


def faults_of(name: str) -> tuple[str, ...]:
    """Return the faults that a game is made to show."""
    estimator, _, game = name.partition(": ")
    kept = ("everything kept",) if estimator == "TopAgg-SGD" else ()
    return {
        "": ("no noise", "half the noise", "no clip", *kept),
        "exchange": ("one batch size", "first in line"),
        "subjects": ("rows by themselves",),
        "scale": ("realised batch",),
        "reach": ("private basis",),
        "mask": ("private ranks",),
    }[game]
