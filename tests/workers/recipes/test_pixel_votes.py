"""DataLens as published, a job from plan to generator: who learns, what is paid, and what one record changes."""

import dataclasses
import functools
import os
from typing import Any

import numpy as np
import pytest
import torch

from models.closed_form_teachers import KernelTeachers, LinearTeachers
from models.portable.conditional_dcgan import ConditionalDcganConfig
from models.shards import Shards
from privacy.aggregation.topagg_config import TopAggConfig
from privacy.errors import InvalidParameter
from privacy.plans.datalens import DataLensConfig
from privacy.plans.plan import Plan, PublicFacts
from tests.workers.small_trainings import (
    Memory,
    Purse,
    digits,
    plan_of,
    share_nearest_to_own_class,
    stop_at,
    train,
    weights,
)
from workers.recipes import datalens as loop
from workers.recipes.interface import Cancelled, NothingUseful, TrustedCurator
from workers.recipes.teacher_stage import Release, TeacherStageConfig, TeacherStageState, run_teacher_stage

SMALL: dict[str, Any] = {"preset": "published", "teachers": 40, "images": 120, "teacher_features": 2}
FASHION = PublicFacts(tuple("0123456789"), 28, 28, 1, 60_000, "record")


def small(**options: Any) -> Plan:
    return plan_of("datalens", {**SMALL, **options})


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator of a few units: the published one takes ten times as long, and nothing here is about its shape."""
    generate(monkeypatch, features=8, dense=64)


def generate(monkeypatch: pytest.MonkeyPatch, **shape: int) -> None:
    monkeypatch.setattr(loop, "ConditionalDcganConfig", functools.partial(ConditionalDcganConfig, **shape))


def test_four_thousand_published_teachers_can_be_planned_and_say_what_they_hold():
    options = {"preset": "published", "teacher_network": "convolutional"}
    plan = plan_of("datalens", options, FASHION)
    assert plan.config_of(DataLensConfig).teachers == 4000
    assert any("need 27 GB" in note for note in plan.notes)  # 4,000 times 424,647 numbers
    assert not any("GB" in note for note in plan_of("datalens", {"preset": "published"}, FASHION).notes)
    colour = dataclasses.replace(FASHION, height=64, width=64, channels=3)
    with pytest.raises(InvalidParameter, match="teachers would fit"):
        plan_of("datalens", options, colour)


@pytest.mark.parametrize("options", [{"teacher_network": "convolutional"}, {"teacher_network": "linear"}], ids=str)
def test_teachers_that_the_machine_cannot_hold_are_refused_before_anything_is_charged(options, monkeypatch):
    purse = Purse()
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1}.__getitem__)
    with pytest.raises(MemoryError):
        train(small(**options), digits(), budget=purse)
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
    generator = train(small(images=1100, step=0.05, **options), digits())
    assert share_nearest_to_own_class(generator) > 0.5


def test_kernel_teachers_see_as_many_images_of_each_class(monkeypatch):
    seen, original = [], KernelTeachers.update

    def watched(made: KernelTeachers, real: Any, fake: torch.Tensor, labels: torch.Tensor) -> None:
        seen.append(torch.bincount(labels).tolist())
        original(made, real, fake, labels)

    monkeypatch.setattr(KernelTeachers, "update", watched)
    train(small(preset="kernel", images=30), digits())
    assert seen == [[50] * 10] * 2  # once in each iteration, the first one too


@pytest.mark.parametrize("preset", ["published", "kernel"])
def test_it_ends_early_with_what_was_paid_and_goes_on_from_a_checkpoint(preset):
    paid = train(small(preset=preset), digits(), budget=Purse(80))
    whole = train(small(preset=preset), digits())
    assert not torch.equal(weights(paid), weights(whole))
    with pytest.raises(NothingUseful):
        train(small(preset=preset), digits(), budget=Purse(10))
    memory, purse = Memory(), Purse()
    with pytest.raises(Cancelled):
        train(small(preset=preset), digits(), checkpoints=memory, progress=stop_at(7, "votes"))
    train(small(preset=preset), digits(), checkpoints=memory, budget=purse, attempt=2)
    assert [event.count for event in purse.events] == [45]  # the second group again, in which it was cut off
    left = train(small(preset=preset), digits(), checkpoints=memory, budget=Purse(0), attempt=3)
    assert torch.isfinite(weights(left)).all()


class Grey:
    """Proposes images of one dark grey, and keeps what was released about them."""

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
    records, labels = (
        torch.tensor([0, 255], dtype=torch.uint8)[:, None].expand(-1, 9),
        torch.zeros(2, dtype=torch.int64),
    )
    sums = []
    for own in ([0, 1], [0]):
        shards = Shards(records, labels, [np.array(own), np.empty(0, np.int64)])
        state = TeacherStageState(made(shards, 1))
        student = Grey()
        run_teacher_stage(cfg, shards, student, state, TrustedCurator(budget=Purse(), secret=bytes(32)))
        sums.append(student.released.released_sums)
    assert float((sums[0] - sums[1]).norm()) == pytest.approx(2 * 4**0.5)
    assert aggregation.sensitivity == pytest.approx(2 * 4**0.5)
