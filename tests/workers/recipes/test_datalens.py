"""Algorithm 1 and DataLens as published: what is paid and released, what one record can change, and resuming."""

import dataclasses
import functools
import os
from typing import Any

import numpy as np
import pytest
import torch

from models.closed_form_teachers import KernelTeachers, LinearTeachers
from models.convolutional_teachers import ConvolutionalConfig, ConvolutionalTeachers
from models.portable.conditional_dcgan import ConditionalDcganConfig
from models.shards import Shards
from privacy.errors import InvalidParameter
from privacy.plans.datalens import DataLensConfig, TopAggConfig
from privacy.plans.plan import Plan, PublicFacts
from tests.workers import small_trainings as trainings
from workers.recipes import datalens as loop
from workers.recipes.datalens import (
    Release,
    TeacherStageConfig,
    TeacherStageState,
    run_teacher_stage,
    uniform_labels,
)
from workers.recipes.interface import Cancelled, NothingUseful, TrustedCurator

SECRET = b"0123456789abcdef0123456789abcdef"
INPUTS, CLASSES, TEACHERS = 9, 3, 20


def config(**fields: Any) -> TeacherStageConfig:
    aggregation = TopAggConfig(k=4, c=1e-5, stddev=3.0, beta=0.5, teachers=TEACHERS, dimension=INPUTS)
    cfg = TeacherStageConfig(aggregation, CLASSES, images=6, iterations=5, charge_iterations=2)
    return dataclasses.replace(cfg, **fields)


def aggregation(**fields: Any) -> TeacherStageConfig:
    return config(aggregation=dataclasses.replace(config().aggregation, **fields))


@pytest.fixture
def shards() -> Shards:
    return trainings.noise_shards(TEACHERS)


def start(shards: Shards, seed: int = 0) -> TeacherStageState:
    shape = ConvolutionalConfig(CLASSES, 1, 3, 3, features=2, hidden=4, learning_rate=1e-2)
    return TeacherStageState(ConvolutionalTeachers(shape, shards, generator=torch.Generator().manual_seed(seed)))


def run(
    cfg: TeacherStageConfig, shards: Shards, state: TeacherStageState | None = None, keep: Any = None, **given: Any
) -> tuple[list[Release], TeacherStageState]:
    pupil, state = trainings.Pupil(), state or start(shards)
    curator = TrustedCurator(**{"budget": trainings.Purse(), "secret": SECRET, **given})
    run_teacher_stage(cfg, shards, pupil, state, curator, keep or (lambda _: None))
    return pupil.lessons, state


def test_it_pays_one_release_per_image_in_groups(shards):
    purse, cfg = trainings.Purse(), config()
    releases, state = run(cfg, shards, budget=purse)
    assert [(stage, event.count) for stage, event in purse.paid] == [("votes", 12), ("votes", 12), ("votes", 6)]
    assert sum(event.count for event in purse.events) == cfg.images * cfg.iterations == 30
    assert {event.sensitivity for event in purse.events} == {cfg.aggregation.sensitivity}
    assert len(releases) == state.iteration == 5


def test_a_release_follows_the_algorithm(shards):
    cfg = config(gamma=0.25)
    for release in run(cfg, shards)[0]:
        assert release.released_inputs.shape == release.released_sums.shape == (6, INPUTS)
        assert sorted(release.released_labels.tolist()) == [0, 0, 1, 1, 2, 2]
        quorum = cfg.aggregation.beta * TEACHERS
        expected = (release.released_sums >= quorum).float() - (release.released_sums <= -quorum).float()
        assert torch.equal(release.released_direction, expected)
        assert torch.equal(release.released_targets, release.released_inputs + 0.25 * expected)


def test_teachers_point_towards_their_records(shards):
    cfg = aggregation(stddev=2.1)
    releases, _ = run(cfg, shards, state=TeacherStageState(LinearTeachers(shards, CLASSES)))
    assert releases[-1].released_sums.mean() > 0


