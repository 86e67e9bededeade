"""DataLens' tables of images: each method makes its rows, with the published figures next to them."""

import pytest
import torch

from benchmarks import runs
from benchmarks.reproductions import datalens
from privacy.accounting.filter import open_filter
from privacy.plans.datalens import PRESETS, DataLensConfig
from privacy.plans.plan import PublicFacts
from privacy.plans.registry import build_plan
from tests.benchmarks.conftest import bright_rows, light_and_dark


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "published", {**PRESETS["published"], "images": 15})  # type: ignore[misc]
    monkeypatch.setitem(datalens.FOLDERS, "fashion-mnist", light_and_dark)
    monkeypatch.setitem(datalens.SAMPLES_BY_BUDGET, "quick", 40)
    monkeypatch.setitem(datalens.MERF, "quick", (20, 2))
    for module in (datalens, runs):
        monkeypatch.setattr(module, "SAMPLES", 40)


@pytest.mark.slow
def test_table_1_runs_every_method_with_every_seed_beside_published_competitors():
    rows = datalens.table_1("fashion-mnist", "quick", seeds=(3, 4))
    by = {(row["method"], row["epsilon"]): row for row in rows}
    made = [by[method, epsilon] for method in datalens.METHODS for epsilon in (1.0, 10.0)]
    assert all(0 <= row["ours"] <= 1 and row["seeds"] == len(row["runs"]) == 2 for row in made)
    assert {row["ours"] for row in rows if row not in made} == {None}
    assert [by["PATE-GAN", epsilon]["published"] for epsilon in (1.0, 10.0)] == [0.4222, 0.6218]
    assert by["DC-GAN without privacy", None]["published"] == 0.8032
    assert by[datalens.PAPER, 1.0]["published"] == 0.6478


def test_algorithms_1_to_3_are_drawn_by_the_services_recipe():
    images, labels = datalens.drawn(datalens.PAPER, bright_rows(), 1.0, 0, "quick", 20)
    assert (images.shape, images.dtype) == ((20, 1, 8, 8), torch.uint8)
    assert labels.tolist() == [number % 3 for number in range(20)]
    assert images.float().std() > 1


def test_table_2_has_every_epsilon(monkeypatch):
    monkeypatch.setattr(datalens, "METHODS", (datalens.DEFAULT,))
    rows = datalens.table_2("fashion-mnist", "quick", seeds=(1,))
    ours = [row for row in rows if row["method"] == datalens.DEFAULT]
    assert [row["epsilon"] for row in ours] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert all(0 <= row["ours"] <= 1 and row["seeds"] == 1 for row in ours)
    published = {(row["method"], row["epsilon"]): row["published"] for row in rows}
    assert (published["G-PATE", 0.6], published[datalens.PAPER, 0.6]) == (0.4283, 0.4314)


@pytest.mark.parametrize(("table", "rows"), [("4", 9), ("7", 4)])
def test_tables_4_and_7_vary_options_around_the_preset(table, rows):
    facts, account = PublicFacts(tuple("abcdefghij"), 28, 28, 1, 60_000, "record"), open_filter(1.0, 1e-5)
    usual = build_plan("datalens", {"preset": "published"}, account, account.capacity_nano, facts)
    configs = [
        build_plan("datalens", {"preset": "published", **options}, account, account.capacity_nano, facts).config
        for options, *_ in datalens.VARIED[table]
    ]
    assert len({config.model_dump_json() for config in configs}) == rows
    config = usual.config_of(DataLensConfig)
    assert (config.top_k, config.teachers, config.beta) == (200, 4000, 0.7)


def test_a_varied_row_is_drawn_and_tested(monkeypatch):
    monkeypatch.setitem(datalens.VARIED, "7", datalens.VARIED["7"][-1:])  # type: ignore[misc]
    (row,) = datalens.varied("7", "fashion-mnist", "quick")
    assert (row["setting"], row["published"], row["seeds"]) == ("use_threshold False", 0.5859, 1)
    assert 0 <= row["ours"] <= 1
