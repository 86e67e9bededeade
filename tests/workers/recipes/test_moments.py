"""Moments whose budget ends or whose process dies, and their guide: what it moves, and what is drawn without it."""

from typing import Any

import pytest
import torch

from models.portable.guided import GuidedGenerator
from models.released import load_released, save_released
from privacy.errors import BudgetExceeded, InvalidParameter
from privacy.plans.moments import GUIDE_SIDE_MAX, MomentsConfig
from privacy.plans.plan import Plan, PlanBudget, PublicFacts
from privacy.plans.private_steps import STEPS
from privacy.plans.warm_start import MEANS, POOLED
from tests.workers.small_trainings import FACTS, Memory, Purse, digits, plan_of, small_plan, train
from workers.recipes import warm_start
from workers.recipes.interface import load_checkpoint


def plan(**options: Any) -> Plan:
    shares = {"mean_fraction": 0.1, "pooled_covariance_fraction": 0.45, "class_covariance_fraction": 0.45}
    return plan_of("moments", {"components": 10, "frequencies": 6, "texture": False, **shares, **options})


@pytest.mark.parametrize(("closed", "kept"), [(MEANS, set()), (POOLED, {MEANS})])
def test_a_start_that_is_not_paid_releases_nothing_more(closed, kept):
    memory = Memory()
    with pytest.raises(BudgetExceeded):
        train(plan(), digits(), budget=Purse(closed=(closed,)), checkpoints=memory)
    assert set(load_checkpoint(memory).get("start", {})) == kept


class Lost(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("lost", range(3))
def test_a_process_lost_between_payment_and_checkpoint_costs_quality_and_not_the_job(lost, monkeypatch):
    """What was paid and not kept is paid again; what the hold then lacks is left out at the end."""
    made, memory = plan(texture=lost == 2), Memory()
    hold, saved, save = PlanBudget(made.stages), 0, warm_start.save_checkpoint

    def dies(*args: Any, **kwargs: Any) -> None:
        nonlocal saved
        if saved == lost:
            raise Lost
        saved += 1
        save(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(warm_start, "save_checkpoint", dies)
        with pytest.raises(Lost):
            train(made, digits(), budget=hold, checkpoints=memory)
    generator = train(made, digits(), budget=hold, checkpoints=memory, attempt=2)
    assert hold.releases[made.stages[lost].name] >= made.stages[lost].event.count
    assert torch.isfinite(generator.sample(torch.arange(10), torch.Generator().manual_seed(0))).all()
    assert generator.factor.any()


# --- the guide --------------------------------------------------------------------------------------------------------

LABELS = torch.arange(40) % 10


@pytest.fixture(scope="module")
def trained() -> GuidedGenerator:
    return train(small_plan("moments", guide=True), digits())


def drawn(generator: Any, seed: int = 0) -> torch.Tensor:
    return generator.sample(LABELS, torch.Generator().manual_seed(seed))


def away(generator: GuidedGenerator, images: torch.Tensor) -> torch.Tensor:
    """How far the guide's logits are from those that are wanted, (n, classes)."""
    wanted = generator.config.guide_logit * (torch.nn.functional.one_hot(LABELS, 10) - 1 / 10)
    return generator.logits(images) - wanted


@pytest.mark.parametrize("side", [7, GUIDE_SIDE_MAX + 4])
def test_sizes_that_the_guide_does_not_see_are_refused(side):
    facts = PublicFacts(FACTS.classes, side, side, 1, 60_000, "record")
    with pytest.raises(InvalidParameter, match="omit the guide"):
        plan_of("moments", {"guide": True}, facts)


def test_without_its_guide_a_generator_draws_what_the_moments_draw():
    made = train(small_plan("moments", guide=True), digits(300), budget=Purse(closed=(STEPS,)))
    assert made.config.guide_steps == 0
    assert torch.equal(drawn(made), drawn(made.first))


def test_images_are_moved_towards_what_the_guide_finds_in_their_class(trained):
    before, after = drawn(trained.first), drawn(trained)
    with torch.no_grad():
        first, last = (away(trained, images).norm(dim=1) for images in (before, after))
    assert (last < first).double().mean() > 0.9
    assert last.mean() < 0.75 * first.mean()  # much of what would move a digit's black is cut at 0
    assert 0 < (after - before).flatten(1).norm(dim=1).max() < before.flatten(1).norm(dim=1).mean()
    assert after.min() >= 0
    assert after.max() <= 1


def test_a_step_is_as_long_as_would_do_were_the_distance_straight(trained):
    images = 0.25 + 0.5 * drawn(trained.first)  # nothing is cut at 0 or 1
    one = GuidedGenerator(type(trained.config)(**{**vars(trained.config), "guide_steps": 1}))
    one.load_state_dict(trained.state_dict())
    x = images.clone().requires_grad_()
    distance = away(trained, x).square().sum(1) / 2
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