@pytest.mark.parametrize(
    ("fields", "most"),
    [({}, 4), ({"top_k": False}, INPUTS), ({"stochastic_sign": False}, 4), ({"threshold": False}, 4)],
)
def test_ablations_run_and_are_paid_as_they_are(fields, most, shards):
    purse, cfg = trainings.Purse(), aggregation(**fields)
    releases, _ = run(cfg, shards, budget=purse)
    assert purse.events[0].sensitivity == pytest.approx(2 * most**0.5)
    if not cfg.aggregation.threshold:
        torch.testing.assert_close(releases[0].released_direction, releases[0].released_sums / TEACHERS)


@pytest.mark.parametrize("left_out", range(0, 120, 17))
def test_a_removed_record_changes_each_vote_sum_by_at_most_the_sensitivity(left_out, silent):
    """Without noise, for equal proposals: one teacher's votes change, so at most 2 sqrt(k) in norm per image."""
    owner = np.random.default_rng(1).integers(0, TEACHERS, 120)
    records = torch.randn(120, INPUTS, generator=torch.Generator().manual_seed(0)) + 1.0
    sums = []
    for present in (np.ones(120, dtype=bool), np.arange(120) != left_out):
        members = [np.flatnonzero((owner == i) & present) for i in range(TEACHERS)]
        releases, _ = run(config(), Shards(records, torch.arange(120) % CLASSES, members))
        sums.append(torch.stack([release.released_sums for release in releases]))
    change = (sums[0] - sums[1]).norm(dim=2)  # (iterations, images)
    assert change.max() <= config().aggregation.sensitivity
    assert change.max() > 0


def test_empty_shards_do_not_vote(silent):
    nobody = Shards(torch.zeros(1, INPUTS), torch.zeros(1, dtype=torch.int64), [np.empty(0, np.int64)] * TEACHERS)
    assert not any(release.released_sums.any() for release in run(config(), nobody)[0])


def test_a_resumed_stage_pays_for_the_rest_with_fresh_noise(shards):
    saved: list[dict[str, Any]] = []

    def keep(state: TeacherStageState) -> None:
        saved.append({"iteration": state.iteration, **state.tensors()})

    with pytest.raises(Cancelled):
        run(config(), shards, progress=trainings.stop_at(4, "votes"), keep=keep)
    assert [s["iteration"] for s in saved] == [2, 4]
    purse = trainings.Purse()
    state = start(shards, seed=2)
    state.restore(saved[0])
    releases, state = run(config(), shards, budget=purse, state=state, attempt=2)
    assert [event.count for event in purse.events] == [12, 6]  # iterations 2-3 again, then 4
    assert (len(releases), state.iteration) == (3, 5)
    assert not torch.equal(releases[0].released_sums, run(config(), shards)[0][2].released_sums)


def test_labels_are_spread_evenly():
    labels = uniform_labels(10, 4, torch.Generator().manual_seed(0))
    assert sorted(labels.bincount(minlength=4).tolist()) == [2, 2, 3, 3]


def test_misfits_are_refused(shards):
    with pytest.raises(InvalidParameter, match="shards"):
        run(aggregation(teachers=TEACHERS + 1), shards)


# --- DataLens as published --------------------------------------------------------------------------------------------


SMALL: dict[str, Any] = {"preset": "published", "teachers": 40, "images": 120, "teacher_features": 2}
FASHION = PublicFacts(tuple("0123456789"), 28, 28, 1, 60_000, "record")


