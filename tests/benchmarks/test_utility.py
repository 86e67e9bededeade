"""Utility, also in pieces for a GPU: every case can be planned, and a run that was cut off resumes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import in_pieces, runs, utility
from benchmarks.deep_classifiers import SHAPES, Shape, judged, residual_network
from benchmarks.in_pieces import JOBS, Clock
from benchmarks.small_data import SETS
from benchmarks.utility import REAL, SUITES, Case, Suite, main
from tests.benchmarks.conftest import bright_rows, planned
from tests.workers.small_trainings import classifiers_see
from workers.recipes.interface import Cancelled

# Of a job, by the beginning of its name: what makes it a matter of seconds.
SMALL: dict[str, dict[str, Any]] = {
    "dpimagebench_fashion_10": {},
    "diffusion_fashion_10": {
        **{"features": 4, "blocks": 1, "multiplicity": 1, "expected_batch": 40, "epochs": 0.5},
        **{"moments_fraction": 0.5, "moments_steps": 3, "start_sigma": 0.5, "sampling_steps": 2},
    },
}


@pytest.mark.parametrize("name", list(JOBS))
def test_every_job_can_be_planned_as_it_stands(name):
    job = JOBS[name]
    planned(job.recipe, job.options, job.dataset, job.epsilon, job.delta)
    if name.startswith("dpimagebench"):
        assert set(job.judges) == {"ResNet-110", "WRN-40-4", "ResNeXt-29"}


@pytest.mark.parametrize("name", list(SMALL))
def test_a_job_resumes_where_its_last_piece_ended(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(SETS, JOBS[name].dataset, bright_rows)  # type: ignore[misc]
    monkeypatch.setitem(SHAPES, "full", {deep: Shape(1, 16) for deep in SHAPES["full"]})  # type: ignore[misc]
    monkeypatch.setattr(in_pieces, "_DEEP_EPOCHS", 3)
    job = replace(JOBS[name], options={**JOBS[name].options, **SMALL[name]})
    monkeypatch.setitem(JOBS, name, job)  # type: ignore[misc]
    given = ["--job", name, "--folder", str(tmp_path), "--samples", "90"]
    calls = 0
    while not (tmp_path / "result.json").exists() or set(job.judges) != set(
        json.loads((tmp_path / "result.json").read_text())["accuracy"]
    ):
        in_pieces.main([*given, "--minutes", "0"])
        calls += 1
        assert calls < 15
    out = capsys.readouterr().out
    assert out.count("run this again") == calls - 1
    found = json.loads((tmp_path / "result.json").read_text())
    assert (found["recipe"], found["epsilon"], found["delta"]) == (job.recipe, 10.0, job.delta)
    assert all(0 <= value <= 1 for value in found["accuracy"].values())
    assert (tmp_path / "grid.png").exists()
    assert not list(tmp_path.glob("*.pt.part")) + list(tmp_path.glob("checkpoint.pt"))
    if name.startswith("dpimagebench"):
        assert found["records"] == 240
        assert calls > 3  # three networks, each in several pieces
    if name.startswith("diffusion"):
        assert found["accuracy_of_moments"]["cnn"] > 0.6  # rows this bright survive their noise


def test_a_piece_ends_with_the_first_checkpoint_after_its_time_and_loses_nothing(tmp_path):
    clock = Clock(tmp_path / "kept", 0.0, every_seconds=1000.0)
    clock(stage="votes", step=1, steps=10)  # its time is over, and nothing of this piece is kept
    clock.replace(lambda file: file.write(b"two steps"))  # type: ignore[arg-type, return-value]
    with pytest.raises(Cancelled):
        clock(stage="votes", step=2, steps=10)
    kept = clock.open()
    assert kept is not None
    with kept:
        assert kept.read() == b"two steps"
    early = Clock(tmp_path / "other", 1000.0, every_seconds=1000.0)
    early.replace(lambda file: file.write(b"too early"))  # type: ignore[arg-type, return-value]
    assert early.open() is None
    with pytest.raises(Cancelled):  # a minute late where nothing is kept
        Clock(tmp_path / "new", -61.0)(stage="votes", step=1, steps=10)


# --- the benchmark of utility -----------------------------------------------------------------------------------------


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


# --- the classifiers that judge ---------------------------------------------------------------------------------------


CPU = torch.device("cpu")


def stripes(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(n) % 2
    images = torch.randint(0, 90, (n, 1, 12, 12), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    images[labels == 1, :, :6] += 120
    images[labels == 0, :, 6:] += 120
    return images, labels


@pytest.mark.parametrize(
    ("budget", "name", "depth", "weights"),
    [("full", "ResNet-110", 110, 1.73e6), ("full", "WRN-40-4", 40, 8.95e6), ("quick", "ResNet-20", 20, 0.272e6)],
)
def test_networks_have_the_depth_and_the_size_that_their_names_say(budget, name, depth, weights):
    network = residual_network(SHAPES[budget][name], 1, 10)
    deep = [layer for layer in network.modules() if isinstance(layer, torch.nn.Conv2d) and layer.kernel_size == (3, 3)]
    assert len(deep) + 1 == depth - (2 if name.startswith("WRN") else 0)  # WRN counts its shortcuts
    assert sum(weight.numel() for weight in network.parameters()) == pytest.approx(weights, rel=0.01)


def test_a_network_of_groups_gives_as_many_numbers_as_there_are_classes():
    network = residual_network(Shape(1, 16, 4), 3, 7).eval()
    assert network(torch.rand(2, 3, 12, 9)).shape == (2, 7)
    assert max(layer.groups for layer in network.modules() if isinstance(layer, torch.nn.Conv2d)) == 4


def test_a_network_learns_synthetic_images_and_is_tested_on_others():
    sizes = {"classes": 2, "epochs": 10, "seed": 0, "device": CPU}
    learnt = judged(Shape(1, 16), stripes(750, 0), stripes(200, 1), **sizes)  # type: ignore[arg-type]
    assert learnt > 0.95
    images, labels = stripes(200, 1)
    wrong = judged(Shape(1, 16), stripes(750, 0), (images, 1 - labels), **sizes)  # type: ignore[arg-type]
    assert wrong == pytest.approx(1 - learnt)  # equal seeds train equal networks
