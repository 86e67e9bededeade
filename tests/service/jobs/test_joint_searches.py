"""Searches and previews over datasets of several accounts: every trial is held on each of them, or nothing is."""

from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from obscura.wire.words import HoldState, JobState
from service import jobs, ledger
from service.db.base import new_id
from service.db.job_tables import FurtherDataset, Sweep
from service.db.session import transaction
from service.errors import (
    AccountFrozen,
    Conflict,
    IdempotencyMismatch,
    InvalidInput,
    SweepTooExpensive,
)
from service.ledger import holds
from service.views import accounts, sweeps
from service.views import jobs as jobs_view
from tests.service.jobs.shop import UNREADY, Shop
from tests.service.jobs.test_cohorts import FEW, Cohorts
from tests.service.people import approve_raise, make_key
from tests.together import at_once


class Searches(Cohorts):
    """Two accounts of a population, and searches over a dataset of each."""

    def sweep(self, *epsilons: float, **changes: Any) -> str:
        trials = [jobs.Trial(epsilon, {}) for epsilon in epsilons]
        return self.shop.sweep(*epsilons, **{"further_dataset_ids": [self.dataset_id], "trials": trials} | changes)

    def held(self, sweep_id: str) -> dict[str, list[ledger.Hold]]:
        """The holds of all trials, by account."""
        each = [self.holds(trial.id) for trial in self.shop.trials(sweep_id)]
        return {account_id: [of[account_id] for of in each] for account_id in each[0]}

    def preview(self, *further: str, **changes: Any) -> str:
        order = {"dataset_id": self.shop.dataset_id, "recipe": "datalens", "epsilon": 1.0, "options": {}}
        order |= {"stand_in_dataset_id": None, "further_dataset_ids": [*further] or [self.dataset_id], **changes}
        asked = {"principal": "key_me", "idempotency_key": None, "now": self.shop.now}
        with transaction(self.shop.factory) as session:
            return jobs.submit(session, jobs.KINDS["preview"], **asked, **order).id

    def assert_nothing_held(self) -> None:
        self.shop.assert_nothing_written()
        assert set(self.balances().values()) == {(0, 0)}


@pytest.fixture
def searches(shop: Shop) -> Searches:
    return Searches(shop)


def test_every_trial_is_held_on_every_account_at_its_own_rate(shop):
    searches = Searches(shop, epsilon=20.0, delta=2e-6)
    sweep_id = searches.sweep(0.5, 0.6, 0.7, recipe="dp_classifier")
    held = searches.held(sweep_id)
    assert set(held) == searches.both
    assert held[shop.account_id] != held[searches.account_id]
    plans = [trial.plan["price_nano"] for trial in shop.trials(sweep_id)]
    assert [hold.amount_nano for hold in held[shop.account_id]] == plans
    assert shop.read(jobs.get_sweep, sweep_id).price_nano == sum(plans)
    assert searches.balances() == {name: (0, sum(hold.amount_nano for hold in of)) for name, of in held.items()}
    assert searches.findings() == []
    (shown,) = shop.read(lambda session: sweeps.records(session, [session.get_one(Sweep, sweep_id)]))
    assert {cohort.account_id: cohort.totals.price_nano for cohort in shown.cohorts} == {
        name: sum(hold.amount_nano for hold in of) for name, of in held.items()
    }
    assert [cohort.dataset_ids for cohort in shown.cohorts] == [[shop.dataset_id], [searches.dataset_id]]


@pytest.mark.parametrize("poor", ["first", "second"])
def test_where_one_account_cannot_pay_for_all_trials_nothing_is_held_and_it_is_named(shop, poor):
    searches = Searches(shop, epsilon=20.0)
    poor_id = shop.open_account("little left", epsilon=1.5)
    dataset_id = shop.declare(account_id=poor_id, **FEW)
    own, further = (dataset_id, shop.dataset_id) if poor == "first" else (shop.dataset_id, dataset_id)
    with pytest.raises(SweepTooExpensive, match="little left") as refused:
        searches.sweep(1.0, 1.0, 1.0, dataset_id=own, further_dataset_ids=[further, searches.dataset_id])
    assert refused.value.numbers["trials_affordable"] in (1, 2)
    searches.assert_nothing_held()


def test_a_trial_that_is_refused_under_the_locks_takes_back_all_before_it(searches, monkeypatch):
    asked, seen = holds.append, []

    def failing(*args: Any, **facts: Any) -> Any:
        seen.append(args)
        if len(seen) == 4:  # the second trial, the second account
            raise Conflict("somebody was faster")
        return asked(*args, **facts)

    monkeypatch.setattr(holds, "append", failing)
    with pytest.raises(Conflict):
        searches.sweep(0.5, 0.5, 0.5)
    assert len(seen) == 4
    searches.assert_nothing_held()


def test_a_frozen_account_and_what_cannot_be_read_together_hold_back_the_search(searches):
    shop = searches.shop
    larger = shop.declare(account_id=searches.account_id, **FEW, height=32)
    with pytest.raises(InvalidInput, match="their height differ"):
        searches.sweep(0.5, 0.5, further_dataset_ids=[larger])
    with transaction(shop.factory) as session:
        frozen = {"account_id": searches.account_id, "frozen": True, "reason": "audit", "now": shop.now}
        ledger.set_frozen(session, **frozen)
    with pytest.raises(AccountFrozen):
        searches.sweep(0.5, 0.5)
    searches.assert_nothing_held()


