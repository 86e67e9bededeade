"""The whole recipe on 1,797 digits: with and without each of its parts, at the edges, and what its images are worth."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.portable.generator import Generator
from models.portable.textured import TexturedGenerator
from models.released import load_released, save_released
from privacy.accounting.filter import open_filter
from privacy.plans.datalens.options import DataLensConfig
from privacy.plans.datalens.plan import VOTES
from privacy.plans.moments.warm_start import BY_CLASS, MEANS, POOLED
from privacy.plans.registry import build_plan
from tests.workers.recipes.datalens.trainings import FACTS, SECRET, Purse, plan, start_alone, work_in
from tests.workers.small_trainings import TINY_DATALENS as TINY
from workers.evaluation.utility import train_and_test
from workers.recipes.datalens import loop as datalens
from workers.recipes.datalens.teacher_stage import start_teacher_stage
from workers.recipes.interface import TrainingData, TrustedCurator


def test_with_texture_the_same_releases_make_a_generator_that_renders(train: Callable[..., Generator]) -> None:
    purse = Purse()
    generator = train(start_alone(texture=True), purse)
    assert isinstance(generator, TexturedGenerator)
    assert purse.counts == [(MEANS, 1), (POOLED, 1), (BY_CLASS, 1)]
    assert generator.mean.shape == (10, 64 + 64)  # 8 x 8 pixels, and 16 numbers of each of 2 x 2 cells
    images = generator.sample(torch.arange(10), torch.Generator().manual_seed(0))
    assert images.shape == (10, 1, 8, 8)
    assert 0 <= images.min() < images.max() <= 1


@pytest.mark.parametrize(
    "options",
    [
        {"use_top_k": False},
        {"use_stochastic_sign": False},
        {"use_threshold": True},
        {"teacher_hidden": 0},
        {"features": 0},
        {"components": 1, "top_k": 1},
        {"teachers": 1},
        {"teachers": 449},
        {"rounds": 1000},
        {"rounds": 1},
        {"images": None, "stddev": 400.0},
        {"preset": "votes_only"},
        {"preset": "votes_only_detailed", "vote_share": 0.0},
    ],
    ids=str,
)
def test_ablations_and_edges_run_and_pay_their_plan(options: dict[str, Any], train: Callable[..., Generator]) -> None:
    made, purse = plan(**options), Purse()
    generator = train(made, purse)
    assert purse.releases_paid() == {stage.name: stage.event.count for stage in made.stages}
    assert torch.isfinite(generator.bend).all()


@pytest.mark.parametrize(
    "options", [{}, {"teacher_hidden": 0}, {"components": 1024}, {"warm_start": False, "moment_votes": True}], ids=str
)
def test_the_teachers_have_as_many_parameters_as_their_plan_counted(options: dict[str, Any]) -> None:
    made = plan(**options)
    config = made.config_of(DataLensConfig)
    teachers = start_teacher_stage(
        datalens.stage_config(made, FACTS), TrustedCurator(budget=Purse(), secret=SECRET)
    ).ensemble
    numbers = sum(value.numel() for value in teachers.state_dict().values())
    assert numbers == config.teachers * config.parameters_per_teacher(FACTS)


def test_votes_alone_start_from_the_prior(train: Callable[..., Generator]) -> None:
    made, purse = plan(warm_start=False), Purse()
    generator = train(made, purse)
    assert purse.counts == [(VOTES, 25), (VOTES, 25), (VOTES, 10)]
    assert (generator.mean == 0.25).all()


def test_the_warm_start_alone_asks_no_teacher(train: Callable[..., Generator]) -> None:
    made, purse = start_alone(), Purse()
    generator = train(made, purse)
    assert purse.counts == [(MEANS, 1), (POOLED, 1), (BY_CLASS, 1)]
    assert not generator.bend.any()


def test_the_warm_start_can_be_released_without_the_votes(train: Callable[..., Generator], tmp_path: Path) -> None:
    generator = train(plan(), checkpoints=work_in(tmp_path / "both"))
    save_released(generator, tmp_path)
    warm = load_released(tmp_path, which="warm_start")
    alone = train(plan(), Purse(closed=(VOTES,)), checkpoints=work_in(tmp_path / "alone"))
    for name, tensor in alone.state_dict().items():
        assert torch.equal(warm.state_dict()[name], tensor)


def test_an_empty_class_is_trained_on(train: Callable[..., Generator], data: TrainingData) -> None:
    nines = data.private_labels < 9
    some = TrainingData(data.private_images[nines], data.private_labels[nines], FACTS.classes)
    assert torch.isfinite(train(plan(), data=some).bend).all()


def test_colour_is_trained_on(train: Callable[..., Generator], data: TrainingData) -> None:
    facts = dataclasses.replace(FACTS, channels=3)
    tinted = np.stack([data.private_images, data.private_images // 2, 255 - data.private_images], axis=3)
    generator = train(plan(facts), facts=facts, data=TrainingData(tinted, data.private_labels, FACTS.classes))
    assert generator.sample(torch.arange(10), torch.Generator().manual_seed(0)).shape == (10, 3, 8, 8)


@pytest.mark.parametrize("left", [1, 5])
def test_hardly_any_records_still_end_in_a_generator(
    left: int, train: Callable[..., Generator], data: TrainingData
) -> None:
    """Fewer records than were declared are no error: it would tell how many there are."""
    few = TrainingData(data.private_images[:left], data.private_labels[:left], FACTS.classes)
    assert torch.isfinite(train(plan(), data=few).mean).all()


def test_the_images_are_worth_something(train: Callable[..., Generator], data: TrainingData) -> None:
    """At epsilon 20 a linear classifier of synthetic digits reads most of the real ones."""
    rich = open_filter(20.0, 1e-5)
    made = build_plan("datalens", TINY, rich, rich.capacity_nano, FACTS)
    labels = torch.arange(4000) % 10
    images = train(made).sample(labels, torch.Generator().manual_seed(0))
    real = torch.from_numpy(data.private_images)[:, None]
    truth = torch.from_numpy(data.private_labels)
    utility = train_and_test("logistic_regression", images, labels, real, truth, classes=10, seed=0, epochs=10)
    assert utility.accuracy > 0.75
