"""The order of payment: production pays first, and a budget that is asked afterwards is caught at its first release."""

import secrets
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.audited_trainings import Tap, digits_population, train
from benchmarks.broken_mechanisms import LateBudget
from benchmarks.payment_order import PaymentJournal, ReleasedUnpaid
from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import open_filter
from privacy.auditing.one_run import flip_coins
from privacy.errors import BudgetExceeded
from privacy.plans.datalens import VOTES
from privacy.plans.plan import Plan, PlanBudget, Stage
from privacy.plans.registry import build_plan
from tests.workers.small_trainings import TINY_DATALENS

ACCOUNT = open_filter(1.0, 1e-5)
EVENT = GaussianEvent(1.0, 10.0)
SINGLE = Stage("votes", replace(EVENT, count=4), 4 * 10**7)
POPULATION = digits_population(100)
RECIPES: dict[str, dict[str, Any]] = {"datalens": TINY_DATALENS, "moments": {"components": 10, "frequencies": 6}}


def plan_of(recipe: str = "datalens") -> Plan:
    return build_plan(recipe, RECIPES[recipe], ACCOUNT, ACCOUNT.capacity_nano, POPULATION.facts)


def run(plan: Plan, journal: PaymentJournal, budget: Any) -> Tap:
    tap = Tap(journal)
    train(plan, POPULATION, flip_coins(100, 0), tap, budget, secrets.token_bytes(32))
    return tap


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_release_is_paid_before_it_is_made(recipe: str) -> None:
    """And everything that was paid was released: the journal saw all of it."""
    plan = plan_of(recipe)
    account = PlanBudget(plan.stages)
    journal = PaymentJournal(account)
    run(plan, journal, journal)
    assert journal.released == journal.paid
    assert journal.released.total() == sum(stage.event.count for stage in plan.stages)
    assert account.spent_nano == plan.cost_nano


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_budget_that_is_asked_after_the_release_is_flagged(recipe: str) -> None:
    plan = plan_of(recipe)
    journal = PaymentJournal(PlanBudget(plan.stages))
    with pytest.raises(ReleasedUnpaid):
        run(plan, journal, LateBudget(journal))


def test_an_account_that_runs_dry_ends_the_releases() -> None:
    """The last charge does not fit: production stops before it, the late check would have released it all the same."""
    plan = plan_of()
    account = PlanBudget(plan.stages, plan.cost_nano - 1)
    journal = PaymentJournal(account)
    assert sum(map(len, run(plan, journal, journal).votes)) == 50
    assert account.releases[VOTES] == 50
    assert journal.released == journal.paid

    unwatched = Tap()
    late = LateBudget(PlanBudget(plan.stages, plan.cost_nano - 1))
    train(plan, POPULATION, flip_coins(100, 0), unwatched, late, secrets.token_bytes(32))
    assert sum(map(len, unwatched.votes)) == 60


def test_a_refused_charge_is_not_written_down_as_paid() -> None:
    journal = PaymentJournal(PlanBudget([SINGLE], 0))
    with pytest.raises(BudgetExceeded):
        journal.charge(EVENT, "votes")
    with pytest.raises(ReleasedUnpaid, match=r"release 1 .* when 0 of its kind had been paid"):
        journal.note_release(EVENT)


def test_payments_pay_for_their_own_kind_only() -> None:
    journal = PaymentJournal(PlanBudget([SINGLE]))
    journal.charge(replace(EVENT, count=3), "votes")
    journal.note_release(replace(EVENT, count=2))
    with pytest.raises(ReleasedUnpaid) as caught:
        journal.note_release(GaussianEvent(1.0, 5.0))
    assert (caught.value.released, caught.value.paid) == (1, 0)
    journal.note_release(EVENT)
    with pytest.raises(ReleasedUnpaid) as caught:
        journal.note_release(EVENT)
    assert (caught.value.released, caught.value.paid) == (4, 3)
