"""Tables of the DP-SGD family: every row is made, and what follows from formulas is what was published."""

import json
import math
from typing import Any

import pytest

from benchmarks.reproductions import classifiers, costs
from benchmarks.reproductions.__main__ import NEEDS, TABLES, main
from benchmarks.reproductions.classifiers import Arm, Size, Table, classifier_rows, membership_rows
from benchmarks.reproductions.costs import freeze_densities, gep_4
from benchmarks.runs import steps_plan
from models.private_classifier import ClassifierConfig, PrivateClassifier
from privacy.plans.dp_classifier import PRESETS, DpClassifierConfig
from privacy.plans.options import read_options
from tests.benchmarks.conftest import light_and_dark

KEYS = {"paper", "table", "method", "dataset", "epsilon", "setting", "ours", "sd", "seeds", "published", "seconds"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, colour in (("cifar-10", True), ("mnist", False)):
        monkeypatch.setitem(classifiers.FOLDERS, name, lambda colour=colour: light_and_dark(colour))
    monkeypatch.setattr(classifiers, "HELD_OUT", 20)


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """Steps and noise multiplier of each plan, of which none is trained."""
    plans: list[tuple[int, float]] = []

    def watched(_folder: Any, plan: Any) -> None:
        plans.append((plan.stages[0].event.count, plan.stages[0].event.noise_multiplier))

    monkeypatch.setattr(classifiers, "train_plan", watched)
    monkeypatch.setattr(classifiers, "accuracy", lambda _model, _folder: 0.5)
    monkeypatch.setattr(classifiers, "_QUICK", {**classifiers._QUICK, "expected_batch": 20})
    return plans


@pytest.mark.usefixtures("untrained")
def test_a_table_has_a_row_for_each_method_and_epsilon_with_what_was_published():
    rows = classifier_rows("gep", "1", "cifar-10", "quick")
    assert [(row["epsilon"], row["method"], row["published"], row["ours"], row["seeds"]) for row in rows[:3]] == [
        (2.0, "GP", 43.6, 50, 2),
        (2.0, "B-GEP", 50.3, 50, 2),
        (2.0, "GEP", 59.7, 50, 2),
    ]
    assert len(rows) == 9
    assert all(set(row) == KEYS | {"runs"} for row in rows)


def test_every_arms_options_are_a_training_s_quick_and_full():
    for table in classifiers.TABLES.values():
        for arm in table.arms:
            for options in ({**classifiers._QUICK, **arm.quick}, arm.full):
                read_options(DpClassifierConfig, options, PRESETS)
            assert not arm.epochs or {epsilon for _, epsilon in arm.published} == set(arm.epochs)


def test_a_quick_row_trains(monkeypatch):
    lean = {"estimator": "gep", "expected_batch": 100, "anchors": 12, "basis_size": 8}
    table = Table((Arm("GEP", {}, lean, {}),), (8.0,), None, {"quick": Size(10_000, 2, 1)})
    monkeypatch.setitem(classifiers.TABLES, ("any", "1"), table)  # type: ignore[misc]
    (row,) = classifier_rows("any", "1", "cifar-10", "quick")
    assert 0 <= row["ours"] <= 100
    assert row["setting"].endswith("first 100 images, 2 steps of 100")


def test_rows_without_privacy_have_no_epsilon_and_no_noise(untrained):
    rows = classifier_rows("rgp", "2", "cifar-10", "quick")
    assert [row["epsilon"] for row in rows] == [None, None, 8.0, 8.0, 8.0]
    noises = [noise for _, noise in untrained]
    assert max(noises[:4]) < 1e-3 < 0.1 < min(noises[4:])


def test_the_full_budget_has_the_papers_epochs():
    plain, frozen = {3.0: 40, 7.53: 80}, {3.0: 60, 7.53: 100}
    assert [arm.epochs for arm in classifiers.TABLES["freeze", "3"].arms] == [plain, plain, frozen]


def test_the_cells_of_table_10_have_the_noise_of_their_names():
    folder, deviations = light_and_dark(False), {}
    for arm in classifiers.TABLES["datalens", "10"].arms:
        plan = steps_plan(folder, {**classifiers._QUICK, **arm.quick, "expected_batch": 50}, 0.5, 0, 6)
        (stage,) = arm.noisy(plan, 0.5).stages
        deviations[arm.name] = stage.event.noise_multiplier * math.sqrt(arm.quick.get("keep", 1.0))  # over C
    assert deviations["TopK-GM-DP"] == pytest.approx(deviations["GM-DP"])
    assert deviations["TopAgg"] == pytest.approx(deviations["GM-DP"] * math.sqrt(0.8))
    assert max(deviations["TopK-SGD"], deviations["clipped SGD"]) < 1e-5


def test_rows_of_tables_8_and_9_stand_beside_what_was_published(untrained):
    rows = {(row["method"], row["epsilon"]): row for row in classifier_rows("datalens", "8", "mnist", "quick")}
    assert rows["TopAgg, k = 0.8", 0.05]["published"] == 77.15
    assert rows["GM-DP", None]["published"] == 99.08
    assert {epsilon for _, epsilon in rows} == {0.05, 0.2, 1.0, None}
    assert "rate 0.3: 50.0 held out" in rows["GM-DP", None]["setting"]
    assert len(untrained) == 4 * 4 * (2 + 2)  # arms, epsilons; tries and seeds
    nine = classifier_rows("datalens", "9", "mnist", "quick")
    assert [row["published"] for row in nine if row["ours"] is None][:3] == [74.25, 78.45, 73.55]


def test_densities_follow_from_the_schedules():
    for table in ("2", "9"):
        for row in freeze_densities(table):
            assert row["ours"] == pytest.approx(row["published"], abs=0.015)


def test_grouping_costs_less_by_the_formula_and_notes_are_about_tables(monkeypatch):
    monkeypatch.setattr(costs, "_REPEATS", 1)
    whole, grouped = gep_4("quick")
    assert whole["ours"] == 1
    assert 0.15 < grouped["published"] < 0.2
    assert set(NEEDS) <= set(TABLES)


def test_the_attack_has_its_rows(monkeypatch):
    def model(folder: Any, _plan: Any) -> PrivateClassifier:
        return PrivateClassifier(ClassifierConfig("cnn", folder.classes, 3, 8, 8), 1)

    monkeypatch.setattr(classifiers, "train_plan", model)
    attacked = membership_rows("cifar-10", "quick", seeds=(0, 1))
    assert [row["published"] for row in attacked] == [57.7, 52.6, 50.1]
    assert all(set(row) == {*KEYS, "runs", "error_of_one"} and row["seeds"] == 2 for row in attacked)


def test_the_command_prints_and_adds_rows_and_names_what_there_is(tmp_path, capsys):
    file = tmp_path / "rows.json"
    for table in ("2", "9"):
        main(["--paper", "freeze", "--table", table, "--json", str(file)])
    assert [row["table"] for row in json.loads(file.read_text())["rows"]] == ["2"] * 4 + ["9"] * 2
    assert "Handcrafted CNN: 0.7037 (published: 0.7)" in capsys.readouterr().out
    for refused in (["--table", "11"], ["--table", "2", "--seeds", "1"]):
        with pytest.raises(SystemExit):
            main(["--paper", "freeze", *refused])
    assert "--seeds is for tables 1, 2, 4, 7 of datalens" in capsys.readouterr().err
