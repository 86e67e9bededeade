"""The rungs of DataLens' loop: networks of the published shape, prices of what is private, and rows for all."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from benchmarks.reproductions.papers import datalens, dense_networks, loop, loop_rows, rungs
from benchmarks.reproductions.papers.published_networks import LATENT, PublishedGenerator, PublishedTeachers
from benchmarks.small_data import Folder
from workers.recipes.datalens.teacher_stage import Release


def folder() -> Folder:
    """Ten classes, each of which has two bright rows of its own."""
    rng = np.random.default_rng(0)
    labels = np.arange(660, dtype=np.int64) % 10
    images = rng.integers(0, 60, (660, 28, 28))
    for at, label in enumerate(labels):
        images[at, 2 * label : 2 * label + 2] += 180
    images = images.astype(np.uint8)
    return Folder(images[:600], labels[:600], images[600:], labels[600:], tuple("abcdefghij"))


def test_the_published_networks_have_their_shapes() -> None:
    generator = PublishedGenerator(0)
    drawn = generator(torch.rand(20, LATENT) * 2 - 1, torch.arange(20) % 10).detach()
    assert drawn.shape == (20, 784)
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) <= 1
    teachers = PublishedTeachers(torch.rand(2, 15, 784), torch.zeros(2, 15, dtype=torch.int64), 0)
    weights = sum(w.numel() for w in (*teachers._weights, *teachers._biases, *teachers._scales)) / 2
    assert weights == pytest.approx(555_000, rel=0.01)


def test_a_published_teacher_learns_from_its_own_records_alone() -> None:
    stream = torch.Generator().manual_seed(0)
    images, labels = torch.rand(2, 15, 784, generator=stream), (torch.arange(30) % 10).view(2, 15)
    shown, of = torch.rand(15, 784, generator=stream), torch.arange(15) % 10
    found = []
    for second in (images[1], 1 - images[1]):
        teachers = PublishedTeachers(torch.stack([images[0], second]), labels, 0)
        teachers.learn(shown, of, 2)
        found.append(teachers.gradients(shown, of))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-7)
    assert not torch.allclose(found[0][1], found[1][1], rtol=1e-2, atol=0)


def test_a_teachers_gradient_makes_an_image_look_more_real_to_it() -> None:
    stream = torch.Generator().manual_seed(0)
    teachers = PublishedTeachers(torch.rand(3, 15, 784, generator=stream), torch.arange(45).view(3, 15) % 10, 0)
    shown, of = torch.rand(15, 784, generator=stream), torch.arange(15) % 10
    teachers.learn(shown, of, 5)
    step = teachers.gradients(shown, of)
    moved = shown + 1e-2 * step / step.norm(dim=2, keepdim=True)
    before = teachers.logits(shown[:, None].expand(-1, 3, -1), of[:, None].expand(-1, 3))
    after = teachers.logits(moved.transpose(0, 1), of[:, None].expand(-1, 3))
    said = [torch.nn.functional.softplus(-logits).mean(dim=0) for logits in (before, after)]
    assert bool((said[1] < said[0]).all())


def test_only_what_is_private_has_an_epsilon_and_the_papers_is_its_own_formula() -> None:
    rung = rungs.Rung()
    assert rung.epsilon == pytest.approx(0.738, abs=0.001)
    assert loop_rows.papers_epsilon(1301, 200, 5000.0) == pytest.approx(1, abs=1e-3)
    for change in ({"noise": False}, {"count": 40}, {"release": rungs.MEAN}, {"teachers": rungs.PUBLISHED}):
        assert dataclasses.replace(rung, **change).epsilon is None
    for _, of, real in loop_rows.REAL.values():
        assert real.epsilon is not None
        assert real.epsilon <= of
    assert dataclasses.replace(rung, iterations=150).epsilon > 1 > dataclasses.replace(rung, iterations=149).epsilon


def test_fewer_teachers_get_as_much_noise_each() -> None:
    few, all_ = rungs.Rung(count=40).aggregation, rungs.Rung().aggregation
    assert few.stddev / few.teachers == all_.stddev / all_.teachers == 1.25


def test_without_noise_the_loop_moves_images_towards_their_classes() -> None:
    rung = rungs.Rung(count=60, release=rungs.MEAN, noise=False, iterations=20)
    labels = torch.arange(200) % 10
    drawn = loop.train(rung, folder(), 0).sample(labels).view(-1, 784).float()
    means = torch.stack([drawn[labels == label].mean(dim=0).view(28, 28) for label in range(10)])
    own = torch.stack([means[label, 2 * label : 2 * label + 2].mean() for label in range(10)])
    others = torch.stack([means[label - 5, 2 * label : 2 * label + 2].mean() for label in range(10)])
    assert bool((own > others).all())


@pytest.mark.parametrize("teachers", [rungs.PUBLISHED, rungs.DENSE, rungs.LINEAR])
@pytest.mark.parametrize("generator", [rungs.PUBLISHED, rungs.DENSE, rungs.DCGAN])
def test_every_rung_trains(teachers: str, generator: str) -> None:
    rung = rungs.Rung(teachers, 4, generator, iterations=2)
    assert loop.train(rung, folder(), 0).sample(torch.arange(10)).shape == (10, 1, 28, 28)


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("release", [rungs.CLIPPED, rungs.G_PATE, rungs.GS_WGAN, rungs.SIGNS, rungs.TOP_K])
def test_every_release_is_a_direction_and_noise_changes_it(release: str, noise: bool) -> None:
    rung = rungs.Rung(count=4, release=release, noise=noise, iterations=2)
    gradients = torch.randn(4, 3, 784, generator=torch.Generator().manual_seed(0))
    found = [
        rungs.released(rung, gradients[rung.asked(1)], torch.Generator().manual_seed(0), secret, 1)
        for secret in (b"a" * 32, b"b" * 32)
    ]
    assert found[0].shape == (3, 784)
    assert bool(found[0].isfinite().all())
    assert torch.equal(found[0], found[1]) is not noise


def test_a_competitor_has_the_noise_that_its_images_cost_at_epsilon_1() -> None:
    clipped = rungs.Rung(release=rungs.CLIPPED)
    in_turn = rungs.Rung(release=rungs.GS_WGAN)
    assert clipped.epsilon == in_turn.epsilon == 1
    once = dataclasses.replace(in_turn, iterations=4000)
    noise = [rung.competitor.stddev for rung in (clipped, in_turn, once)]  # 86 iterations, one visit, one visit
    assert noise[0] == pytest.approx(noise[1] * 86**0.5, rel=1e-6)
    assert noise[1] == noise[2] < dataclasses.replace(in_turn, iterations=4001).competitor.stddev
    assert dataclasses.replace(in_turn, budget=10.0).competitor.stddev < noise[1]


def test_one_teacher_is_asked_at_a_time_and_each_in_turn() -> None:
    rung = rungs.Rung(count=4, release=rungs.GS_WGAN)
    assert [list(range(4))[rung.asked(iteration)] for iteration in range(5)] == [[0], [1], [2], [3], [0]]
    assert list(range(4))[rungs.Rung(count=4).asked(3)] == [0, 1, 2, 3]


def test_figures_have_a_row_for_each_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loop_rows.FOLDERS, "fashion-mnist", folder)
    monkeypatch.setattr(loop_rows, "_HELD_OUT", 60)
    for name, value in (("_JUDGED_BY", 20), ("_TESTED_BY", 20), ("_EPOCHS", 1), ("_CEILING", (2,))):
        monkeypatch.setattr(loop_rows, name, value)
    monkeypatch.setattr(loop_rows, "rungs", lambda _: [rungs.Rung(count=4, iterations=1)])
    g_pate = rungs.Rung(count=40, iterations=1, release=rungs.G_PATE)
    real = {"one": (datalens.PAPER, 1.0, rungs.Rung(count=40, iterations=1)), "other": (datalens.G_PATE, 1.0, g_pate)}
    monkeypatch.setattr(loop_rows, "REAL", real)
    rows = loop_rows.figure_ablation("fashion-mnist", "quick")
    assert [row["method"] for row in rows] == ["one discriminator", rungs.Rung(count=4).described()]
    found = loop_rows.figure_loop("fashion-mnist", "quick")
    assert [(row["published"], row["seeds"]) for row in found] == [(0.6478, 3), (0.5567, 3)]


def test_the_dense_student_moves_towards_its_targets() -> None:
    torch.manual_seed(0)
    student, labels, gaps = dense_networks.PixelStudent(3), torch.arange(30) % 3, list[float]()
    for _ in range(40):
        images = student.propose(labels).detach()
        assert images.shape == (30, 784)
        assert 0 <= images.min() <= images.max() <= 1
        gaps.append(float((1 - images).square().mean()))
        direction = torch.ones_like(images)
        student.learn([Release(images, labels, direction * 100, direction, images + direction)])
    assert gaps[-1] < 0.2 * gaps[0]


def test_dense_networks_are_run_at_both_epsilons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loop_rows.FOLDERS, "fashion-mnist", folder)
    monkeypatch.setattr(loop_rows, "_TESTED_BY", 20)
    monkeypatch.setattr(dense_networks, "TEACHERS", 40)
    monkeypatch.setattr(dense_networks, "affordable_releases", lambda _event, _nano: 60)
    rows = loop_rows.figure_dense("fashion-mnist", "quick")
    assert [(row["epsilon"], row["published"], row["seeds"]) for row in rows] == [(1.0, 0.6478, 1), (10.0, 0.7061, 1)]
    assert all(0 <= row["ours"] <= 1 and "60 images" in row["setting"] for row in rows)


def test_balanced_shards_have_every_class_and_no_record_twice() -> None:
    labels = torch.from_numpy(folder().labels)
    dealt = loop._dealt(labels, 6, True, 0)
    assert dealt.shape == (6, 15)
    assert len(dealt.unique()) == 90
    assert all(len(labels[own].unique()) == 10 for own in dealt)
    assert len(loop._dealt(labels, 6, False, 0).unique()) == 90


def test_the_ladder_takes_one_thing_away_after_the_other() -> None:
    found = loop_rows.rungs("quick")
    assert len(set(found)) == len(found)
    quiet = [rung.release for rung in found if rung.teachers == rungs.LINEAR and not rung.noise and rung.beta == 0.7]
    assert quiet[:4] == [rungs.MEAN, rungs.SIGNS, rungs.TOP_K, rungs.THRESHOLD]
