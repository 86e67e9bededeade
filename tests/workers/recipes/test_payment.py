"""What class moments pay: the plan in its order, and once for what was kept."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from models.portable.generator import Generator
from privacy.accounting.events import GaussianEvent
from privacy.errors import BudgetExceeded
from privacy.plans.plan import Plan
from privacy.plans.warm_start import BY_CLASS, MEANS, POOLED
from tests.workers import small_trainings
from tests.workers.small_trainings import ACCOUNT, Memory, Purse, digits, plan_of
from workers.recipes import moments as loop
from workers.recipes.interface import load_checkpoint

Train = Callable[..., Generator]
STATISTICS = (MEANS, POOLED, BY_CLASS)


def plan(**options: Any) -> Plan:
    small = {
        "components": 10,
        "frequencies": 6,
        "mean_fraction": 0.1,
        "pooled_covariance_fraction": 0.45,
        "class_covariance_fraction": 0.45,
    }
    return plan_of("moments", {**small, "texture": False, **options})


@pytest.fixture
def train() -> Train:
    """Train on digits; the trainings of a test share its checkpoint, unless they are given another."""
    memory = Memory()

    def trained(made: Plan, purse: Purse | None = None, **changes: Any) -> Generator:
        return small_trainings.train(made, digits(), **{"budget": purse or Purse(), "checkpoints": memory, **changes})

    return trained


def test_the_charges_are_the_plan_in_order(train):
    made, purse, reports = plan(), Purse(), list[tuple[str, int, int]]()
    generator = train(made, purse, progress=lambda *, stage, step, steps: reports.append((stage, step, steps)))
    assert purse.paid == [(stage.name, stage.event) for stage in made.stages]
    assert purse.counts == [(name, 1) for name in STATISTICS]
    assert sum(ACCOUNT.cost_nano(event) for _, event in purse.paid) == made.cost_nano <= ACCOUNT.capacity_nano
    assert reports == [("warm_start", step, 3) for step in range(4)]
    assert not generator.training
    assert generator.config.components == 10
    images = generator.sample(torch.arange(10), torch.Generator().manual_seed(0))
    assert images.shape == (10, 1, 8, 8)
    assert torch.isfinite(images).all()


@pytest.mark.parametrize(("closed", "kept"), [(MEANS, set()), (POOLED, {MEANS})])
def test_a_start_that_is_not_paid_releases_nothing_more(closed, kept, train):
    memory = Memory()
    with pytest.raises(BudgetExceeded):
        train(plan(), Purse(closed=(closed,)), checkpoints=memory)
    assert set(load_checkpoint(memory).get("start", {})) == kept


class Lost(BaseException):
    """Stands for the end of the process."""


class Hold(Purse):
    """A budget of the plan's price, as a job's hold is."""

    def __init__(self, made: Plan) -> None:
        super().__init__()
        self.left_nano = made.cost_nano

    def charge(self, event: GaussianEvent, stage: str) -> None:
        cost_nano = ACCOUNT.cost_nano(event)
        if cost_nano > self.left_nano:
            raise BudgetExceeded(cost_nano, self.left_nano)
        self.left_nano -= cost_nano
        super().charge(event, stage)


@pytest.mark.parametrize("lost", range(3))
def test_a_process_lost_between_payment_and_checkpoint_costs_quality_and_not_the_job(lost, train, monkeypatch):
    """What was paid and not kept is paid again; what the hold then lacks is left out at the end."""
    made = plan(texture=lost == 2)
    hold, saved, save = Hold(made), 0, loop.save_checkpoint

    def dies(*args: Any, **kwargs: Any) -> None:
        nonlocal saved
        if saved == lost:
            raise Lost
        saved += 1
        save(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "save_checkpoint", dies)
        with pytest.raises(Lost):
            train(made, hold)
    generator = train(made, hold, attempt=2)
    assert hold.releases(made.stages[lost].name) >= made.stages[lost].event.count
    assert torch.isfinite(generator.sample(torch.arange(10), torch.Generator().manual_seed(0))).all()
    assert generator.factor.any()
