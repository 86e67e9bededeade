"""The benchmarks of DataLens' tables and of declared symmetries: rows, and how a run that was cut off goes on."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import datalens_loop, generator_runs, job_seconds, symmetry
from benchmarks.datalens_loop import as_page, table
from benchmarks.small_data import SETS, Folder
from privacy.accounting.filter import open_filter
from privacy.plans.datalens import PRESETS, DataLensConfig
from privacy.plans.plan import PublicFacts
from privacy.plans.registry import build_plan
from workers.evaluation.utility import TRAINING

RESEARCH = Path(__file__).resolve().parents[2] / "docs/research"
LOOP_PAGE = RESEARCH / "paper_datalens_loop.md"
FACTS = PublicFacts(tuple("abcdefghij"), 28, 28, 1, 60_000, "record")


def bright_rows(colour: bool = False) -> Folder:
    """Three classes with a bright row each."""
    labels = np.arange(240) % 3
    images = np.random.default_rng(0).integers(0, 60, (240, 8, 8)).astype(np.uint8)
    images[np.arange(240), 2 * labels + 1] = 250
    images = np.stack([images] * 3, axis=3) if colour else images
    return Folder(images, labels.astype(np.int64), images[:60], labels[:60].astype(np.int64), ("a", "b", "c"))


@pytest.fixture
def short_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classifiers that see few images."""
    for kind, training in TRAINING.items():
        monkeypatch.setitem(TRAINING, kind, replace(training, images_seen=500))


@pytest.mark.parametrize(("number", "rows"), [("1", 2), ("2", 5), ("4", 9), ("7", 4)])
def test_every_row_of_a_papers_table_can_be_planned_and_has_what_was_published(number: str, rows: int) -> None:
    found = list(table(number, "fashion"))
    assert len({json.dumps([asked.epsilon, dict(asked.options)]) for asked in found}) == len(found) == rows
    for asked in found:
        account = open_filter(asked.epsilon, 1e-5)
        options = {"preset": asked.preset, **asked.options}
        plan = build_plan("datalens", options, account, account.capacity_nano, FACTS)
        assert plan.facts["images_to_aggregate"] == 2250
        assert 0.2 < (asked.published or 0) < 0.71


def test_the_pages_tables_are_the_rows_of_their_file() -> None:
    rows, found = json.loads((RESEARCH / "datalens_loop.json").read_text())["rows"], []
    for number, shown in re.findall(r"<!-- rows: (\d) -->\n(.*?)<!-- end -->", LOOP_PAGE.read_text(), re.DOTALL):
        assert shown == as_page(number, rows)
        found.append(number)
    assert found == ["1", "2", "4", "7"]


def test_what_tables_vary_is_varied_around_the_preset() -> None:
    account = open_filter(1.0, 1e-5)
    plan = build_plan("datalens", {"preset": "published"}, account, account.capacity_nano, FACTS)
    config = plan.config_of(DataLensConfig)
    assert {name: getattr(config, name) for name in datalens_loop.AT_1} == datalens_loop.AT_1


@pytest.mark.usefixtures("short_judges")
def test_a_row_gains_seeds_until_it_has_as_many_as_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SETS, "fashion", bright_rows)  # type: ignore[misc]
    monkeypatch.setitem(PRESETS, "published", {**PRESETS["published"], "images": 30})  # type: ignore[misc]
    file = tmp_path / "rows.json"
    command = ["--json", str(file), "--epsilon", "1", "--samples", "60", "--preset", "published"]
    datalens_loop.main([*command, "--seeds", "1"])
    (first,) = json.loads(file.read_text())["rows"]
    assert (first["recipe"], first["preset"], first["epsilon"], first["seeds"]) == ("datalens", "published", 1.0, 1)
    assert (first["teachers"], first["images_aggregated"], first["published"]) == (60, 30, 0.6478)
    assert first["sd"] is None
    datalens_loop.main([*command, "--seeds", "2", "--option", "use_threshold=false"])
    datalens_loop.main([*command, "--seeds", "2"])
    datalens_loop.main([*command, "--seeds", "2", "--preset", "moments"])
    whole, ablated, moments = json.loads(file.read_text())["rows"]
    assert (whole["seeds"], ablated["seeds"]) == (2, 2)
    assert whole["accuracies"][0] == first["accuracy"]
    assert whole["accuracy"] == pytest.approx(sum(whole["accuracies"]) / 2)
    assert ablated["options"] == {"use_threshold": False}
    assert (moments["recipe"], moments["teachers"], moments["images_aggregated"]) == ("moments", 0, 0)
    assert capsys.readouterr().out.count("seed 0") == 3


@pytest.mark.slow
def test_a_training_is_timed_as_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETS, "fashion", bright_rows)  # type: ignore[misc]
    monkeypatch.setattr(job_seconds, "ASKED", (("moments", "default"), ("datalens", "kernel")))
    file = tmp_path / "rows.json"
    job_seconds.main(["--json", str(file), "--preset", "default"])
    document = json.loads(file.read_text())
    (row,) = document["rows"]
    assert (document["records"], row["recipe"], row["preset"]) == (240, "moments", "default")
    assert row["seconds"] > 0 < row["processor_seconds"]


def test_a_row_of_a_declared_symmetry_gains_secrets_and_the_file_keeps_what_else_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(symmetry.FOLDERS, "digits", bright_rows)  # type: ignore[misc]
    monkeypatch.setattr(generator_runs, "EPOCHS", 0)  # one
    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"chosen": [1, 2], "rows": []}))
    command = ["--json", str(file), "--datasets", "digits", "--epsilons", "10", "--samples", "60"]
    symmetry.main([*command, "--symmetries", "mirror", "--secrets", "1"])
    symmetry.main([*command, "--symmetries", "mirror", "none", "--secrets", "2"])
    document: dict[str, Any] = json.loads(file.read_text())
    assert document["chosen"] == [1, 2]
    rows = document["rows"]
    assert [(row["dataset"], row["records"], row["epsilon"], row["symmetry"]) for row in rows] == [
        ("digits", 240, 10.0, "mirror"),
        ("digits", 240, 10.0, "none"),
    ]
    for row in rows:
        each = [run["accuracy"] for run in row["runs"]]
        assert len(each) == 2
        assert row["accuracy"] == pytest.approx(sum(each) / 2)
        assert row["config"]["symmetry"] == row["symmetry"]
