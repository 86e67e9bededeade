"""The demo from end to end, on the bundled digits and made small."""

import json
import zipfile
from pathlib import Path

import pytest

from obscura.cli.console import CliError, Output
from service.cli import demo
from service.cli.demo import COUNT, run_demo
from service.cli.demo import images as demo_images

TEACHERS = {"teachers": 20, "images": 30}
NUMBERS = ("epsilon", "delta", "capacity", "price", "spent", "teachers", "images_aggregated", "peak_memory_bytes")


@pytest.mark.slow
def test_the_demo_does_everything_and_may_be_repeated(tmp_path, monkeypatch, capsys, warm):
    monkeypatch.setattr(demo_images, "DIGITS_OPTIONS", {"evaluation_samples": 300})
    monkeypatch.setattr(demo, "TEACHER_OPTIONS", TEACHERS)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("sys.executable", warm)
    out = tmp_path / "demo"
    run_demo(out, Output(as_json=True), images="digits")
    shown = capsys.readouterr()
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert json.loads(shown.out) == summary
    assert "/dashboard" in shown.err or "The dashboard is at http://127.0.0.1:" in shown.err
    assert (summary["dataset"], summary["recipe"]) == ("digits", "datalens")
    assert (summary["unit"], summary["adjacency"]) == ("record", "add_remove")
    assert all(summary[name] > 0 for name in NUMBERS)
    assert summary["price"] < summary["spent"] <= summary["capacity"]  # of both trainings
    assert {"setup", "ingest", "first_job", "job", "sample", "evaluation"} == set(summary["seconds"])
    first, taught = summary["runs"]
    assert list(first) == list(taught)
    assert (first["recipe"], first["teachers"], first["images_aggregated"], first["iterations"]) == ("moments", 0, 0, 0)
    assert (taught["recipe"], taught["teachers"], taught["images_aggregated"], taught["iterations"]) == (
        "datalens",
        20,
        30,
        2,
    )
    assert all(run["epsilon"] == 1.0 and 0 < run["accuracy"] <= 1 and run["seconds"] > 0 for run in (first, taught))
    assert set(summary["accuracy"]) == {"logistic_regression", "mlp", "cnn"}
    for name in ("download", "grid", "report", "privacy_card"):
        assert Path(summary[name]).stat().st_size > 0
    with zipfile.ZipFile(summary["download"]) as archive:
        pictures = [name for name in archive.namelist() if name.endswith(".png")]
    assert len(pictures) == COUNT
    assert not (out / "service" / "service.url").exists()  # it has stopped


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    mine = tmp_path / "service" / "obscura.db"
    mine.parent.mkdir()
    mine.write_bytes(b"precious")
    with pytest.raises(CliError, match="choose another"):
        run_demo(tmp_path, Output(as_json=True), images="digits")
    assert mine.read_bytes() == b"precious"
