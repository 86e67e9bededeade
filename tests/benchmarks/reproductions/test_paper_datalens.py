"""DataLens' Table 1: each method makes its rows, with what was published beside them."""

import pytest
import torch

from benchmarks import generator_runs
from benchmarks.reproductions.competitors.dc_gan import DcGan
from benchmarks.reproductions.competitors.dp_gan import DpGan
from benchmarks.reproductions.competitors.g_pate import GPate
from benchmarks.reproductions.competitors.gs_wgan import GsWgan
from benchmarks.reproductions.competitors.pate_gan import PateGan
from benchmarks.reproductions.papers import datalens, small_epsilons
from privacy.plans.datalens.plan import PRESETS
from tests.benchmarks.reproductions.test_orders import pictures
from tests.benchmarks.reproductions.test_paper_loop import folder

TINY = {
    "DC-GAN without privacy": DcGan(steps=2, batch=4, features=4, latent=4),
    "DP-GAN": DpGan(steps=2, critic_steps=1, batch=4, features=4, latent=4),
    "PATE-GAN": PateGan(teachers=5, iterations=2, batch=4, hidden=2, features=4, latent=4),
    "G-PATE": GPate(teachers=5, iterations=2, batch=4, hidden=2, features=4, latent=4),
    "GS-WGAN": GsWgan(critics=2, visits=1, batch=4, warm_up=1, critic_steps=1, hidden=2, features=4, latent=4),
}


@pytest.fixture(autouse=True)
def _one_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "published", {**PRESETS["published"], "images": 15})  # type: ignore[misc]


@pytest.mark.slow
def test_every_method_is_run_with_every_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(datalens.FOLDERS, "fashion-mnist", lambda: pictures(True))
    monkeypatch.setitem(datalens._SAMPLES, "quick", 40)
    monkeypatch.setitem(datalens._MERF, "quick", (20, 2))
    monkeypatch.setitem(datalens._SIZES, "quick", TINY)
    rows = datalens.table_1("fashion-mnist", "quick", seeds=(3, 4))
    names = ("moments, our default", datalens.PAPER, "DP-MERF", *TINY)
    assert [(row["method"], row["epsilon"]) for row in rows] == [
        (name, epsilon) for name in names for epsilon in (1, 10)
    ]
    assert all(0 <= row["ours"] <= 1 and row["seeds"] == len(row["runs"]) == 2 for row in rows)
    by = {(row["method"], row["epsilon"]): row for row in rows}
    assert by["G-PATE", 1.0]["published"] == 0.5567
    assert "teachers 5, iterations 2, batch 4" in by["G-PATE", 1.0]["setting"]
    ceiling = [by["DC-GAN without privacy", epsilon] for epsilon in (1.0, 10.0)]
    assert ceiling[0]["ours"] == ceiling[1]["ours"]
    assert [by["PATE-GAN", epsilon]["published"] for epsilon in (1.0, 10.0)] == [0.4222, 0.6218]


def test_full_has_sizes_for_every_competitor_too() -> None:
    assert set(datalens._SIZES["full"]) == set(datalens._SIZES["quick"]) == set(TINY)


def test_algorithms_1_to_3_are_drawn_by_the_services_recipe() -> None:
    made = datalens.drawn(datalens.PAPER, folder(), 1.0, 0, "quick", 20)
    assert (made[0].shape, made[0].dtype) == ((20, 1, 28, 28), torch.uint8)
    assert made[1].tolist() == [*range(10)] * 2
    assert made[0].float().std() > 1
    assert "recipe datalens, preset published" in datalens.setting_of(datalens.PAPER, "quick", 20)


def test_small_epsilons_have_every_private_method_beside_what_was_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(datalens.FOLDERS, "fashion-mnist", lambda: pictures(True))
    for module in (small_epsilons, generator_runs):
        monkeypatch.setattr(module, "SAMPLES", 40)
    monkeypatch.setitem(datalens._MERF, "quick", (20, 2))
    monkeypatch.setitem(datalens._SIZES, "quick", TINY)
    rows = small_epsilons.table_2("fashion-mnist", "quick", seeds=(1, 2), methods=("moments, our default", "G-PATE"))
    assert [row["epsilon"] for row in rows] == [0.2, 0.4, 0.6, 0.8, 1.0] * 2
    assert all(0 <= row["ours"] <= 1 and row["seeds"] == 2 for row in rows)
    assert {(row["method"], row["epsilon"]): row["published"] for row in rows}["G-PATE", 0.6] == 0.4283
    assert small_epsilons.PUBLISHED["fashion-mnist"][datalens.PAPER][2] == 0.4314
