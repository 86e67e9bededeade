"""Trainings that are stopped or lost go on from their checkpoint, and noise never repeats."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from models.portable.generator import Generator
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.datalens.plan import VOTES
from privacy.plans.moments.warm_start import BY_CLASS, MEANS, POOLED
from privacy.plans.registry import plan_from_json
from tests.privacy.plans.test_golden_options import GOLDEN
from tests.workers.recipes.datalens.trainings import FACTS, Purse, Reports, plan, work_in
from workers.recipes.interface import Cancelled, TrainingData

STORED: list[dict[str, Any]] = GOLDEN["documents"]


@pytest.fixture
def noise_keys(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | int, ...]]:
    """The labels of each noise that is derived from now on."""
    keys: list[tuple[str | int, ...]] = []
    derive = SecureNoise.derive

    def watched(secret: bytes, *labels: str | int) -> SecureNoise:
        keys.append(labels)
        return derive(secret, *labels)

    monkeypatch.setattr(SecureNoise, "derive", watched)
    return keys


@pytest.mark.parametrize("stop_at", [("warm_start", 0), ("warm_start", 1), (VOTES, 1), (VOTES, 12)])
def test_a_cancellation_passes_through(stop_at: tuple[str, int], train: Callable[..., Generator]) -> None:
    purse = Purse()
    with pytest.raises(Cancelled):
        train(plan(), purse, progress=Reports(stop_at))
    assert bool(purse.paid) == (stop_at != ("warm_start", 0))


def test_an_interrupted_training_goes_on_and_pays_for_what_it_repeats(
    train: Callable[..., Generator], noise_keys: list[tuple[str | int, ...]]
) -> None:
    """Stopped in its seventh iteration: five are in the checkpoint, the sixth and seventh are released again."""
    first, second, reports = Purse(), Purse(), Reports()
    with pytest.raises(Cancelled):
        train(plan(), first, progress=Reports((VOTES, 7)))
    assert first.counts == [(MEANS, 1), (POOLED, 1), (BY_CLASS, 1), (VOTES, 25), (VOTES, 25)]
    train(plan(), second, attempt=2, progress=reports)
    assert second.counts == [(VOTES, 25), (VOTES, 10)]
    assert reports.told == [(VOTES, step, 12) for step in range(6, 13)]
    assert noise_keys == [
        *[("warm start", 1, name) for name in (MEANS, POOLED, BY_CLASS)],
        *[("votes", 1, VOTES, iteration) for iteration in range(7)],
        *[("votes", 2, VOTES, iteration) for iteration in range(5, 12)],
    ]


def test_no_noise_key_is_used_twice(train: Callable[..., Generator], noise_keys: list[tuple[str | int, ...]]) -> None:
    """Over three attempts, two of them cut short before the first checkpoint of the votes."""
    for attempt, stop_at in ((1, ("warm_start", 1)), (2, (VOTES, 3)), (3, None)):
        try:
            train(plan(), attempt=attempt, progress=Reports(stop_at))
        except Cancelled:
            assert stop_at is not None
    assert len(set(noise_keys)) == len(noise_keys)
    of_start = [labels[1:] for labels in noise_keys if labels[0] == "warm start"]
    assert of_start == [(1, MEANS), (2, POOLED), (2, BY_CLASS)]


def test_a_finished_training_is_read_from_its_checkpoint(train: Callable[..., Generator]) -> None:
    """Lost between the last iteration and the release: nothing is paid again, the same generator comes out."""
    made = plan(images=55, rounds=2)  # 11 iterations: the last one belongs to no full round
    first = train(made)
    purse = Purse()
    again = train(made, purse, attempt=2)
    assert purse.paid == []
    for name, tensor in first.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


def test_equal_secrets_give_equal_generators_and_other_attempts_others(
    train: Callable[..., Generator], tmp_path: Path
) -> None:
    one, two, three = (
        train(plan(), attempt=attempt, checkpoints=work_in(tmp_path / str(index)))
        for index, attempt in enumerate((1, 1, 2))
    )
    assert torch.equal(one.mean, two.mean)
    assert torch.equal(one.bend, two.bend)
    assert not torch.equal(one.mean, three.mean)


def test_a_plan_from_before_moments_had_their_name_trains_to_its_end_after_an_interruption(
    train: Callable[..., Generator], data: TrainingData
) -> None:
    """It was accepted as `datalens` without votes, and its job, hold and checkpoint still say so."""
    stored = next(each for each in STORED if each["recipe"] == "datalens" and each["facts"]["units_declared"] == 300)
    made, purse = plan_from_json(stored), Purse()
    few = dataclasses.replace(FACTS, records_declared=300)
    run = {"facts": few, "data": TrainingData(data.private_images[:300], data.private_labels[:300], FACTS.classes)}
    with pytest.raises(Cancelled):
        train(made, purse, progress=Reports(("warm_start", 1)), **run)
    assert train(made, purse, attempt=2, **run).factor.any()
    assert purse.counts == [(stage["name"], stage["event"]["count"]) for stage in stored["stages"]]
