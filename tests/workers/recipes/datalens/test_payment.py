"""What is paid and when: the plan in its order, before any noise, and once for what was kept."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from models.portable.generator import Generator
from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import open_filter
from privacy.aggregation import topagg
from privacy.errors import BudgetExceeded
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.datalens.plan import VOTES
from privacy.plans.moments.warm_start import BY_CLASS, MEANS, POOLED
from privacy.plans.plan import Plan
from privacy.plans.registry import build_plan
from tests.workers.recipes.datalens.trainings import ACCOUNT, FACTS, Purse, Reports, plan, start_alone, work_in
from tests.workers.small_trainings import TINY_DATALENS as TINY
from workers.recipes.datalens import votes as datalens_votes
from workers.recipes.interface import Cancelled, load_checkpoint
from workers.recipes.moments import loop as moments


def test_the_charges_are_the_plan_in_order(train: Callable[..., Generator]) -> None:
    """Every charge is a planned event, up to its count; together they are the whole plan and its price."""
    made, purse, reports = plan(), Purse(), Reports()
    generator = train(made, purse, progress=reports)
    assert purse.counts == [(MEANS, 1), (POOLED, 1), (BY_CLASS, 1), (VOTES, 25), (VOTES, 25), (VOTES, 10)]
    for stage, event in purse.paid:
        planned = made.stage(stage)
        assert planned is not None
        assert dataclasses.replace(event, count=1) == dataclasses.replace(planned.event, count=1)
    assert sum(ACCOUNT.price_nano(event) for _, event in purse.paid) == made.price_nano <= ACCOUNT.capacity_nano
    assert reports.told[:4] == [("warm_start", step, 3) for step in range(4)]
    assert reports.told[4:] == [(VOTES, step, 12) for step in range(1, 13)]
    assert not generator.training
    assert generator.config.components == 10
    images = generator.sample(torch.arange(10), torch.Generator().manual_seed(0))
    assert images.shape == (10, 1, 8, 8)
    assert torch.isfinite(images).all()


def test_no_noise_is_drawn_before_it_is_paid(train: Callable[..., Generator], monkeypatch: pytest.MonkeyPatch) -> None:
    purse, drawn = Purse(), Counter[str]()
    f, d = 36, 10  # coefficients and components
    numbers = {MEANS: 10 * (f + 1), POOLED: f * (f + 1) // 2, BY_CLASS: 10 * d * (d + 1) // 2, VOTES: d}
    draw, noisy_sum = SecureNoise.discrete_gaussian, topagg.noisy_sum

    def watched_draw(self: SecureNoise, shape: int | tuple[int, ...], stddev: float) -> npt.NDArray[np.int64]:
        drawn["numbers"] += int(np.prod(shape))
        assert drawn["numbers"] <= sum(numbers[stage] * count for stage, count in purse.releases_paid().items())
        return draw(self, shape, stddev)

    def watched_sum(votes: torch.Tensor, *rest: Any) -> torch.Tensor:
        drawn[VOTES] += len(votes)
        assert drawn[VOTES] <= purse.releases_paid()[VOTES]
        return noisy_sum(votes, *rest)

    monkeypatch.setattr(SecureNoise, "discrete_gaussian", watched_draw)
    monkeypatch.setattr(topagg, "noisy_sum", watched_sum)
    train(plan(), purse)
    assert drawn[VOTES] == 60
    assert drawn["numbers"] == numbers[MEANS] + numbers[POOLED] + numbers[BY_CLASS] + 60 * d


@pytest.mark.parametrize(("closed", "kept"), [(MEANS, set()), (POOLED, {MEANS})])
def test_a_warm_start_that_is_not_paid_releases_nothing_more(
    closed: str, kept: set[str], train: Callable[..., Generator], tmp_path: Path
) -> None:
    with pytest.raises(BudgetExceeded):
        train(plan(), Purse(closed=(closed,)))
    found = load_checkpoint(work_in(tmp_path / "work"))
    assert set(found.state["start"] if found is not None else {}) == kept


class Lost(BaseException):
    """Stands for the end of the process."""


class Hold(Purse):
    """A budget of the plan's price, as a job's hold is."""

    def __init__(self, made: Plan) -> None:
        super().__init__()
        self.left_nano = made.price_nano

    def charge(self, event: GaussianEvent, stage: str) -> None:
        price_nano = ACCOUNT.price_nano(event)
        if price_nano > self.left_nano:
            raise BudgetExceeded(price_nano, self.left_nano)
        self.left_nano -= price_nano
        super().charge(event, stage)


@pytest.mark.parametrize("options", [{}, {"preset": "votes_only", "vote_share": 0.0}], ids=["statistics", "rounds"])
def test_whatever_was_kept_is_not_paid_again(options: dict[str, Any], train: Callable[..., Generator]) -> None:
    """Stopped after each of the first three statistics or rounds: the plan is paid once, by four attempts."""
    options = {"warm_start": not options, **options}
    made = plan(**options)
    stage = "warm_start" if options["warm_start"] else "votes"
    hold = Hold(made)
    for attempt in (1, 2, 3):
        with pytest.raises(Cancelled):
            train(made, hold, attempt=attempt, progress=Reports((stage, attempt)))
        assert hold.counts == [(planned.name, planned.event.count) for planned in made.stages[:attempt]]
    train(made, hold, attempt=4)
    assert hold.releases_paid() == {planned.name: planned.event.count for planned in made.stages}


@pytest.mark.parametrize("lost", range(4))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"recipe": "moments"},
        {"recipe": "moments", "texture": True},
        {"preset": "votes_only", "vote_share": 0.0},
    ],
    ids=["statistics and votes", "statistics", "texture", "rounds"],
)
def test_a_process_lost_between_payment_and_checkpoint_costs_quality_and_not_the_job(
    lost: int, options: dict[str, Any], train: Callable[..., Generator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was paid and not kept is paid again; what the hold then lacks is left out at the end."""
    votes = {"warm_start": "votes_only" not in options.values(), **options}
    made = start_alone(texture="texture" in options) if "recipe" in options else plan(**votes)
    if lost >= len(made.stages):
        pytest.skip("the plan has fewer stages")
    hold, saved = Hold(made), 0
    save = moments.save_checkpoint

    def dies(*args: Any, **kwargs: Any) -> None:
        nonlocal saved
        if saved == lost:
            raise Lost
        saved += 1
        save(*args, **kwargs)

    with monkeypatch.context() as patched:
        for module in (datalens_votes, moments):
            patched.setattr(module, "save_checkpoint", dies)
        with pytest.raises(Lost):
            train(made, hold)
    generator = train(made, hold, attempt=2)
    paid = hold.releases_paid()
    assert paid[made.stages[lost].name] >= made.stages[lost].event.count
    assert torch.isfinite(generator.sample(torch.arange(10), torch.Generator().manual_seed(0))).all()
    assert generator.factor.any()


