"""DataLens' Tables 5 to 7 and Figure 2: same tries and budget for all, a loop that learns, and rows that add up."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.budgets import NoLedger
from benchmarks.reproductions.aggregators.gaussian import ClippedSum
from benchmarks.reproductions.aggregators.loop import learn, linear_teachers, nearest
from benchmarks.reproductions.papers import aggregator_costs as costs
from benchmarks.reproductions.papers import aggregator_set_ups as places
from benchmarks.reproductions.papers import aggregators
from benchmarks.reproductions.papers.aggregator_set_ups import TRIES, Setting, SetUp, chosen, competitors, place, votes
from benchmarks.small_data import Folder
from privacy.accounting.filter import open_filter, release_nano
from privacy.aggregation import topagg

SECRET = bytes(range(32))


def folder() -> Folder:
    """Two classes, bright above dark and dark above bright; 10,000 images are private, 400 for tests."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 10_400)
    top = np.where(labels == 0, 200, 40)[:, None, None] + rng.integers(-40, 40, (10_400, 4, 8))
    images = np.concatenate([top, 240 - top], axis=1).astype(np.uint8)
    return Folder(images[:10_000], labels[:10_000], images[10_000:], labels[10_000:], ("up", "down"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> SetUp:
    """A set-up of small pictures, few tries and few seeds."""
    place.cache_clear()
    monkeypatch.setitem(places.FOLDERS, "fashion-mnist", folder)
    monkeypatch.setattr(places, "TRIES", 2)
    monkeypatch.setitem(aggregators._SEEDS, "quick", 2)
    monkeypatch.setitem(aggregators._SAMPLES, "quick", 40)
    set_up = SetUp("fashion-mnist", 1000, 60, iterations=3)
    monkeypatch.setattr(aggregators, "set_ups", lambda _dataset, _budget: [set_up])
    return set_up


def test_the_loop_finds_the_classes_means_and_pays_for_every_image() -> None:
    set_, paid = folder(), []

    class Ledger(NoLedger):
        def charge(self, event: Any, stage: str) -> None:
            del stage
            paid.append(event)

    rows = torch.from_numpy(set_.images.reshape(-1, 64)).float() / 255
    teachers = linear_teachers(rows, set_.images, set_.labels, 2, 500, SECRET)
    capacity = open_filter(10.0, 1e-5).capacity_nano
    of = ClippedSum(teachers=500, dimension=64, stddev=4.0, clip=3.0).affording(capacity, 20)
    learned = learn(of, teachers, torch.full((2, 64), 0.5), 10, 1.0, Ledger(), SECRET)
    means = torch.stack([rows[torch.from_numpy(set_.labels) == label].mean(0) for label in (0, 1)])
    assert nearest(learned.images, means, np.array([0, 1])) == 1.0
    assert (learned.images - means).norm() < 0.5 * (means - 0.5).norm()
    assert learned.cosine > 0.1
    assert [event.count for event in paid] == [2] * 10
    assert sum(release_nano(event) * event.count for event in paid) <= capacity


def test_a_record_is_one_teacher_s_and_teachers_without_one_abstain() -> None:
    set_ = folder().cut(30)
    rows = torch.from_numpy(set_.images.reshape(-1, 64)).float()
    teachers = linear_teachers(rows, set_.images, set_.labels, 2, 40, SECRET)
    fewer = linear_teachers(rows[1:], set_.images[1:], set_.labels[1:], 2, 40, SECRET)
    changed = (teachers.gradients(torch.zeros(2, 64)) != fewer.gradients(torch.zeros(2, 64))).any(dim=2)
    assert int(changed.sum()) == 1
    assert torch.equal(teachers.gradients(torch.ones(2, 64)).any(dim=2), teachers.private_there[:, :, 0])
    assert not teachers.private_there.all()


def test_every_method_has_as_many_tries_or_its_whole_grid() -> None:
    for d in (100, 784):
        found = {name: len(tries) for name, tries in competitors(d).items()}
        assert set(found.values()) == {TRIES}
        plain = votes(d, top_k=False, stochastic=False, threshold=False)
        assert len(plain) == len({setting.gamma for setting in plain}) == 8
        assert {setting.parameters["k"] for setting in plain} == {d}
        everything = votes(d, top_k=True, stochastic=True, threshold=True)
        assert {setting.parameters["k"] for setting in everything} == {d // 4, d // 2}


def test_settings_are_chosen_on_training_images_that_were_held_out(small: SetUp) -> None:
    held_out, tested = place(small, held_out=True), place(small, held_out=False)
    whole = folder()
    private = {image.tobytes() for image in whole.images}
    assert len(held_out.folder.labels) == len(tested.folder.labels) == 1000
    assert all(image.tobytes() in private for image in held_out.folder.test_images)
    assert np.array_equal(tested.folder.test_labels, whole.test_labels)
    good, bad = (Setting(ClippedSum, {"clip": 8.0}, gamma) for gamma in (1.0, -1.0))
    assert chosen(dataclasses.replace(small, epsilon=1000.0), [bad, good]) is good  # hardly any noise


def test_tables_5_and_7_have_their_rows(small: SetUp) -> None:
    rows = aggregators.table_5("fashion-mnist", "quick")
    assert {row["method"] for row in rows} == set(competitors(64))
    assert [row["measure"] for row in rows[:5]] == [
        "nearest", "logistic_regression", "cosine", "ms an image", "nearest without noise",
    ]  # fmt: skip
    published = {row["method"]: row["published"] for row in rows if row["measure"] == "logistic_regression"}
    assert published == {"TopAgg": 0.6478, "D2P-Fed": 0.1667, "FetchSGD": 0.6387, "no compression": None}
    rows = aggregators.table_7("fashion-mnist", "quick")
    cells = [row for row in rows if row["measure"] == "nearest"]
    assert len(cells) == 8
    with_top_k = [row["ours"] for row in cells if row["method"].startswith("top-k")]
    without = [row["ours"] for row in cells if not row["method"].startswith("top-k")]
    effect = next(row for row in rows if row["method"] == "effect of top-k")
    assert effect["ours"] == pytest.approx(statistics.mean(with_top_k) - statistics.mean(without))
    error = math.sqrt(sum(statistics.variance(row["runs"]) / 2 for row in cells)) / 4
    assert effect["sd"] == pytest.approx(error)


def test_the_components_are_switched_as_they_are_named() -> None:
    g = torch.tensor([[0.1, -0.2, 0.3, 0.4]])
    for top_k, stochastic, threshold in ((True, False, False), (False, True, True), (False, False, True)):
        setting = votes(4, top_k, stochastic, threshold)[0]
        config = setting.aggregator(teachers=1, dimension=4, stddev=4.0, **setting.parameters).config  # type: ignore[attr-defined]
        assert (config.k < 4, config.stochastic_sign, config.threshold) == (top_k, stochastic, threshold)
        drawn = [topagg.topk_sto_sign_grad(g, config, seed)[0].tolist() for seed in range(50)]
        assert (len({tuple(row) for row in drawn}) > 1) == stochastic


def test_the_data_dependent_bound_and_directions_have_their_rows(small: SetUp, monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.randn(30, 10, 784, generator=torch.Generator().manual_seed(0)) + 1.0
    monkeypatch.setattr(costs, "_gradients", lambda _dataset: {"linear teachers": g})
    monkeypatch.setattr(costs, "_TEACHERS", 30)
    monkeypatch.setattr(costs, "_SHARED_BY", (1,))
    rows = costs.figure_2("fashion-mnist", "quick")
    assert len(rows) == 6
    assert all(row["ours"] < 0 for row in rows)
    rows = costs.directions("fashion-mnist", "quick")
    cosines = {row["method"]: row["ours"] for row in rows if row["shared_by"] == 1}
    assert all(-1 <= row["ours"] <= 1 for row in rows)
    assert set(cosines) == {"TopAgg", "TopAgg without threshold", "D2P-Fed", "FetchSGD", "no compression"}
    monkeypatch.setattr(costs, "_TEACHERS", 3)
    times = costs.table_6("fashion-mnist", "quick")
    assert all(row["ours"] > 0 for row in times)
