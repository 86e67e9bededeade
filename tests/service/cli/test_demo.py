"""The demo from end to end, small and on the bundled digits, and where it finds its images."""

import gzip
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from models.public_images import FASHION_CLASSES
from obscura.cli.console import CliError, Output
from service.cli import demo
from service.cli.demo import DEBIAN_FOLDER, find_images, is_fashion_mnist, run_demo

TEACHERS = {"teachers": 20, "images": 30}
NUMBERS = ("epsilon", "delta", "capacity", "price", "spent", "teachers", "images_aggregated")


@pytest.mark.slow
@pytest.mark.usefixtures("warm_starts")
def test_the_demo_does_everything_and_may_be_repeated(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out, small = tmp_path / "demo", {"evaluation_samples": 300}
    run_demo(out, Output(as_json=True), images="digits", count=100, options=small, teacher_options=TEACHERS)
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
    numbers = ("recipe", "teachers", "images_aggregated", "iterations")
    assert [first[name] for name in numbers] == ["moments", 0, 0, 0]
    assert [taught[name] for name in numbers] == ["datalens", 20, 30, 2]
    assert all(run["epsilon"] == 1.0 and 0 < run["accuracy"] <= 1 and run["seconds"] > 0 for run in (first, taught))
    assert set(summary["accuracy"]) == {"logistic_regression", "mlp", "cnn"}
    for name in ("download", "grid", "report", "privacy_card"):
        assert Path(summary[name]).stat().st_size > 0
    with zipfile.ZipFile(summary["download"]) as archive:
        pictures = [name for name in archive.namelist() if name.endswith(".png")]
    assert len(pictures) == 100
    assert not (out / "service" / "service.url").exists()  # it has stopped


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    mine = tmp_path / "service" / "obscura.db"
    mine.parent.mkdir()
    mine.write_bytes(b"precious")
    with pytest.raises(CliError, match="choose another"):
        run_demo(tmp_path, Output(as_json=True), images="digits")
    assert mine.read_bytes() == b"precious"


def test_wrong_files_are_not_taken_for_fashion_mnist(tmp_path):
    assert not is_fashion_mnist(tmp_path)
    for name in demo.CHECKSUMS:
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"something else"))
    assert not is_fashion_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"not even gzip")
    assert not is_fashion_mnist(tmp_path)


@pytest.mark.skipif(not is_fashion_mnist(DEBIAN_FOLDER), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_from_this_machine(tmp_path, monkeypatch):
    monkeypatch.delenv("OBSCURA_FASHION_MNIST", raising=False)
    found = find_images(tmp_path, lambda _: None)
    assert found.name == "Fashion-MNIST"
    assert (found.private.private_records, found.public.private_records) == (60_000, 10_000)
    assert found.private.classes == found.public.classes == FASHION_CLASSES
    assert found.delta <= 1 / found.private.private_records


@pytest.mark.usefixtures("warm_starts")
def test_the_digits_are_the_last_resort_and_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("OBSCURA_FASHION_MNIST", str(tmp_path / "nothing"))
    monkeypatch.setenv("PATH", "")  # no apt-get
    said: list[str] = []
    found = find_images(tmp_path / "cache", said.append, download_seconds_max=0.01)
    assert found.name == "digits"
    assert any("falling back" in sentence for sentence in said)
    assert found.private.private_records + found.public.private_records == 1797
    assert found.delta <= 1 / found.private.private_records
    with np.load(tmp_path / "cache" / "digits" / "digits.npz") as arrays:
        assert arrays["images"].max() == 255


def test_unknown_images_are_refused(tmp_path):
    with pytest.raises(CliError):
        find_images(tmp_path, lambda _: None, "imagenet")
