"""A noisy count of records: one record changes it by one, and all that is seen of it is the noisy number."""

import inspect
import itertools
import secrets

import pytest
from scipy.stats import norm

from privacy.accounting.filter import NANO, open_filter
from privacy.mechanisms import record_count
from privacy.mechanisms.noise import SecureNoise
from privacy.mechanisms.record_count import (
    BOUND_MIN,
    MARGIN_STDDEVS,
    STDDEV,
    bound_above,
    count_event,
    propose_bound,
)


class Watched:
    """Noise of a known value, which remembers what was asked of it."""

    def __init__(self, value):
        self.value, self.asked = value, []

    def discrete_gaussian(self, shape, stddev):
        self.asked.append((shape, stddev))
        return [self.value]


@pytest.mark.parametrize("records", [99, 100, 101, 109, 110, 1400, 1401])
def test_one_record_moves_the_noisy_count_by_its_sensitivity_and_nothing_else(records):
    """Every pair of neighbours attains 1: with one noise, they are told apart only through the sum of both."""
    assert count_event(STDDEV).sensitivity == 1.0
    for noise in (-1200, 0, 700):
        fewer, more = propose_bound(records, STDDEV, Watched(noise)), propose_bound(records + 1, STDDEV, Watched(noise))
        assert more == propose_bound(records, STDDEV, Watched(noise + 1))
        assert fewer == bound_above(records + noise, STDDEV)


def test_the_noise_is_that_which_is_paid_for():
    noise = Watched(0)
    propose_bound(1400, STDDEV, noise)
    assert noise.asked == [(1, STDDEV)]
    price_nano = open_filter(0.1, 1e-6).price_nano(count_event(STDDEV))
    assert price_nano == pytest.approx(NANO / STDDEV**2, rel=1e-3)
    assert price_nano < 0.02 * open_filter(0.1, 1e-6).capacity_nano


def test_bounds_lie_on_a_public_grid_with_steps_of_a_tenth_and_a_floor():
    grid = sorted({bound_above(count, STDDEV) for count in range(-5000, 100_000, 7)})
    assert grid[0] == BOUND_MIN == 100
    assert all(10 * high >= 11 * low for low, high in itertools.pairwise(grid))
    for count in (-5000, 0, 1400, 98_765):
        assert bound_above(count, STDDEV) >= count + MARGIN_STDDEVS * STDDEV
    assert list(inspect.signature(bound_above).parameters) == ["noisy_count", "stddev"]


def test_a_bound_is_too_low_less_often_than_delta():
    assert norm.sf(MARGIN_STDDEVS) < 1e-6
    bounds = [propose_bound(1400, STDDEV, SecureNoise(secrets.token_bytes(32))) for _ in range(200)]
    assert min(bounds) >= 1400
    assert len(set(bounds)) > 1
    assert record_count.STEP == (11, 10)
