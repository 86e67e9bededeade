"""Clipping: the bound holds exactly, and the direction stays."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from privacy.errors import InvalidParameter
from privacy.mechanisms.clipping import clip_integer_parts, clip_integer_rows

integers = arrays.arrays(np.int64, (3, 5), elements=st.integers(-(1 << 20), 1 << 20))
bounds = st.floats(1e-6, 1e6)


@given(rows=integers, norm_max=bounds)
def test_integer_rows_stay_integers_within_the_bound(rows: np.ndarray, norm_max: float) -> None:
    clipped = clip_integer_rows(rows, norm_max)
    assert clipped.dtype == np.int64
    assert all(sum(int(value) ** 2 for value in row) <= Fraction(norm_max) ** 2 for row in clipped)
    assert (np.abs(clipped) <= np.abs(rows)).all()
    assert (clipped * rows >= 0).all()


def test_short_rows_are_left_alone_and_long_ones_keep_their_direction() -> None:
    assert (clip_integer_rows(np.array([[3, 4], [6, 8]]), 5.1) == [[3, 4], [3, 4]]).all()
    assert clip_integer_rows(np.array([[255, 0, 0]], dtype=np.uint8), 255.1).tolist() == [[255, 0, 0]]  # attained


PARTS = [np.array([0, 3]), np.array([1]), np.array([4])]  # the number at 2 is in none


def length(row: np.ndarray, parts: list[np.ndarray] = PARTS) -> int:
    """Of the outer products of all parts together, squared."""
    return sum(sum(int(value) ** 2 for value in row[part]) ** 2 for part in parts)


@given(rows=integers, norm_max=st.integers(1, 1 << 20))
def test_outer_products_of_parts_stay_within_the_bound(rows: np.ndarray, norm_max: int) -> None:
    clipped = clip_integer_parts(rows, norm_max, PARTS)
    assert all(length(row) <= norm_max**4 for row in clipped)
    assert (np.abs(clipped) <= np.abs(rows)).all()
    assert (clipped * rows >= 0).all()
    assert not clipped[:, 2].any()
    for row, alone in zip(rows, clipped, strict=True):  # a function of that row alone
        assert np.array_equal(clip_integer_parts(row[None], norm_max, PARTS)[0], alone)


def test_parts_of_equal_length_may_be_longer_than_one_and_attain_the_bound() -> None:
    rows = np.full((1, 5), 10_000)
    spread, alone = clip_integer_parts(rows, 1024, PARTS)[0], clip_integer_parts(rows, 1024, PARTS[:1])[0]
    assert 0.99 * 1024**4 < length(spread) <= 1024**4
    assert 0.99 * 1024**4 < length(alone, PARTS[:1]) <= 1024**4
    assert np.linalg.norm(spread) > 1.15 * np.linalg.norm(alone)
    own = [clip_integer_parts(rows, 1024, [part]).sum(axis=0) for part in PARTS]  # control: each part by itself
    assert length(sum(own)) > 2 * 1024**4


def test_bounds_and_rows_out_of_range_are_refused() -> None:
    ones = np.ones((1, 5), dtype=np.int64)
    assert clip_integer_rows(np.zeros((0, 4), dtype=np.uint8), 1.0).shape == (0, 4)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidParameter):
            clip_integer_rows(ones, bad)
    for bad in (0, 0.5, (1 << 20) + 1, math.nan, math.inf):
        with pytest.raises(InvalidParameter):
            clip_integer_parts(ones, bad, PARTS)
    for rows in (np.ones((1, 2)), np.array([[1 << 21]])):
        with pytest.raises(InvalidParameter):
            clip_integer_rows(rows, 1.0)
