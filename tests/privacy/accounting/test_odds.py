"""How sure anyone can become: against independent arithmetic, and against analysts who try to do better."""

import math
from pathlib import Path

import mpmath
import numpy as np
import pytest

from obscura.wire.wording import show_sure
from privacy.accounting.filter import NANO, attacker_certainty_max, loss_bound, open_filter
from privacy.errors import InvalidParameter

LARGE_DELTA = 0.01
RUNS = 400_000


def normal_quantile(p: mpmath.mpf) -> mpmath.mpf:
    guess = -mpmath.sqrt(-2 * mpmath.log(p)) if p < 0.1 else mpmath.mpf(0)
    return mpmath.findroot(lambda x: mpmath.log(mpmath.ncdf(x)) - mpmath.log(p), guess)


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9, 1e-30])
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 3.0, 8.0])
def test_the_bound_equals_fifty_digits(epsilon: float, delta: float) -> None:
    opened = open_filter(epsilon, delta)
    with mpmath.workdps(50):
        capacity = mpmath.mpf(opened.capacity_nano) / NANO
        d = mpmath.mpf(opened.rate) * capacity
        shifted = mpmath.ncdf(normal_quantile((delta - d) / (1 - d)) - mpmath.sqrt(capacity))
        expected = mpmath.log(delta / ((1 - d) * shifted))
        assert expected <= loss_bound(opened) <= expected * (1 + mpmath.mpf("1e-8"))
        assert attacker_certainty_max(opened) == pytest.approx(float(1 / (1 + mpmath.exp(-expected))), rel=1e-8)


