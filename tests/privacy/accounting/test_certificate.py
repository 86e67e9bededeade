"""Certificates, complete, consistent with the filter and silent about data; and the events that they list."""

import importlib.metadata
import json
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import dp_accounting
import numpy as np
import pytest
from scipy import special

from privacy.accounting.certificate import build_certificate, pld_epsilon
from privacy.accounting.events import COUNT_MAX, Event, GaussianEvent, PoissonGaussianEvent, dp_event, event_from_json
from privacy.accounting.filter import open_filter
from privacy.accounting.gaussian import gaussian_epsilon, gaussian_log_delta
from privacy.errors import BudgetExceeded, InvalidParameter

VOTES = GaussianEvent(2 * math.sqrt(200), 5000.0, 2000)


def certify(**changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "filter": open_filter(1.0, 1e-5),
        "events": [VOTES],
        "unit": "record",
        "assumed_public": ["class names", "image size"],
        **changes,
    }
    price = sum(arguments["filter"].cost_nano(event) for event in arguments["events"])
    return build_certificate(**{"cost_nano": price, **arguments})


def test_certificate_states_the_guarantee_and_what_it_rests_on() -> None:
    certificate = certify()
    account = open_filter(1.0, 1e-5)
    assert certificate["cost_nano"] == account.cost_nano(VOTES)
    assert certificate["epsilon"] == account.epsilon_of(certificate["cost_nano"]) < 1.0
    stated = {"unit": "record", "adjacency": "add_remove", "rate": account.rate, "capacity_nano": account.capacity_nano}
    assert certificate.items() >= stated.items()
    assert certificate["accountant_version"] == importlib.metadata.version("dp-accounting")
    assert certificate["not_covered"]


def test_certificate_survives_strict_json() -> None:
    document = json.loads(json.dumps(certify(), allow_nan=False))
    assert [event_from_json(event) for event in document["events"]] == [VOTES]
    assert document == certify()


def test_a_dearer_charge_is_certified_and_a_cheaper_one_refused() -> None:
    cost = certify()["cost_nano"]
    assert certify(cost_nano=cost + 1000)["epsilon"] > certify()["epsilon"]
    with pytest.raises(InvalidParameter):
        certify(cost_nano=cost - 1)


def test_refusals() -> None:
    with pytest.raises(InvalidParameter):
        certify(events=[])
    with pytest.raises(InvalidParameter):
        certify(unit="household")
    with pytest.raises(BudgetExceeded) as caught:
        certify(events=[replace(VOTES, count=2 * VOTES.count)])
    assert caught.value.requested_nano > caught.value.remaining_nano


def test_pld_epsilon_of_gaussian_releases_is_exact() -> None:
    assert pld_epsilon([VOTES], 1e-5) == gaussian_epsilon(math.sqrt(VOTES.count * VOTES.mu_squared_exact), 1e-5)
    assert pld_epsilon([VOTES], 1e-5) == pytest.approx(certify()["epsilon"], rel=0.02)
    assert pld_epsilon([PoissonGaussianEvent(1.0, 10.0)], 1e-5) == pytest.approx(gaussian_epsilon(0.1, 1e-5), rel=1e-3)


def test_pld_epsilon_of_sampled_releases_is_tighter_than_the_filter_and_not_too_tight() -> None:
    account = open_filter(3.0, 1e-5)
    events: list[Event] = [GaussianEvent(1.0, 20.0), PoissonGaussianEvent(4096 / 60000, 6.0, 2000)]
    certificate = certify(filter=account, events=events)
    assert pld_epsilon(events[1:], 1e-5) < certificate["pld_epsilon"] < certificate["epsilon"] < 3.0


# --- events -----------------------------------------------------------------------------------------------------------


SAMPLED = PoissonGaussianEvent(0.5, 1.0)
BAD_NUMBERS = [0.0, -1.0, math.nan, math.inf, -math.inf, True, "1", None]
BAD_FIELDS: list[tuple[Event, str, list[Any]]] = [
    (VOTES, "sensitivity", BAD_NUMBERS),
    (VOTES, "stddev", BAD_NUMBERS),
    (SAMPLED, "sampling_probability", [*BAD_NUMBERS, 1.0000001]),
    (SAMPLED, "noise_multiplier", BAD_NUMBERS),
    *((event, "count", [0, -1, 1.0, True, COUNT_MAX + 1]) for event in (VOTES, SAMPLED)),
]


@pytest.mark.parametrize(("event", "field", "bad"), [(*case, bad) for *case, each in BAD_FIELDS for bad in each])
def test_fields_out_of_range_are_refused_by_name(event: Event, field: str, bad: object) -> None:
    with pytest.raises(InvalidParameter) as caught:
        replace(event, **{field: bad})
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
    for too_narrow in (0.5, 2.0):
        with pytest.raises(InvalidParameter):
            GaussianEvent.of_discrete_noise(1.0, too_narrow)


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
