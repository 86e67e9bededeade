"""The benchmark of utility: every case can be planned, and a run that was cut off resumes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import runs, utility
from benchmarks.deep_classifiers import Shape
from benchmarks.small_data import SETS
from benchmarks.utility import REAL, SUITES, Case, Suite, main
from tests.benchmarks.conftest import bright_rows, planned
from tests.workers.small_trainings import classifiers_see

CASES = [
    pytest.param(case, suite.delta, id=f"{name}-{case.dataset}-{case.name}-{case.epsilon}")
    for name, suite in SUITES.items()
    for case in suite.cases
    if case.epsilon is not None
]
Run = Callable[..., list[dict[str, Any]]]


@pytest.mark.parametrize(("case", "delta"), CASES)
def test_every_case_can_be_planned_as_it_stands(case, delta):
    plan = planned(case.recipe, case.options, case.dataset, case.epsilon or 0, delta)
    if case.name == "prior":
        assert plan.config.model_dump()["pooled_covariance_fraction"] == 0


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a suite of these cases on bright rows; the rows of the file."""
    classifiers_see(monkeypatch, 500)
    monkeypatch.setitem(SETS, "small", bright_rows)  # type: ignore[misc]
    monkeypatch.setattr(runs, "SAMPLES", 120)
    monkeypatch.setattr(runs, "EPOCHS", 1)
    monkeypatch.setitem(utility.SHAPES, "quick", {"tiny": Shape(1, 16)})  # type: ignore[misc]
    file = tmp_path / "rows.json"

    def rows(*cases: Case, seeds: int = 1, **suite: Any) -> list[dict[str, Any]]:
        monkeypatch.setitem(SUITES, "small", Suite(cases, seeds=seeds, **suite))  # type: ignore[misc]
        main(["--suite", "small", "--json", str(file), "--grids", str(tmp_path)])
        found: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
        return found

    return rows


MOMENTS = Case("moments", "small", "moments", {"symmetry": "mirror"}, 20.0)


def test_a_file_keeps_its_runs_and_gains_cases_and_seeds(run, tmp_path):
    (first,) = run(MOMENTS)
    assert (first["records"], first["samples"], first["sd"]) == (240, 120, {"cnn": None})
    assert first["config"]["symmetry"] == "mirror"
    assert (tmp_path / "small_moments_20.png").exists()
    both = run(MOMENTS, Case(REAL, "small", "", {}, None), seeds=2)
    assert [row["name"] for row in both] == ["moments", "real"]
    assert both[0]["runs"][0] == first["runs"][0]
    for row in both:
        each = [made["accuracy"]["cnn"] for made in row["runs"]]
        assert [made["seed"] for made in row["runs"]] == [0, 1]
        assert row["accuracy"]["cnn"] == pytest.approx(sum(each) / 2)


def test_judges_are_those_of_the_suite(run):
    (row,) = run(MOMENTS, samples=60, judges=("mlp", "tiny"))
    assert set(row["accuracy"]) == {"mlp", "tiny"}
    assert row["samples"] == 60


def test_a_classifier_is_tested_itself(run, monkeypatch, tmp_path):
    options = {"architecture": "cnn", "expected_batch": 40, "epochs": 0.5, "clip": 1.0, "learning_rate": 1.0}
    monkeypatch.setattr(utility, "draw_grid", lambda *_: None)
    (row,) = run(Case("dpsgd", "small", "dp_classifier", options, 50.0))
    assert 0 <= row["accuracy"]["test"] <= 1
    assert "samples" not in row