@pytest.mark.parametrize("delta", [0.3, 1e-2, 1e-5, 1e-12])
def test_it_is_above_epsilon_and_grows_with_what_may_be_spent(delta: float) -> None:
    for epsilon in (0.1, 1.0, 4.0):
        opened = open_filter(epsilon, delta)
        bounds = [loss_bound(opened, opened.capacity_nano * tenth // 10) for tenth in range(1, 11)]
        assert bounds[-1] == loss_bound(opened) > epsilon
        assert bounds == sorted(bounds)
        assert 0.5 < attacker_certainty_max(opened) < 1


def test_nothing_to_spend_teaches_nothing() -> None:
    opened = open_filter(1.0, 1e-5)
    assert (loss_bound(opened, 0), attacker_certainty_max(opened, 0)) == (0.0, 0.5)
    with pytest.raises(InvalidParameter):
        loss_bound(opened, -1)


def exceeded(losses: np.ndarray, bound: float) -> float:
    return float((losses > bound).mean())


ERROR = 4 * math.sqrt(LARGE_DELTA / RUNS)  # four standard errors
OPENED = open_filter(1.0, LARGE_DELTA)
MU = math.sqrt(OPENED.capacity_nano / NANO)


def test_one_gaussian_release_exceeds_the_bound_with_at_most_delta_and_epsilon_far_more_often() -> None:
    """The worst pair of one release, N(mu, 1) and N(0, 1): its loss at x is mu x - mu^2 / 2."""
    x = np.random.default_rng(1).normal(size=RUNS) + MU
    losses = MU * x - MU * MU / 2
    assert exceeded(losses, loss_bound(OPENED)) <= LARGE_DELTA + ERROR
    assert exceeded(losses, 1.0) > 4 * LARGE_DELTA  # epsilon itself is no such bound


def test_an_analyst_who_stops_when_the_loss_is_high_does_not_exceed_it_either() -> None:
    """Many small releases; the rest of the budget is left unspent once the loss is where the analyst wants it.

    The quantile of one release's loss would not do: this analyst exceeds it too often.
    """
    steps, runs, rng = 400, 40_000, np.random.default_rng(2)
    error = 4 * math.sqrt(LARGE_DELTA / runs)
    loss, highest = np.zeros(runs), np.zeros(runs)
    for _ in range(steps):
        loss += rng.normal(size=runs) * MU / math.sqrt(steps) + MU * MU / steps / 2
        np.maximum(highest, loss, out=highest)
    quantile_of_one = MU * MU / 2 - MU * float(normal_quantile(mpmath.mpf(LARGE_DELTA)))
    assert exceeded(highest, loss_bound(OPENED)) <= LARGE_DELTA + error
    assert exceeded(highest, quantile_of_one) > LARGE_DELTA + error


def test_a_release_that_tells_only_the_tail_attains_it() -> None:
    """With probability d it tells all, else only that x lies above a threshold: delta in all, and none is smaller."""
    d, rng = OPENED.d_of(OPENED.capacity_nano), np.random.default_rng(3)
    threshold = MU - float(normal_quantile(mpmath.mpf((LARGE_DELTA - d) / (1 - d))))
    with_unit = d + (1 - d) * float((rng.normal(size=8 * RUNS) + MU > threshold).mean())
    without = (1 - d) * float((rng.normal(size=8 * RUNS) > threshold).mean())
    assert with_unit == pytest.approx(LARGE_DELTA, rel=0.03)
    assert math.log(with_unit / without) == pytest.approx(loss_bound(OPENED), rel=0.05)


def odds_in_words(epsilon: float) -> str:
    """A row of docs/how-to/choose-a-budget.md: how often the best guess is right, and how sure an attacker becomes."""
    opened = open_filter(epsilon, 1e-5)
    mu, d = math.sqrt(opened.capacity_nano / NANO), opened.d_of(opened.capacity_nano)
    right = d + (1 - d) * float(mpmath.ncdf(mu / 2))  # told with chance d, else the middle of two Gaussians decides
    factor = math.exp(loss_bound(opened))
    sure = [before * factor / (before * factor + 1 - before) for before in (0.5, 0.1, 0.01)]
    return " | ".join([f"| {epsilon:g}", *map(show_sure, [right, *sure])]) + " |"


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_the_best_guesser_is_right_so_often(epsilon: float) -> None:
    opened = open_filter(epsilon, LARGE_DELTA)
    mu, d = math.sqrt(opened.capacity_nano / NANO), opened.d_of(opened.capacity_nano)
    rng = np.random.default_rng(1)
    used, told = rng.random(RUNS) < 0.5, rng.random(RUNS) < d
    guess = np.where(told, used, rng.normal(size=RUNS) + mu * used > mu / 2)
    assert float((guess == used).mean()) == pytest.approx(d + (1 - d) * float(mpmath.ncdf(mu / 2)), abs=0.005)


def test_the_documents_show_these_odds() -> None:
    def shown(epsilon: float, digits: int = 1) -> str:
        percent = math.ceil(attacker_certainty_max(open_filter(epsilon, 1e-5)) * 100 * 10**digits) / 10**digits
        return f"{percent:.{digits}f}%"

    root = Path(__file__).parents[3]
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert f"at most {shown(1)} sure at ε = 1 ({shown(2)} at 2, {shown(3)} at 3)" in readme
    row = " | ".join([shown(0.5), shown(1), shown(2), shown(3), shown(8, digits=2)])
    assert f"| from 50% to at most | {row} |" in (root / "docs" / "explanation" / "privacy-guarantee.md").read_text(
        encoding="utf-8"
    )
    budget = (root / "docs" / "how-to" / "choose-a-budget.md").read_text(encoding="utf-8")
    table = budget.split("|---|---|---|---|---|\n")[1].split("\n\n")[0].splitlines()
    assert table == [odds_in_words(epsilon) for epsilon in (0.1, 0.5, 1, 3, 6, 10)]
    one = open_filter(1, 1e-5).capacity_nano
    assert "cost less than 2, about 1.47, because" in budget
    assert open_filter(1.46, 1e-5).capacity_nano < 2 * one < open_filter(1.48, 1e-5).capacity_nano
    assert "at an ε above 10" in budget  # of ten records, each of which moves a Gaussian by mu
    assert open_filter(10, 1e-5).capacity_nano < 10**2 * one
    for document in [root / "README.md", *(root / "docs").rglob("*.md")]:
        assert "that this bound does not hold" not in document.read_text(encoding="utf-8"), document