def small(**options: Any) -> Plan:
    return trainings.plan_of("datalens", {**SMALL, **options})


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator of a few units: the published one takes ten times as long, and nothing here is about its shape."""
    generate(monkeypatch, features=8, dense=64)


def generate(monkeypatch: pytest.MonkeyPatch, **shape: int) -> None:
    monkeypatch.setattr(loop, "ConditionalDcganConfig", functools.partial(ConditionalDcganConfig, **shape))


def test_four_thousand_published_teachers_can_be_planned_and_say_what_they_hold():
    options = {"preset": "published", "teacher_network": "convolutional"}
    plan = trainings.plan_of("datalens", options, FASHION)
    assert plan.config_of(DataLensConfig).teachers == 4000
    assert any("need 27 GB" in note for note in plan.notes)  # 4,000 times 424,647 numbers
    assert not any("GB" in note for note in trainings.plan_of("datalens", {"preset": "published"}, FASHION).notes)
    colour = dataclasses.replace(FASHION, height=64, width=64, channels=3)
    with pytest.raises(InvalidParameter, match="teachers of this size would fit"):
        trainings.plan_of("datalens", options, colour)


@pytest.mark.parametrize("options", [{"teacher_network": "convolutional"}, {"teacher_network": "linear"}], ids=str)
def test_teachers_that_the_machine_cannot_hold_are_refused_before_anything_is_charged(options, monkeypatch):
    purse = trainings.Purse()
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1}.__getitem__)
    with pytest.raises(MemoryError):
        trainings.train(small(**options), trainings.digits(), budget=purse)
    assert not purse.events


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ({"features": 8, "dense": 64}, {"beta": 0.1}),
        ({"features": 32, "dense": 256}, {"preset": "kernel", "generator_learning_rate": 3e-3}),
    ],
    ids=["linear", "kernel"],
)
def test_without_noise_teachers_teach_the_classes(shape, options, silent, monkeypatch):
    generate(monkeypatch, **shape)
    generator = trainings.train(small(images=1100, step=0.05, **options), trainings.digits())
    assert trainings.share_nearest_to_own_class(generator) > 0.5


def test_kernel_teachers_see_as_many_images_of_each_class(monkeypatch):
    seen, original = [], KernelTeachers.update

    def watched(made: KernelTeachers, real: Any, fake: torch.Tensor, labels: torch.Tensor) -> None:
        seen.append(torch.bincount(labels).tolist())
        original(made, real, fake, labels)

    monkeypatch.setattr(KernelTeachers, "update", watched)
    trainings.train(small(preset="kernel", images=30), trainings.digits())
    assert seen == [[50] * 10] * 2  # once in each iteration, the first one too


@pytest.mark.parametrize("preset", ["published", "kernel"])
def test_it_ends_early_with_what_was_paid_and_goes_on_from_a_checkpoint(preset):
    train = functools.partial(trainings.train, small(preset=preset), trainings.digits())
    assert not torch.equal(trainings.weights(train(budget=trainings.Purse(80))), trainings.weights(train()))
    with pytest.raises(NothingUseful):
        train(budget=trainings.Purse(10))
    memory, purse = trainings.Memory(), trainings.Purse()
    with pytest.raises(Cancelled):
        train(checkpoints=memory, progress=trainings.stop_at(7, "votes"))
    train(checkpoints=memory, budget=purse, attempt=2)
    assert [event.count for event in purse.events] == [45]  # the second group again, in which it was cut off
    left = train(checkpoints=memory, budget=trainings.Purse(0), attempt=3)
    assert torch.isfinite(trainings.weights(left)).all()


class Grey:
    released: Release

    def propose(self, labels: torch.Tensor) -> torch.Tensor:
        return torch.full((len(labels), 9), 0.2)

    def learn(self, release: Release) -> None:
        self.released = release


@pytest.mark.parametrize("made", [LinearTeachers, functools.partial(KernelTeachers, bandwidth=10.0)])
def test_a_neighbour_attains_the_sensitivity(made, silent):
    """A white record beside a black one turns each of its teacher's k votes from down to up: exactly 2 sqrt(k)."""
    aggregation = TopAggConfig(k=4, c=1e-5, stddev=3.0, beta=0.5, teachers=2, dimension=9)
    cfg = TeacherStageConfig(aggregation, classes=1, images=1, iterations=1, teacher_steps=1, first_steps=1)
    records, labels = torch.tensor([0, 255], dtype=torch.uint8)[:, None].expand(-1, 9), torch.zeros(2).long()
    sums = []
    for own in ([0, 1], [0]):
        shards = Shards(records, labels, [np.array(own), np.empty(0, np.int64)])
        state = TeacherStageState(made(shards, 1))
        student = Grey()
        run_teacher_stage(cfg, shards, student, state, TrustedCurator(budget=trainings.Purse(), secret=bytes(32)))
        sums.append(student.released.released_sums)
    assert float((sums[0] - sums[1]).norm()) == pytest.approx(2 * 4**0.5)
    assert aggregation.sensitivity == pytest.approx(2 * 4**0.5)
