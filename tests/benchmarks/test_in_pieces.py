"""Jobs for a GPU, made small: every job can be planned, and resumes where its last piece ended."""

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import in_pieces
from benchmarks.deep_classifiers import SHAPES, Shape
from benchmarks.in_pieces import JOBS, Clock
from benchmarks.small_data import SETS
from tests.benchmarks.conftest import bright_rows, planned
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


def test_a_piece_ends_a_minute_late_where_nothing_is_kept(tmp_path):
    with pytest.raises(Cancelled):
        Clock(tmp_path / "kept", -61.0)(stage="votes", step=1, steps=10)
