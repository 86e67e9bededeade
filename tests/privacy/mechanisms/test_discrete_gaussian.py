"""The discrete Gaussian, its table and tests that can reject it; key stream and key derivation."""

import copy
import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from privacy.errors import InvalidParameter
from privacy.mechanisms import discrete_gaussian
from privacy.mechanisms.noise import SecureNoise, derive_key

STDDEVS = [0.3, 0.5, 1.0, 2.7, 31.4, 64.0, 100.3, 5000.0, 123456.7, 1e7, 2.0**45]
ALARM = 1e-6  # The keys below are fixed, so a true sampler passes always and a wrong one fails always.


def fresh(*labels: str | int) -> SecureNoise:
    return SecureNoise.derive(b"a fixed secret for the tests....", *labels)


def fit(drawn: npt.NDArray[np.int64], stddev: float) -> float:
    """p-value of a chi-squared test against N_Z(0, stddev^2) over some 80 bins of integers."""
    step = max(1, round(stddev / 10))
    reach = max(2, math.ceil(4 * stddev / step))
    edges = np.arange(-reach, reach + 1) * step  # bin i holds edges[i] <= z < edges[i + 1]; both tails are bins too
    if stddev < 1000:
        z = np.arange(-200 * int(stddev + 1), 200 * int(stddev + 1) + 1)
        mass = np.exp(-0.5 * np.square(z / stddev))
        chances = np.bincount(np.searchsorted(edges, z, side="right"), mass / mass.sum())
    else:  # the trapezium rule on a Gaussian: exact beyond any sample
        chances = np.diff(special.ndtr((edges - 0.5) / stddev), prepend=0.0, append=1.0)
    expected = chances * len(drawn)
    observed = np.bincount(np.searchsorted(edges, drawn, side="right"), minlength=len(expected)).astype(float)
    enough = expected >= 5
    rare = [observed[~enough].sum(), expected[~enough].sum()]
    observed, expected = observed[enough], expected[enough]
    if rare[1] >= 5:
        observed, expected = np.append(observed, rare[0]), np.append(expected, rare[1])
    else:  # fold what is rarer still into the commonest bin
        observed[expected.argmax()] += rare[0]
        expected[expected.argmax()] += rare[1]
    return float(stats.chisquare(observed, expected).pvalue)


@pytest.mark.parametrize("stddev", STDDEVS)
def test_draws_have_the_distribution_and_its_moments(stddev: float) -> None:
    n = 400_000
    drawn = fresh("fit").discrete_gaussian(n, stddev)
    assert fit(drawn, stddev) > 1e-3
    x, variance, fourth = drawn / stddev, 1.0, 3.0
    if stddev < 5:
        z = np.arange(-200, 201) / stddev
        variance, fourth = (float(np.average(z**power, weights=np.exp(-0.5 * z * z))) for power in (2, 4))
    assert abs(x.mean()) < 5 * math.sqrt(variance / n)
    assert abs((x * x).mean() - variance) < 5 * math.sqrt((fourth - variance**2) / n)


@pytest.mark.parametrize("stddev", [s for s in STDDEVS if s >= 0.5])
def test_the_test_rejects_a_shift_and_two_thirds_and_three_halves_of_the_scale(stddev: float) -> None:
    shift = max(1, round(stddev / 20))
    assert fit(fresh("shift").discrete_gaussian(400_000, stddev) + shift, stddev) < ALARM
    for factor in (2 / 3, 3 / 2) if stddev <= 1e7 else ():
        assert fit(fresh("scale").discrete_gaussian(400_000, stddev * factor), stddev) < ALARM


@pytest.mark.parametrize("stddev", [0.5, 1.0])
def test_the_test_rejects_a_rounded_continuous_gaussian(stddev: float) -> None:
    rounded = np.rint(np.random.default_rng(1).normal(0.0, stddev, 400_000)).astype(np.int64)
    assert fit(rounded, stddev) < ALARM