@pytest.mark.parametrize(("images", "paid"), [(0, 0), (24, 0), (30, 25), (59, 50)])
def test_an_exhausted_budget_ends_the_votes_and_keeps_what_was_learnt(
    images: int, paid: int, train: Callable[..., Generator]
) -> None:
    purse = Purse(images)
    generator = train(plan(), purse)
    assert purse.releases_paid()[VOTES] == paid
    assert generator.mean.any()
    if not paid:
        assert not generator.bend.any()


def test_votes_of_a_round_that_the_budget_cut_short_are_learnt(train: Callable[..., Generator]) -> None:
    rich = open_filter(200.0, 1e-5)
    made = build_plan("datalens", {**TINY, "rounds": 1, "warm_start": False}, rich, rich.capacity_nano, FACTS)
    assert train(made, Purse(images=50)).bend.any()


def test_iterations_that_are_repeated_use_up_the_hold(train: Callable[..., Generator]) -> None:
    """The hold is the plan's price: what an interruption costs is missing at the end, and nothing fails."""
    purse = Purse(images=60)
    with pytest.raises(Cancelled):
        train(plan(), purse, progress=Reports((VOTES, 7)))
    generator = train(plan(), purse, attempt=2)
    assert purse.counts[3:] == [(VOTES, 25), (VOTES, 25)]  # ten images are left, fewer than a group needs
    assert generator.mean.any()