def test_a_raise_of_a_further_account_has_every_trial_priced_anew(searches, monkeypatch):
    shop, asked, raised = searches.shop, ledger.lock_to_hold, []

    def raising(session: Any, account_id: str, priced_by: Any) -> ledger.Account:
        if account_id == searches.account_id and not raised:
            raised.append(account_id)
            asking, approving = (make_key(session, name=n, scopes=["admin"], now=shop.now)[0].id for n in "ab")
            wish = {"account_id": account_id, "epsilon": 30.0, "reason": "more", "asked_with": asking}
            request = ledger.request_raise(session, **wish, now=shop.now)
            approve_raise(session, request.id, approving, shop.now)
        return asked(session, account_id, priced_by)

    monkeypatch.setattr(ledger, "lock_to_hold", raising)
    sweep_id = searches.sweep(0.5, 0.6, recipe="dp_classifier")
    assert raised
    assert {len(of) for of in searches.held(sweep_id).values()} == {2}
    assert len(shop.trials(sweep_id)) == 2
    assert searches.findings() == []


def test_cancelling_a_search_gives_back_to_every_account_and_ended_trials_stay_paid(searches):
    shop, sweep_id = searches.shop, searches.sweep(0.5, 0.6, 0.7)
    claim = searches.charged(10)
    shop.publish(claim, release_id=new_id("rel"))
    with transaction(shop.factory) as session:
        jobs.cancel_sweep(session, sweep_id=sweep_id, now=shop.now)
    assert [trial.state for trial in shop.trials(sweep_id)] == [JobState.SUCCEEDED, *[JobState.CANCELLED] * 2]
    for of in searches.held(sweep_id).values():
        assert [hold.state for hold in of] == [HoldState.CAPTURED, *[HoldState.RETURNED] * 2]
    assert set(searches.balances().values()) == {(10, 0)}
    assert searches.findings() == []
    listed = shop.read(sweeps.newest_rows, searches.account_id)
    assert [row.id for row in listed] == [sweep_id], "it is an account's search, whoever was named first"
    (record,) = shop.read(lambda session: sweeps.records(session, [jobs.get_sweep(session, sweep_id)]))
    assert {cohort.totals.spent_nano for cohort in record.cohorts} == {10}


def test_the_same_key_gives_the_same_search_and_other_datasets_are_another_request(searches):
    first = searches.sweep(0.5, 0.6, key="k")
    assert searches.sweep(0.5, 0.6, key="k") == first
    with pytest.raises(IdempotencyMismatch):
        searches.sweep(0.5, 0.6, key="k", further_dataset_ids=[])


def test_searches_that_name_accounts_in_any_order_never_wait_for_each_other(searches):
    """Two threads, the accounts named both ways round: on PostgreSQL a lock order of each one's own would deadlock."""
    shop = searches.shop
    ways = [(shop.dataset_id, searches.dataset_id), (searches.dataset_id, shop.dataset_id)]
    shop.plan(further_dataset_ids=[searches.dataset_id], epsilon=0.05)  # found once

    def ask(first: str, second: str) -> None:
        for _ in range(3):
            sweep_id = searches.sweep(0.05, 0.05, dataset_id=first, further_dataset_ids=[second])
            with transaction(shop.factory) as session:
                jobs.cancel_sweep(session, sweep_id=sweep_id, now=shop.now)

    assert at_once(*[partial(ask, *way) for way in ways]) == [None, None]
    assert searches.balances() == dict.fromkeys(searches.both, (0, 0))


def test_a_preview_of_several_datasets_holds_nothing_and_names_them_all(searches):
    shop = searches.shop
    job_id = searches.preview()
    assert shop.job(job_id).plan["facts"]["units_declared"] == 80_000
    assert shop.read(ledger.holds_of, job_id) == ()
    assert searches.balances() == dict.fromkeys(searches.both, (0, 0))
    assert searches.findings() == [], "the verification misses no hold of it"
    made = shop.read(lambda session: jobs_view.made(session, jobs.get_job(session, job_id)))
    assert made.further_dataset_ids == [searches.dataset_id]
    seen = shop.read(lambda session: accounts.cohorts(session, accounts.read(session, shop.account_id)))
    assert [account.id for account in seen] == [shop.account_id], "nothing was trained on both yet"


def test_a_preview_of_what_cannot_be_read_together_is_refused_and_of_what_has_not_arrived_is_not(searches):
    shop = searches.shop
    with pytest.raises(InvalidInput, match="their height differ"):
        searches.preview(shop.declare(account_id=searches.account_id, **FEW, height=32))
    shop.assert_nothing_written()
    searches.preview(shop.declare(account_id=searches.account_id, **FEW | UNREADY))
    with transaction(shop.factory, read_only=True) as session:
        assert len(session.scalars(select(FurtherDataset)).all()) == 1
