"""DataLens' Table 1: each method makes its rows, with what was published beside them."""

import pytest
import torch

from benchmarks import generator_runs
from benchmarks.reproductions import datalens
from privacy.plans.datalens import PRESETS
from tests.benchmarks.reproductions.test_orders import pictures
from tests.benchmarks.test_datalens_loop import bright_rows


@pytest.fixture(autouse=True)
def _one_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "published", {**PRESETS["published"], "images": 15})  # type: ignore[misc]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(datalens.FOLDERS, "fashion-mnist", lambda: pictures(True))
    monkeypatch.setitem(datalens._SAMPLES, "quick", 40)
    monkeypatch.setitem(datalens._MERF, "quick", (20, 2))
    for module in (datalens, generator_runs):
        monkeypatch.setattr(module, "SAMPLES", 40)


@pytest.mark.slow
def test_table_1_runs_every_method_with_every_seed_beside_published_competitors(small: None) -> None:
    rows = datalens.table_1("fashion-mnist", "quick", seeds=(3, 4))
    by = {(row["method"], row["epsilon"]): row for row in rows}
    run = [by[method, epsilon] for method in datalens.METHODS for epsilon in (1.0, 10.0)]
    assert all(0 <= row["ours"] <= 1 and row["seeds"] == len(row["runs"]) == 2 for row in run)
    assert {row["ours"] for row in rows if row not in run} == {None}
    assert [by["PATE-GAN", epsilon]["published"] for epsilon in (1.0, 10.0)] == [0.4222, 0.6218]
    assert by[datalens.DC_GAN, None]["published"] == 0.8032
    assert by[datalens.PAPER, 1.0]["published"] == 0.6478


def test_algorithms_1_to_3_are_drawn_by_the_services_recipe() -> None:
    made = datalens.drawn(datalens.PAPER, bright_rows(), 1.0, 0, "quick", 20)
    assert (made[0].shape, made[0].dtype) == ((20, 1, 8, 8), torch.uint8)
    assert made[1].tolist() == [number % 3 for number in range(20)]
    assert made[0].float().std() > 1
    assert "recipe datalens, preset published" in datalens.setting_of(datalens.PAPER, 20)


def test_table_2_has_every_epsilon(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datalens, "METHODS", (datalens.DEFAULT,))
    rows = datalens.table_2("fashion-mnist", "quick", seeds=(1, 2))
    ours = [row for row in rows if row["method"] == datalens.DEFAULT]
    assert [row["epsilon"] for row in ours] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert all(0 <= row["ours"] <= 1 and row["seeds"] == 2 for row in ours)
    published = {(row["method"], row["epsilon"]): row["published"] for row in rows}
    assert (published["G-PATE", 0.6], published[datalens.PAPER, 0.6]) == (0.4283, 0.4314)
