"""Certificates: complete, consistent with the filter, and silent about data."""

import importlib.metadata
import json
import math
from dataclasses import replace
from typing import Any

import pytest

from privacy.accounting.certificate import build_certificate, pld_epsilon
from privacy.accounting.events import Event, GaussianEvent, PoissonGaussianEvent, event_from_json
from privacy.accounting.filter import open_filter
from privacy.accounting.gaussian import gaussian_epsilon
from privacy.errors import BudgetExceeded, InvalidParameter

VOTES = GaussianEvent(2 * math.sqrt(200), 5000.0, 2000)


def certify(**changes: Any) -> dict[str, Any]:
    """A certificate of events that were charged at their price."""
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
    merged = math.sqrt(VOTES.count * VOTES.mu_squared_exact)
    assert pld_epsilon([VOTES], 1e-5) == gaussian_epsilon(merged, 1e-5)
    assert pld_epsilon([VOTES], 1e-5) == pytest.approx(certify()["epsilon"], rel=0.02)


def test_pld_epsilon_of_sampled_releases_is_tighter_than_the_filter_and_not_too_tight() -> None:
    account = open_filter(3.0, 1e-5)
    events: list[Event] = [GaussianEvent(1.0, 20.0), PoissonGaussianEvent(4096 / 60000, 6.0, 2000)]
    certificate = certify(filter=account, events=events)
    alone = pld_epsilon(events[1:], 1e-5)
    assert alone < certificate["pld_epsilon"] < certificate["epsilon"] < 3.0


def test_pld_epsilon_of_certain_sampling_is_the_gaussian_one() -> None:
    assert pld_epsilon([PoissonGaussianEvent(1.0, 10.0)], 1e-5) == pytest.approx(gaussian_epsilon(0.1, 1e-5), rel=1e-3)
