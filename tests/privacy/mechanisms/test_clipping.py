"""Clipping: the bound holds exactly, the direction stays, bad rows contribute nothing."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from privacy.errors import InvalidParameter
from privacy.mechanisms.clipping import clip_integer_rows, clip_rows

floats = arrays.arrays(np.float64, (3, 5), elements=st.floats(allow_nan=True, allow_infinity=True))
integers = arrays.arrays(np.int64, (3, 5), elements=st.integers(-(1 << 20), 1 << 20))
bounds = st.floats(1e-6, 1e6)


@given(rows=floats, norm_max=bounds)
def test_exact_norms_stay_within_the_bound(rows: np.ndarray, norm_max: float) -> None:
    for row in clip_rows(rows, norm_max):
        assert sum(Fraction(float(value)) ** 2 for value in row) <= Fraction(norm_max) ** 2


@given(rows=integers, norm_max=bounds)
def test_integer_rows_stay_integers_within_the_bound(rows: np.ndarray, norm_max: float) -> None:
    clipped = clip_integer_rows(rows, norm_max)
    assert clipped.dtype == np.int64
    assert all(sum(int(value) ** 2 for value in row) <= Fraction(norm_max) ** 2 for row in clipped)
    assert (np.abs(clipped) <= np.abs(rows)).all()
    assert (clipped * rows >= 0).all()


def test_short_rows_are_left_alone_and_long_ones_keep_their_direction() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    assert clip_rows(rows, 1.0) == pytest.approx(np.array([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    assert (clip_integer_rows(np.array([[3, 4], [6, 8]]), 5.1) == [[3, 4], [3, 4]]).all()


def test_rows_that_are_not_finite_contribute_zero() -> None:
    rows = np.array([[math.nan, 1.0], [math.inf, 1.0], [1e300, 1e300]])
    assert clip_rows(rows, 1.0) == pytest.approx(np.array([[0, 0], [0, 0], [math.sqrt(0.5)] * 2]))


def test_a_bound_is_attained_by_adding_one_row() -> None:
    row = np.array([[255, 0, 0]], dtype=np.uint8)
    assert np.linalg.norm(clip_integer_rows(row, 255.1).sum(axis=0)) == 255


def test_no_rows() -> None:
    assert clip_rows(np.zeros((0, 4)), 1.0).shape == (0, 4)
    assert clip_integer_rows(np.zeros((0, 4), dtype=np.uint8), 1.0).shape == (0, 4)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bounds_are_positive_and_finite(bad: float) -> None:
    with pytest.raises(InvalidParameter):
        clip_rows(np.ones((1, 2)), bad)
    with pytest.raises(InvalidParameter):
        clip_integer_rows(np.ones((1, 2), dtype=np.int64), bad)


def test_integers_only_and_of_bounded_magnitude() -> None:
    with pytest.raises(InvalidParameter):
        clip_integer_rows(np.ones((1, 2)), 1.0)
    with pytest.raises(InvalidParameter):
        clip_integer_rows(np.array([[1 << 21]]), 1.0)
