"""The production step: neighbours' sums differ by what one unit adds, to the last bit, whatever the places."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.float_safety import CONTESTANTS, Keeper, collection, distance, step_sums
from privacy.errors import InvalidParameter
from privacy.gradients.dpsgd import DpSgd
from privacy.mechanisms.noise import SecureNoise
from privacy.mechanisms.partition import NOBODY
from privacy.plans.private_steps import FreezeSchedule, StepsConfig
from tests.privacy.gradients.test_arithmetic import Uneven
from tests.workers.recipes.conftest import toy_steps
from workers.recipes.records import pass_size

CPU = torch.device("cpu")


@pytest.mark.parametrize("contestant", CONTESTANTS)
def test_sums_of_neighbours_are_one_clip_apart_to_the_last_bit(contestant):
    """The unit more stands before all others, which move to other places."""
    units = collection("alike", 700)
    first = step_sums(contestant, 1.0, units)
    moved = distance(first, step_sums(contestant, 1.0, np.insert(units, 0, 1023)))
    assert 0.95 * 2.0**30 < moved <= 2.0**30


def test_sixty_thousand_units_do_not_drift():
    """Running float32 sums of these were 1.41 clips apart: a unit more turned the rounding of each micro-batch."""
    grain = 2.0**-8  # of a float32 between 32,768 and 65,536
    length = (126 + 0.49 * grain) / 128
    base = np.where(np.arange(60_032) // 128 % 2 == 0, length, length + 0.02 * grain)

    def summed(lengths: np.ndarray[Any, Any]) -> int:
        values = torch.from_numpy(np.append(lengths, 0.0)).float()[:, None]
        keeper = Keeper()
        made = toy_steps(
            nn.Linear(1, 1, bias=False),
            len(lengths),
            len(lengths),
            curator=keeper,
            losses=lambda outputs, _targets: outputs[:, 0],
            rows=lambda drawn, _coins: (values[torch.from_numpy(drawn)], values[torch.from_numpy(drawn)]),
            anchor_rows=lambda _stream: (values[:3], values[:3]),
        )
        made.step()
        return int(keeper.kept)

    assert 0.999 * 2**30 < summed(np.insert(base, 0, 1.0)) - summed(base) <= 2**30


def test_a_unit_more_adds_what_it_adds_alone():
    alone = step_sums("dpsgd", 1.0, np.array([1023]))
    units = collection("random", 500)
    first, second = step_sums("dpsgd", 1.0, units), step_sums("dpsgd", 1.0, np.insert(units, 250, 1023))
    assert torch.equal(second - first, alone)


def test_passes_have_one_size_are_filled_up_and_empty_places_add_nothing():
    seen: list[np.ndarray[Any, Any]] = []
    made = toy_steps(nn.Linear(16, 16), 100, 40.0, probability=0.4)
    rows = made.task.rows

    def watched(drawn: Any, coins: SecureNoise) -> Any:
        seen.append(drawn)
        return rows(drawn, coins)

    made.task = dataclasses.replace(made.task, rows=watched)
    made.step()
    assert {len(units) for units in seen} == {64}
    drawn = np.concatenate(seen)
    assert NOBODY in drawn
    everybody = drawn[drawn != NOBODY]
    assert len(set(everybody.tolist())) == len(everybody)


def test_rate_and_weights_decay_as_planned():
    """Gradients of zero and hardly any noise: what is left of the weights is what decay leaves."""
    model = nn.Linear(16, 16, bias=False)
    start = model.weight.detach().clone()
    options = {"learning_rate": 0.5, "momentum": 0.0, "weight_decay": 0.1, "rate_drops": 1, "rate_decay": 0.2}
    made = toy_steps(model, 10, 10.0, count=4, options=options, losses=lambda outputs, _: 0 * outputs.sum(dim=1))
    made.estimator.noise_multiplier = 1e-6
    made.make()
    torch.testing.assert_close(model.weight.detach(), start * 0.95**2 * 0.99**2, atol=1e-5, rtol=0)


@pytest.mark.parametrize("period", [1, 3])
def test_a_mask_stays_for_its_period(period):
    made = toy_steps(nn.Linear(16, 16), 10, 10.0)
    schedule = FreezeSchedule(0.5, cooling_steps=3, period=period)
    event = dataclasses.replace(made.event, count=6)
    made = dataclasses.replace(made, config=StepsConfig(freeze="random"), event=event, schedule=schedule)
    masks = []
    for _ in range(6):
        made.step()
        masks.append(made.estimator.active.clone())
    changes = [step for step in range(1, 6) if not torch.equal(masks[step], masks[step - 1])]
    assert changes == ([1, 2, 3, 4, 5] if period == 1 else [3])
    assert int((~masks[-1]).sum()) == round(0.5 * masks[-1].numel())


def test_a_machine_whose_places_are_not_alike_gets_passes_whose_are():
    for limit, size in ((128, 128), (64, 64), (63, 32), (16, 16), (1, 1), (0, 128)):  # from place 0 on, all are alike
        made = toy_steps(Uneven(limit), 100, 100.0)
        made.step()
        assert made._size == size


def test_the_size_of_a_pass_follows_from_public_numbers():
    def size(
        expected: float, repeats: int = 1, device: str = "cpu", width: int = 16, conv: bool = False, inputs: int = 10**6
    ) -> int:
        shapes = {"weight": torch.Size([width, width, 1, 1] if conv else [width, width])}
        estimator = DpSgd(shapes, clip=1.0, noise_multiplier=1.0, expected_batch=expected)
        return pass_size(estimator, repeats, inputs, torch.device(device))

    assert [size(expected) for expected in (0.001, 1, 10, 60, 256, 512, 10**6)] == [1, 4, 16, 64, 64, 64, 64]
    assert [size(expected, inputs=784) for expected in (0.001, 1, 10, 60, 256, 10**6)] == [1, 4, 16, 64, 288, 320]
    assert size(10**6, inputs=16) == 512
    assert [size(256, repeats) for repeats in (2, 16, 64, 1000)] == [32, 4, 1, 1]
    assert [size(expected, 1, "cuda") for expected in (256, 512, 10**6)] == [288, 544, 4096]
    assert [size(256, width=width, conv=True) for width in (256, 512, 2048, 2**13)] == [64, 16, 8, 1]
    assert [size(256, width=width) for width in (256, 2**13)] == [64, 1]
    assert [size(10**6, device="cuda", width=width) for width in (512, 2048)] == [256, 16]


def test_more_units_than_add_up_exactly_are_refused():
    with pytest.raises(InvalidParameter, match="units"):
        toy_steps(nn.Linear(16, 16), 1, 2.0**33)
