"""Events: validation, repetition, JSON, and the price of discrete noise."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import dp_accounting
import numpy as np
import pytest
from scipy import special

from privacy.accounting.events import COUNT_MAX, GaussianEvent, PoissonGaussianEvent, dp_event, event_from_json
from privacy.accounting.gaussian import gaussian_log_delta
from privacy.errors import InvalidParameter

BAD_NUMBERS = [0.0, -1.0, math.nan, math.inf, -math.inf, True, "1", None]


BAD_FIELDS: dict[str, tuple[type[GaussianEvent | PoissonGaussianEvent], list[Any]]] = {
    "sensitivity": (GaussianEvent, BAD_NUMBERS),
    "stddev": (GaussianEvent, BAD_NUMBERS),
    "sampling_probability": (PoissonGaussianEvent, [*BAD_NUMBERS, 1.0000001]),
    "noise_multiplier": (PoissonGaussianEvent, BAD_NUMBERS),
    "count": (GaussianEvent, [0, -1, 1.0, True, COUNT_MAX + 1]),
}


@pytest.mark.parametrize(("field", "bad"), [(name, bad) for name, (_, each) in BAD_FIELDS.items() for bad in each])
def test_fields_out_of_range_are_refused_by_name(field: str, bad: object) -> None:
    kind = BAD_FIELDS[field][0]
    good = GaussianEvent(1.0, 2.0) if kind is GaussianEvent else PoissonGaussianEvent(0.5, 1.0)
    with pytest.raises(InvalidParameter) as caught:
        replace(good, **{field: bad})
    assert caught.value.name == field


@pytest.mark.parametrize("event", [GaussianEvent(2.0, 7.5, 3), PoissonGaussianEvent(0.01, 1.1, 40)])
def test_events_survive_json(event: GaussianEvent | PoissonGaussianEvent) -> None:
    assert event_from_json(json.loads(json.dumps(event.to_json()))) == event


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"type": "laplace", "scale": 1.0},
        {"type": "gaussian", "sensitivity": 1.0, "stddev": 1.0},
        {"type": "gaussian", "sensitivity": 1.0, "stddev": 1.0, "count": 1, "epsilon": 0.0},
        {"type": "gaussian", "sensitivity": math.nan, "stddev": 1.0, "count": 1},
    ],
)
def test_json_outside_the_closed_set_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter):
        event_from_json(document)


def test_a_count_leaves_the_price_of_one_release() -> None:
    event = GaussianEvent(3.0, 12.0, 20)
    assert event.mu_squared_exact == GaussianEvent(3.0, 12.0, 5).mu_squared_exact == 1 / 16
    assert event.noise_multiplier == 4.0


def test_dp_events_are_those_of_dp_accounting() -> None:
    assert dp_event(GaussianEvent(2.0, 6.0)) == dp_accounting.GaussianDpEvent(3.0)
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(2.0))
    assert dp_event(PoissonGaussianEvent(0.1, 2.0, 9)) == dp_accounting.SelfComposedDpEvent(sampled, 9)


def test_discrete_noise_is_priced_as_slightly_narrower_noise() -> None:
    event = GaussianEvent.of_discrete_noise(1.0, 5000.0, 7)
    assert event.count == 7
    assert Fraction(event.stddev) ** 2 <= 5000**2 - 4  # rounded down
    assert event.stddev == pytest.approx(5000.0, rel=1e-6)


@pytest.mark.parametrize("stddev", [0.5, 2.0])
def test_discrete_noise_too_narrow_to_price_is_refused(stddev: float) -> None:
    with pytest.raises(InvalidParameter):
        GaussianEvent.of_discrete_noise(1.0, stddev)


def discrete_delta(stddev: float, shift: int, epsilon: float) -> float:
    """The hockey-stick divergence between the discrete Gaussian and its shift, summed over the integers."""
    z = np.arange(-60 * int(stddev + 1), 60 * int(stddev + 1))
    log_mass = -0.5 * np.square(z / stddev)
    log_mass -= special.logsumexp(log_mass)
    log_shifted = -0.5 * np.square((z - shift) / stddev)
    log_shifted -= special.logsumexp(log_shifted)
    return float(np.maximum(np.exp(log_mass) - np.exp(epsilon + log_shifted), 0.0).sum())


@pytest.mark.parametrize("stddev", [2.5, 3.0, 8.0])
@pytest.mark.parametrize("shift", [1, 2])
def test_discrete_noise_keeps_the_tradeoff_curve_it_is_priced_with(stddev: float, shift: int) -> None:
    """The curve of N(0, stddev^2) itself is *not* kept: pricing discrete noise as continuous would be unsound."""
    priced = GaussianEvent.of_discrete_noise(float(shift), stddev)
    naive = GaussianEvent(float(shift), stddev)
    violated = 0
    for epsilon in np.linspace(0.01, 2.5, 250):
        delta = discrete_delta(stddev, shift, float(epsilon))
        assert delta <= math.exp(gaussian_log_delta(math.sqrt(priced.mu_squared_exact), float(epsilon))) * (1 + 1e-9)
        violated += delta > math.exp(gaussian_log_delta(math.sqrt(naive.mu_squared_exact), float(epsilon))) * (1 + 1e-9)
    assert violated > 0
