"""Membership inference finds what an overfitted model gives away, and nothing where there is nothing."""

import math

import numpy as np
import pytest
import torch

from benchmarks import membership_inference
from benchmarks.membership_inference import _best_threshold, attack_by_loss, row_of
from benchmarks.small_data import Folder
from tests.models.checks import stream


def test_the_threshold_is_chosen_and_measured_on_different_records():
    """On pure chance the best threshold looks better than 1/2 on the records that chose it; on others it is not."""
    rates = []
    for seed in range(300):
        generator = stream(seed)
        members, others = torch.rand(2, 12, generator=generator)
        rates.append(attack_by_loss(members, others, generator=generator).success_rate)
    assert abs(sum(rates) / len(rates) - 0.5) < 4 * 0.5 / math.sqrt(12 * 300)


def test_separate_losses_are_told_apart_and_larger_losses_of_members_are_no_success():
    low, high = torch.arange(10.0), torch.arange(20.0, 45.0)  # sides of different sizes
    found = attack_by_loss(low, high, generator=stream(0))
    assert found.success_rate == 1
    assert found.standard_error == 0
    assert low.max() < found.threshold <= high.max()
    assert attack_by_loss(high, low, generator=stream(0)).success_rate <= 0.5


def test_the_threshold_is_the_best_of_all_on_the_half_that_chose_it():
    members, others = torch.rand(2, 30, generator=stream(5))
    others = others + 0.2
    losses = torch.cat([members, others])
    found = _best_threshold(members, others)

    def right(threshold: float) -> int:
        return int((members < threshold).sum() + (others >= threshold).sum())

    assert right(found) == max(right(float(loss)) for loss in losses) > 30


def test_too_few_losses_and_those_that_are_no_numbers_are_refused_and_infinite_ones_are_not():
    broken = torch.rand(10)
    broken[3] = torch.nan
    for members, why in ((torch.rand(3), "at least 4"), (broken, "not a number")):
        with pytest.raises(ValueError, match=why):
            attack_by_loss(members, torch.rand(10), generator=stream(0))
    found = attack_by_loss(torch.rand(10), torch.full((10,), torch.inf), generator=stream(0))
    assert found.success_rate == 1


def test_without_privacy_members_are_told_apart_and_with_it_they_are_not(monkeypatch):
    """On images and labels without any pattern: whatever is right about them was learned by heart."""
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (400, 28, 28)).astype(np.uint8), random.integers(0, 10, 400)
    folder = Folder(images[:200], labels[:200], images[200:], labels[200:], tuple("0123456789"))
    monkeypatch.setattr(membership_inference, "fashion", lambda: folder)
    monkeypatch.setitem(membership_inference.PRIVATE, "epochs", 2.0)
    monkeypatch.setitem(membership_inference.PRIVATE, "expected_batch", 50)
    bare = row_of(None, [0, 1], members=120, epochs=60)
    assert bare["accuracy_members"] > bare["accuracy_others"] + 0.4
    assert bare["success_rate"] - 4 * bare["standard_error"] > 0.6
    private = row_of(1.0, [0, 1], members=120, epochs=60)
    assert abs(private["success_rate"] - 0.5) < 4 * max(private["standard_error"], 0.02)
    assert private["accuracy_members"] < 0.3