@pytest.mark.parametrize("stddev", [2.7, 5000.0, 1e7])
def test_tails_beyond_three_and_four_stddev(stddev: float) -> None:
    n = 3_000_000
    magnitude = np.abs(fresh("tails").discrete_gaussian(n, stddev))
    for reach in (3, 4):
        first = math.ceil(reach * stddev)
        z = np.arange(first, 40 * first + 40) if stddev < 1000 else None
        mass = math.sqrt(2 * math.pi) * stddev
        tail = special.ndtr(-(first - 0.5) / stddev) if z is None else np.exp(-0.5 * (z / stddev) ** 2).sum() / mass
        expected = 2 * n * tail
        assert abs((magnitude >= first).sum() - expected) < 5 * math.sqrt(expected)


@pytest.mark.parametrize(("stddev", "n"), [(0.5, 20_000), (3.3, 3000), (40.0, 10_000), (5000.0, 10_000)])
def test_cells_that_end_early_leave_the_distribution_to_the_tails(stddev: float, n: int) -> None:
    """With cells for one stddev only, a third of the draws comes from the tails' exact arithmetic."""
    drawn = discrete_gaussian.draw(n, discrete_gaussian.step_table(stddev, reach=1), fresh("early").integers64)
    assert np.abs(drawn).max() > 2 * stddev
    assert fit(drawn, stddev) > 1e-3


@pytest.mark.parametrize("stddev", [0.5, 7.3, 5000.0])
def test_exact_arithmetic_decides_as_floating_point_does(stddev: float) -> None:
    """With a slack of one every draw is decided exactly, and the same key must give the same integers."""
    quick = discrete_gaussian.draw(
        2000, discrete_gaussian.step_table(stddev), fresh("twice").integers64, slack=discrete_gaussian.SLACK
    )
    exact = discrete_gaussian.draw(2000, discrete_gaussian.step_table(stddev), fresh("twice").integers64, slack=1.0)
    assert np.array_equal(quick, exact)


@pytest.mark.parametrize("stddev", STDDEVS)
def test_the_alias_table_holds_the_weights_without_remainder(stddev: float) -> None:
    table = discrete_gaussian.step_table(stddev)
    held = [0] * 2048
    for slot, (threshold, alias) in enumerate(zip(table.threshold.tolist(), table.alias.tolist(), strict=True)):
        held[slot] += threshold
        held[alias] += (1 << 53) - threshold
    assert held[: len(table.weights)] == list(table.weights)
    assert sum(held) == sum(table.weights) == 1 << 64


@pytest.mark.parametrize("stddev", [0.3, 1.0, 31.4, 5000.0])
@pytest.mark.parametrize("reach", [1, 13])
def test_every_weight_dominates_its_cell(stddev: float, reach: int) -> None:
    """Step 2's right side is at most one on every cell and tail block, so rejection is exact; in rationals."""
    table = discrete_gaussian.step_table(stddev, reach)
    width, block_width = 1 << table.width_log2, 1 << table.width_log2 + discrete_gaussian.TAIL_WIDTH_LOG2

    def height(z: int) -> Fraction:
        return table.scale * Fraction(
            discrete_gaussian.exp_bounds(Fraction(z) ** 2 / (2 * Fraction(stddev) ** 2), 200)[1], 1 << 200
        )

    for cell in range(-table.cells, table.cells):
        nearest = cell * width if cell >= 0 else -((cell + 1) * width - 1)
        assert height(nearest) * width <= table.weights[cell + table.cells]
    for block in range(40):
        dominated = height(table.cells * width + block * block_width) * block_width * (2 << block)
        assert dominated <= min(table.weights[-2:])


@given(numerator=st.integers(0, 10**12), denominator=st.integers(1, 10**10), bits=st.integers(1, 300))
@settings(max_examples=100, deadline=None)
def test_exp_bounds_enclose(numerator: int, denominator: int, bits: int) -> None:
    x = Fraction(numerator, denominator)
    low, high = discrete_gaussian.exp_bounds(x, bits)
    assert high - low <= 3
    if x > 10_000:
        assert (low, high) == (0, 1)
        return
    with mpmath.workprec(bits + 100):
        true = mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator) * mpmath.mpf(2) ** bits
        assert low <= true * (1 + mpmath.mpf(2) ** (-bits - 50))
        assert true <= high * (1 + mpmath.mpf(2) ** (-bits - 50))


