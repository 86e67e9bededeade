"""What the benchmark of orders concludes: rule, verdict, power, equal tries, and that a run is made once."""

import math
from typing import Any

import pytest
from scipy.stats import t as student

from benchmarks.reproductions import orders
from benchmarks.runs import accuracy, steps_plan, train_plan, without_noise
from tests.benchmarks.conftest import light_and_dark


def runs_of(**accuracies: list[float]) -> list[dict[str, Any]]:
    names = {"noiseless": orders.NOISELESS, "momentum": "dpsgd, momentum 0.9"}
    return [
        {"method": names.get(name, name), "seed": seed, "accuracy": value}
        for name, found in accuracies.items()
        for seed, value in enumerate(found)
    ]


PLAIN = [0.600, 0.602, 0.604]


def test_an_order_is_tested_only_where_noise_costs_five_points():
    better = [0.650, 0.652, 0.654]
    (row,) = orders.judged(runs_of(dpsgd=PLAIN, noiseless=[0.653, 0.653], gep=better))["orders"]
    assert row["verdict"] == "as published"
    found = orders.judged(runs_of(dpsgd=PLAIN, noiseless=[0.651, 0.651], gep=better))
    assert found["noise_costs"] == pytest.approx(0.049)
    assert [row["verdict"] for row in found["orders"]] == ["not a test"]
    assert orders.judged(runs_of(dpsgd=PLAIN, gep=better))["orders"] == []


def test_verdicts_are_two_sided_and_the_momentum_order_is_the_paper_s():
    runs = {"dpsgd": [0.63, 0.632, 0.634], "momentum": PLAIN, "noiseless": [0.7]}
    (row,) = orders.judged(runs_of(**runs))["orders"]
    assert (row["better"], row["verdict"]) == (orders.BASELINE, "as published")
    (row,) = orders.judged(runs_of(**{**runs, "dpsgd": PLAIN, "momentum": runs["dpsgd"]}))["orders"]
    assert row["verdict"] == "reversed"
    (row,) = orders.judged(runs_of(**{**runs, "momentum": [0.58, 0.63, 0.68]}))["orders"]
    assert row["verdict"] == "no difference seen"


def test_error_and_power_follow_from_spread_and_seeds():
    found = orders.compared([0.63, 0.64, 0.65], [0.60, 0.61, 0.62])
    error = 0.01 * math.sqrt(2 / 3)
    assert found["standard_error"] == pytest.approx(error)
    assert found["power"] == pytest.approx((student.ppf(0.975, 4) + student.ppf(0.8, 4)) * error)
    assert orders.compared([0.6], [0.6, 0.7]) == {}


def test_every_method_has_as_many_tries_and_every_order_names_methods():
    assert {len(method.tries) for method in orders.METHODS.values()} == {3}
    assert {name for better, worse, _ in orders.ORDERS for name in (better, worse)} == set(orders.METHODS) - {
        orders.NOISELESS
    }
    assert len(orders.SET_UPS) >= 2


def test_a_run_is_made_once_with_the_best_setting_and_the_noiseless_one_with_the_baseline_s(monkeypatch):
    made: list[tuple[Any, ...]] = []

    def measured(_set_up: Any, name: str, setting: dict[str, Any], seed: int, *, held_out: bool) -> dict[str, Any]:
        made.append((name, setting, seed, held_out))
        return {"method": name, "setting": setting, "seed": seed, "accuracy": setting["learning_rate"] % 2}

    monkeypatch.setattr(orders, "measure", measured)
    document: dict[str, Any] = {}
    set_up = next(iter(orders.SET_UPS.values()))
    for _ in range(2):
        orders.run_set_up(set_up, document, [0, 1], [orders.BASELINE, "gep"], lambda: None)
    assert len(made) == 6 + 2 * 3
    assert [run[:3] for run in made[6:9]] == [
        (orders.SAME_SETTING, {"learning_rate": 1.0}, 0),
        (orders.BASELINE, {"learning_rate": 1.0}, 0),
        ("gep", {"learning_rate": 1.0}, 0),
    ]
    assert [run[3] for run in made] == [True] * 6 + [False] * 6


@pytest.mark.parametrize("colour", [False, True])
def test_a_training_without_noise_keeps_its_steps_and_learns(colour):
    folder = light_and_dark(colour).first(90)
    options = {"architecture": "cnn", "expected_batch": 90, "clip": 1.0, "learning_rate": 1.0, "momentum": 0.0}
    plan = steps_plan(folder, options, 0.5, 0, 6)
    quiet = without_noise(plan)
    assert plan.facts["steps"] == quiet.stages[0].event.count == 6
    assert plan.stages[0].event.noise_multiplier > 2
    assert accuracy(train_plan(folder, quiet), folder) > 0.9
