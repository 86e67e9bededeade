"""DataLens' tables of images: each method makes its rows, with the published figures next to them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from benchmarks import runs
from benchmarks.reproductions import datalens
from benchmarks.small_data import Folder, channels_first
from privacy.accounting.filter import open_filter
from privacy.plans.datalens import PRESETS, DataLensConfig
from privacy.plans.plan import PublicFacts
from privacy.plans.registry import build_plan
from tests.benchmarks.conftest import bright_rows, light_and_dark


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "published", {**PRESETS["published"], "images": 15})  # type: ignore[misc]
    monkeypatch.setitem(datalens.FOLDERS, "fashion-mnist", light_and_dark)
    for sizes in (datalens.SAMPLES_BY_BUDGET, datalens.SCORED):
        monkeypatch.setitem(sizes, "quick", 40)
    monkeypatch.setitem(datalens.MERF, "quick", (20, 2))
    for module in (datalens, runs):
        monkeypatch.setattr(module, "SAMPLES", 40)


@pytest.mark.slow
def test_table_1_runs_every_method_with_every_seed_beside_published_competitors() -> None:
    rows = datalens.table_1("fashion-mnist", "quick", seeds=(3, 4))
    by = {(row["method"], row["epsilon"]): row for row in rows}
    made = [by[method, epsilon] for method in datalens.METHODS for epsilon in (1.0, 10.0)]
    assert all(0 <= row["ours"] <= 1 and row["seeds"] == len(row["runs"]) == 2 for row in made)
    assert {row["ours"] for row in rows if row not in made} == {None}
    assert [by["PATE-GAN", epsilon]["published"] for epsilon in (1.0, 10.0)] == [0.4222, 0.6218]
    assert by["DC-GAN without privacy", None]["published"] == 0.8032
    assert by[datalens.PAPER, 1.0]["published"] == 0.6478


def test_algorithms_1_to_3_are_drawn_by_the_services_recipe() -> None:
    images, labels = datalens.drawn(datalens.PAPER, bright_rows(), 1.0, 0, "quick", 20)
    assert (images.shape, images.dtype) == ((20, 1, 8, 8), torch.uint8)
    assert labels.tolist() == [number % 3 for number in range(20)]
    assert images.float().std() > 1


def test_table_2_has_every_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datalens, "METHODS", (datalens.DEFAULT,))
    rows = datalens.table_2("fashion-mnist", "quick", seeds=(1, 2))
    ours = [row for row in rows if row["method"] == datalens.DEFAULT]
    assert [row["epsilon"] for row in ours] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert all(0 <= row["ours"] <= 1 and row["seeds"] == 2 for row in ours)
    published = {(row["method"], row["epsilon"]): row["published"] for row in rows}
    assert (published["G-PATE", 0.6], published[datalens.PAPER, 0.6]) == (0.4283, 0.4314)


@pytest.mark.parametrize(("table", "rows"), [("4", 9), ("7", 4)])
def test_tables_4_and_7_vary_options_around_the_preset(table: str, rows: int) -> None:
    facts, account = PublicFacts(tuple("abcdefghij"), 28, 28, 1, 60_000, "record"), open_filter(1.0, 1e-5)
    usual = build_plan("datalens", {"preset": "published"}, account, account.capacity_nano, facts)
    configs = [
        build_plan("datalens", {"preset": "published", **options}, account, account.capacity_nano, facts).config
        for options, *_ in datalens.VARIED[table]
    ]
    assert len({config.model_dump_json() for config in configs}) == rows
    config = usual.config_of(DataLensConfig)
    assert (config.top_k, config.teachers, config.beta) == (200, 4000, 0.7)


def test_a_varied_row_is_drawn_and_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(datalens.VARIED, "7", datalens.VARIED["7"][-1:])  # type: ignore[misc]
    (row,) = datalens.varied("7", "fashion-mnist", "quick")
    assert (row["setting"], row["published"], row["seeds"]) == ("use_threshold False", 0.5859, 1)
    assert 0 <= row["ours"] <= 1


def test_the_inception_score_counts_the_classes_that_are_told_apart() -> None:
    assert datalens.inception_score(torch.eye(4).repeat(3, 1).double()) == pytest.approx(4)
    assert datalens.inception_score(torch.full((5, 4), 0.25).double()) == pytest.approx(1)
    assert datalens.inception_score(torch.eye(4)[:1].repeat(9, 1).double()) == pytest.approx(1)


def test_scores_have_a_row_for_every_method_and_measure_beside_the_published_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = light_and_dark(False)
    larger = dataclasses.replace(few, test_images=few.images[:60], test_labels=few.labels[:60])
    monkeypatch.setitem(datalens.FOLDERS, "fashion-mnist", lambda: larger)
    monkeypatch.setattr(datalens, "METHODS", (datalens.PAPER,))
    monkeypatch.setattr(datalens, "_BATCH", 5)

    def real_ones(_method: str, folder: Folder, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return channels_first(folder.images), torch.from_numpy(folder.labels)

    monkeypatch.setattr(datalens, "drawn", real_ones)
    rows = datalens.scores("12", "fashion-mnist", "quick")
    by = {(row["method"], row["measure"], row["epsilon"]): row for row in rows}
    measured = {"IS", "FID", "precision", "recall"}
    measured |= {f"accuracy, {kind}" for kind in ("logistic regression", "mlp", "cnn")}
    assert {key for key, row in by.items() if row["ours"] is not None} == {
        (method, measure, epsilon)
        for method, epsilon in ((datalens.REAL, None), (datalens.PAPER, 1.0), (datalens.PAPER, 10.0))
        for measure in measured
    }
    assert 1.5 < by[datalens.REAL, "IS", None]["ours"] <= 2
    assert by[datalens.REAL, "FID", None]["published"] == 1.54
    assert by[datalens.PAPER, "FID", 1.0]["published"] == 194.98
    assert by["GS-WGAN", "FID", 10.0]["published"] == 135.47
    assert {row["measure"] for row in datalens.scores("3", "fashion-mnist", "quick")} == {"IS"}
