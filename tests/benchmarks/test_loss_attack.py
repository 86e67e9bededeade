"""Membership inference finds what an overfitted model gives away, and nothing where there is nothing."""

import math

import pytest
import torch

from benchmarks.membership_inference import _best_threshold, attack_by_loss
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


@pytest.mark.parametrize("sizes", [(3, 10), (10, 3), (0, 0)])
def test_too_few_records_are_refused(sizes):
    with pytest.raises(ValueError, match="at least 4"):
        attack_by_loss(torch.rand(sizes[0]), torch.rand(sizes[1]), generator=stream(0))


def test_losses_that_are_no_numbers_are_refused_and_infinite_ones_are_not():
    broken = torch.rand(10)
    broken[3] = torch.nan
    with pytest.raises(ValueError, match="not a number"):
        attack_by_loss(broken, torch.rand(10), generator=stream(0))
    found = attack_by_loss(torch.rand(10), torch.full((10,), torch.inf), generator=stream(0))
    assert found.success_rate == 1
