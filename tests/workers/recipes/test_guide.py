"""The guide of `moments`: what is paid for, what crashes and early ends leave, and where images are moved."""

import dataclasses
from typing import Any

import pytest
import torch

from models.portable.guided import GuidedGenerator
from models.released import load_released, save_released
from privacy.errors import InvalidParameter
from privacy.plans.moments import GUIDE_SIDE_MAX, MomentsConfig
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.private_steps import STEPS
from privacy.plans.warm_start import MEANS, POOLED
from tests.workers.small_trainings import (
    FACTS,
    Memory,
    Purse,
    digits,
    plan_of,
    small_plan,
    stop_at,
    train,
    weights,
)
from workers.recipes.interface import Cancelled

LABELS = torch.arange(40) % 10
FEW = dataclasses.replace(FACTS, records_declared=300)


def guided_plan(**options: Any) -> Plan:
    return small_plan("moments", FEW, guide=True, **options)


@pytest.fixture(scope="module")
def trained() -> GuidedGenerator:
    return train(small_plan("moments", guide=True), digits())


def drawn(generator: Any, seed: int = 0) -> torch.Tensor:
    return generator.sample(LABELS, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("side", [7, GUIDE_SIDE_MAX + 4])
def test_sizes_that_the_guide_does_not_see_are_refused(side):
    facts = PublicFacts(FACTS.classes, side, side, 1, 60_000, "record")
    with pytest.raises(InvalidParameter, match="leave the guide out"):
        plan_of("moments", {"guide": True}, facts)


@pytest.mark.parametrize(("stage", "step"), [("warm_start", 2), (STEPS, 13)])
def test_a_training_that_was_cut_off_goes_on_to_the_same_generator(stage, step):
    plan, folder, purse = guided_plan(evaluation_samples=100), Memory(), Purse()
    with pytest.raises(Cancelled):
        train(plan, digits(300), FEW, checkpoints=folder, budget=purse, progress=stop_at(step, stage))
    back = train(plan, digits(300), FEW, checkpoints=folder, budget=purse)
    assert torch.equal(weights(back), weights(train(plan, digits(300), FEW)))
    assert {name: purse.releases(name) for name in (MEANS, POOLED)} == {MEANS: 1, POOLED: 1}
    planned = plan.stage(STEPS)
    assert purse.releases(STEPS) == planned.event.count + (stage == STEPS)


def test_nothing_is_paid_again_once_all_is_released():
    plan, folder = guided_plan(), Memory()
    whole = train(plan, digits(300), FEW, checkpoints=folder)
    again = train(plan, digits(300), FEW, checkpoints=folder, budget=Purse(0))
    assert torch.equal(weights(again), weights(whole))


def test_without_its_guide_a_generator_draws_what_the_moments_draw():
    made = train(guided_plan(), digits(300), FEW, budget=Purse(closed=(STEPS,)))
    assert made.config.guide_steps == 0
    assert torch.equal(drawn(made), drawn(made.first))


def test_images_are_moved_towards_what_the_guide_finds_in_their_class(trained):
    before, after = drawn(trained.first), drawn(trained)
    with torch.no_grad():
        away = [(trained.logits(images) - trained.wanted(LABELS)).norm(dim=1) for images in (before, after)]
    assert (away[1] < away[0]).double().mean() > 0.9
    assert away[1].mean() < 0.75 * away[0].mean()  # much of what would move a digit's black is cut at 0
    assert 0 < (after - before).flatten(1).norm(dim=1).max() < before.flatten(1).norm(dim=1).mean()
    assert after.min() >= 0
    assert after.max() <= 1


def test_a_step_is_as_long_as_would_do_were_the_distance_straight(trained):
    images = 0.25 + 0.5 * drawn(trained.first)  # nothing is cut at 0 or 1
    one = GuidedGenerator(type(trained.config)(**{**vars(trained.config), "guide_steps": 1}))
    one.load_state_dict(trained.state_dict())
    x = images.clone().requires_grad_()
    distance = (trained.logits(x) - trained.wanted(LABELS)).square().sum(1) / 2
    (gradient,) = torch.autograd.grad(distance.sum(), x)
    expected = images - (distance / gradient.square().sum((1, 2, 3)))[:, None, None, None] * gradient
    assert torch.allclose(one._moved(images, LABELS), expected.clamp(0, 1).detach(), atol=1e-5)


def test_its_images_are_drawn_in_inference_mode_too_and_repeat(trained):
    first = drawn(trained)
    with torch.inference_mode():
        assert torch.equal(drawn(trained), first)
    assert not torch.equal(drawn(trained, seed=1), first)


def test_its_warm_start_is_what_the_moments_are(trained, tmp_path):
    save_released(trained, tmp_path)
    assert torch.equal(drawn(load_released(tmp_path)), drawn(trained))
    assert torch.equal(drawn(load_released(tmp_path, which="warm_start")), drawn(trained.first))
    assert MomentsConfig(guide=True).changes_its_start