def test_exact_below_draws_further_bits_only_while_the_prefix_ties() -> None:
    """u and exp(-1/2) agree in 52 bits: the 64 bits that follow decide."""
    tie = discrete_gaussian.exp_bounds(Fraction(1, 2), discrete_gaussian.PREFIX_BITS)[0]
    following = discrete_gaussian.exp_bounds(Fraction(1, 2), discrete_gaussian.PREFIX_BITS + 64)[0] % (1 << 64)
    asked: list[int] = []

    def answer(prefix: int, offset: int = 0) -> bool:
        def source(n: int) -> npt.NDArray[np.uint64]:
            asked.append(n)
            return np.array([following + offset], dtype=np.uint64)

        return discrete_gaussian.exact_below(prefix, discrete_gaussian.PREFIX_BITS, 1, 1.0, Fraction(1), source)

    assert (answer(tie - 1), answer(tie + 1), asked) == (True, False, [])
    assert (answer(tie, -5), answer(tie, 5), asked) == (True, False, [1, 1])


def test_a_tiny_stddev_gives_zero() -> None:
    assert not fresh("tiny").discrete_gaussian(10_000, 1e-300).any()


# --- key stream and key derivation ------------------------------------------------------------------------------------


SECRET = bytes(range(32))


def test_key_stream_is_aes_256_in_counter_mode() -> None:
    """Known answer: AES-256 of the zero block under the zero key."""
    assert SecureNoise(bytes(32)).integers64(2).tobytes().hex() == "dc95c078a2408989ad48a21492842087"


def test_the_stream_does_not_depend_on_how_it_is_read() -> None:
    whole, parts = SecureNoise(SECRET), SecureNoise(SECRET)
    read = [parts.integers64(n) for n in (1, 0, 15, 17, 500, 467)]
    assert np.array_equal(whole.integers64(1000), np.concatenate(read))


def test_draws_repeat_for_a_key_and_go_on_within_it() -> None:
    first, second = SecureNoise(SECRET), SecureNoise(SECRET)
    drawn = first.discrete_gaussian((3, 5), 4.0)
    assert np.array_equal(drawn, second.discrete_gaussian((3, 5), 4.0))
    assert not np.array_equal(drawn, second.discrete_gaussian((3, 5), 4.0))


def test_every_label_separates_keys() -> None:
    labels: list[tuple[str | int, ...]] = [
        *(("noise", *more) for more in ((), (1,), ("1",), (1, 0), (10,), (-1,), (1, "votes"), (2, "votes"))),
        *(("noise1",), ("n", "oise"), ("s5:noise",)),
    ]
    keys = {derive_key(SECRET, *sequence) for sequence in labels} | {derive_key(bytes(32), "noise")}
    assert len(keys) == len(labels) + 1
    assert all(len(key) == 32 for key in keys)
    derived, made = SecureNoise.derive(SECRET, "a", 1), SecureNoise(derive_key(SECRET, "a", 1))
    assert np.array_equal(derived.integers64(8), made.integers64(8))


REFUSED: list[tuple[str, Callable[..., object], tuple[Any, ...]]] = [
    *(("stddev", discrete_gaussian.step_table, (bad,)) for bad in (0.0, -1.0, math.nan, math.inf, 2.0**46)),
    *(("labels", derive_key, (SECRET, *labels)) for labels in ((), (True,), (1.5,), (None,))),
    ("hidden", derive_key, (b"short", "a")),  # a secret and a key are not shown
    ("hidden", SecureNoise, (b"short",)),
]


@pytest.mark.parametrize(("word", "use", "arguments"), REFUSED)
def test_what_is_out_of_range_is_refused(word: str, use: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidParameter, match=word):
        use(*arguments)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_noise_cannot_be_duplicated(duplicate: object) -> None:
    with pytest.raises(TypeError, match="repeat"):
        duplicate(SecureNoise(SECRET))  # type: ignore[operator]


def test_uniform_is_uniform_and_below_one() -> None:
    drawn = SecureNoise(SECRET).uniform((1000, 100))
    assert drawn.shape == (1000, 100)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert stats.kstest(drawn.ravel(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("shape", [0, (0, 5), 7, (2, 3), ()])
def test_shapes(shape: int | tuple[int, ...]) -> None:
    drawn = SecureNoise(SECRET).discrete_gaussian(shape, 3.0)
    assert drawn.shape == ((shape,) if isinstance(shape, int) else shape)
    assert drawn.dtype == np.int64
