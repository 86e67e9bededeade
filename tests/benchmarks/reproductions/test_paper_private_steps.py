"""The tables of GEP, RGP and random freeze: every row is made, and what follows from formulas is what was published."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.reproductions import accuracies, costs, gradients, linear_rows, membership
from benchmarks.reproductions.__main__ import NEEDS, TABLES, main
from benchmarks.reproductions.accuracies import FREEZE_1, FREEZE_3, FREEZE_4, GEP_1, RGP_2, Arm, accuracy_rows
from benchmarks.reproductions.costs import freeze_densities, gep_4
from benchmarks.reproductions.gradients import gradient_rows, projected, stable_rank
from benchmarks.reproductions.membership import membership_rows
from models.private_classifier import PrivateClassifier
from privacy.gradients.estimator import shapes_of
from privacy.gradients.gep import Gep
from privacy.plans.dp_classifier import PRESETS, DpClassifierConfig
from privacy.plans.options import read_options
from tests.benchmarks.reproductions.test_orders import pictures

KEYS = {"paper", "table", "method", "dataset", "epsilon", "setting", "ours", "sd", "seeds", "published", "seconds"}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(accuracies.FOLDERS, "cifar-10", lambda: pictures(True))
    monkeypatch.setattr(accuracies, "_QUICK_STEPS", 2)
    monkeypatch.setattr(accuracies, "_QUICK", {**accuracies._QUICK, "expected_batch": 20})


def test_a_table_has_a_row_for_each_method_and_epsilon_with_what_was_published(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracies, "trained", lambda _folder, _plan: None)
    monkeypatch.setattr(accuracies, "plan_of", lambda *_: None)
    monkeypatch.setattr(accuracies, "accuracy", lambda _model, _folder: 0.5)
    rows = accuracy_rows("gep", "1", GEP_1, "cifar-10", "quick")
    assert [(row["epsilon"], row["method"], row["published"], row["ours"], row["seeds"]) for row in rows[:3]] == [
        (2.0, "GP", 43.6, 50, 2),
        (2.0, "B-GEP", 50.3, 50, 2),
        (2.0, "GEP", 59.7, 50, 2),
    ]
    assert len(rows) == 9
    assert all(set(row) == KEYS | {"runs"} for row in rows)


def test_every_method_s_options_are_a_training_s_quick_and_full() -> None:
    for arm in (*GEP_1, *RGP_2, *FREEZE_1, *FREEZE_3, *FREEZE_4):
        for options in ({**accuracies._QUICK, **arm.quick}, arm.full):
            read_options(DpClassifierConfig, options, PRESETS)
        assert {epsilon for _, epsilon in arm.published} == set(arm.epochs)


def test_a_quick_row_trains(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracies, "QUICK_SEEDS", (0,))
    lean = {"estimator": "gep", "expected_batch": 100, "anchors": 12, "basis_size": 8}
    arm = Arm("GEP", {("cifar-10", 8.0): 0.0}, lean, {}, {})
    (row,) = accuracy_rows("any", "1", [arm], "cifar-10", "quick")
    assert 0 <= row["ours"] <= 100
    assert row["setting"].endswith("first 100 images, 2 steps of 100")


def test_rows_without_privacy_have_no_epsilon_and_no_noise(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    noises: list[float] = []

    def watched(_folder: Any, plan: Any) -> None:
        noises.append(plan.stages[0].event.noise_multiplier)

    monkeypatch.setattr(accuracies, "QUICK_SEEDS", (0, 1))
    monkeypatch.setattr(accuracies, "trained", watched)
    monkeypatch.setattr(accuracies, "accuracy", lambda _model, _folder: 0.5)
    rows = accuracy_rows("rgp", "2", RGP_2, "cifar-10", "quick")
    assert [row["epsilon"] for row in rows] == [None, None, 8.0, 8.0, 8.0]
    assert max(noises[:4]) < 1e-3 < 0.1 < min(noises[4:])


def test_the_full_budget_has_the_papers_epochs(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    monkeypatch.setattr(accuracies, "plan_of", lambda *given: steps.append(given[-1]))
    monkeypatch.setattr(accuracies, "trained", lambda _folder, _plan: None)
    monkeypatch.setattr(accuracies, "accuracy", lambda _model, _folder: 0.5)
    accuracy_rows("freeze", "3", FREEZE_3, "cifar-10", "full")
    per_epoch = 100 / 1000  # of 100 images, batches of 1,000
    assert steps == [round(epochs * per_epoch) for epochs in (40, 40, 60, 80, 80, 100) for _ in range(5)]


def test_densities_follow_from_the_schedules() -> None:
    for table in ("2", "9"):
        for row in freeze_densities(table):
            assert row["ours"] == pytest.approx(row["published"], abs=0.015)


def test_grouping_costs_less_by_the_formula_and_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_REPEATS", 1)
    whole, grouped = gep_4("quick")
    assert whole["ours"] == 1
    assert 0.15 < grouped["published"] < 0.2
    assert set(NEEDS) <= set(TABLES)


def test_the_stable_rank_of_equal_directions_is_their_number_and_a_basis_leaves_nothing_of_its_own() -> None:
    assert stable_rank(torch.eye(4, 9)) == pytest.approx(4)
    assert stable_rank(torch.ones(5, 3)) == pytest.approx(1)
    model = torch.nn.Linear(6, 2, bias=False)
    given: dict[str, Any] = {"clip": 1.0, "clip_residual": None, "noise_multiplier": 1.0, "expected_batch": 1.0}
    estimator = Gep(shapes_of(model), lambda *_: None, basis_size=3, **given)
    rows = torch.randn(3, 12)
    estimator.find_basis({"weight": rows})
    assert float(projected(estimator, rows).norm()) < 1e-4
    assert float(projected(estimator, rows, random=True).norm()) > 0.5 * float(rows.norm())


def test_figures_and_the_attack_have_their_rows(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def untrained(folder: Any, _plan: Any) -> PrivateClassifier:
        shape = gradients.ClassifierConfig("cnn", folder.classes, 3, 8, 8)
        return PrivateClassifier(shape, 1)

    monkeypatch.setattr(gradients, "trained", untrained)
    monkeypatch.setattr(gradients, "_RECORDS", 8)
    monkeypatch.setitem(gradients._BUDGETS, "quick", ("cnn", 100, 2, (5, 9), 10))
    monkeypatch.setattr(membership, "plan_of", lambda *_: None)
    monkeypatch.setattr(membership, "without_noise", lambda _plan: None)
    monkeypatch.setattr(gradients, "plan_of", lambda *_: None)
    monkeypatch.setattr(gradients, "without_noise", lambda _plan: None)
    monkeypatch.setattr(membership, "trained", untrained)
    rows = gradient_rows("cifar-10", "quick", seeds=(0, 1))
    assert len(rows) == 3 * (2 * 3 + 2)
    assert all(set(row) == {*KEYS, "runs"} and row["seeds"] == 2 for row in rows)
    assert {row["table"] for row in rows} == {"figure 4", "figure 5", "figure 7"}
    attacked = membership_rows("cifar-10", "quick", seeds=(0, 1))
    assert [row["published"] for row in attacked] == [57.7, 52.6, 50.1]
    assert all(set(row) == {*KEYS, "runs", "error_of_one"} and row["seeds"] == 2 for row in attacked)


def test_the_command_prints_and_adds_rows_and_names_what_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    for table in ("2", "9"):
        monkeypatch.setattr("sys.argv", ["paper", "--paper", "freeze", "--table", table, "--json", str(file)])
        main()
    assert [row["table"] for row in json.loads(file.read_text())["rows"]] == ["2"] * 4 + ["9"] * 2
    assert "Handcrafted CNN: 0.7037 (published: 0.7)" in capsys.readouterr().out
    for refused in (
        ["--paper", "rgp", "--figure", "2"],
        ["--paper", "datalens", "--figure", "2", "--seeds", "1"],
        ["--paper", "freeze", "--table", "2", "--seeds", "1"],
    ):
        monkeypatch.setattr("sys.argv", ["paper", *refused])
        with pytest.raises(SystemExit):
            main()
    assert "--seeds is for datalens 1, datalens 12, datalens 2, datalens 3" in capsys.readouterr().err


def test_table_3_of_gep_trains_a_linear_layer_at_every_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(accuracies.FOLDERS, "cifar-10", lambda: pictures(True))
    lean = {"images": 60, "test": 20, "batch": 20, "steps": 2, "anchors": 8, "basis": 6, "seeds": 2}
    monkeypatch.setitem(linear_rows._SIZES, "quick", lean)
    rows = linear_rows.linear_rows("cifar-10", "quick")
    assert [row["method"] for row in rows[:3]] == ["GP", "B-GEP", "GEP"]
    assert [row["published"] for row in rows[:3]] == [88.2, 91.0, 90.9]
    assert len(rows) == 12
    assert all(0 <= row["ours"] <= 100 and row["seeds"] == 2 for row in rows)
