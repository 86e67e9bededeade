"""Trainings on datasets of several accounts: all of them hold, pay and get back what is left, or none does."""

from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from obscura.wire.words import EntryKind, HoldState, JobState
from privacy.plans.registry import plan_from_json
from service import jobs, ledger
from service.audit.receipts import check_receipt
from service.audit.verify import verify
from service.datasets import deletion
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import FurtherDataset
from service.db.ledger_tables import EVERYWHERE, AccountRow, ArmingStop
from service.db.project_tables import Project
from service.db.session import transaction
from service.errors import (
    AccountFrozen,
    Conflict,
    IdempotencyMismatch,
    InsufficientBudget,
    InvalidInput,
    LedgerCorruption,
    NotFound,
    StaleAttempt,
)
from service.jobs import FailureCode
from service.ledger import holds
from tests.service.jobs.shop import KEY, SHA, UNREADY, Shop
from tests.service.people import approve_raise, make_key
from tests.together import at_once

FEW = {"records_declared": 20_000}
TRUSTED = {KEY.key_id: KEY.public}


class Cohorts:
    """Two accounts of a population, each with a dataset of its own, and a training on both."""

    def __init__(self, shop: Shop, **terms: Any) -> None:
        self.shop = shop
        self.account_id = shop.open_account("patients of 2026", **terms)
        self.dataset_id = shop.declare(account_id=self.account_id, **FEW)
        self.both = {shop.account_id, self.account_id}

    def train(self, *further: str, **changes: Any) -> str:
        return self.shop.train(further_dataset_ids=[*further] or [self.dataset_id], **changes)

    def holds(self, job_id: str) -> dict[str, ledger.Hold]:
        """By account."""
        ids = self.shop.read(ledger.holds_of, job_id)
        found = [self.shop.read(ledger.get_hold, hold_id) for hold_id in ids]
        assert [hold.account_id for hold in found] == sorted(hold.account_id for hold in found)
        return {hold.account_id: hold for hold in found}

    def balances(self) -> dict[str, tuple[int, int]]:
        """What is spent and held, by account."""
        read = {account_id: self.shop.read(ledger.balance, account_id) for account_id in self.both}
        return {account_id: (balance.spent_nano, balance.held_nano) for account_id, balance in read.items()}

    def each(self, job_id: str, step: Any, **facts: Any) -> None:
        """A step of every hold, in one transaction."""
        with transaction(self.shop.factory) as session:
            for hold_id in ledger.holds_of(session, job_id):
                step(session, hold_id=hold_id, now=self.shop.now, **facts)

    def step(self, step: Any, hold_id: str, **facts: Any) -> None:
        """A step of one hold alone, as none of the service's own code takes it."""
        with transaction(self.shop.factory) as session:
            step(session, hold_id=hold_id, now=self.shop.now, **facts)

    def charged(self, amount_nano: int = 10) -> jobs.Claim:
        claim = self.shop.claimed()
        self.each(claim.job_id, ledger.arm, attempt=claim.attempt)
        self.each(claim.job_id, ledger.charge, attempt=claim.attempt, amount_nano=amount_nano, stage="votes")
        return claim

    def findings(self) -> list[str]:
        with transaction(self.shop.factory, read_only=True, snapshot=True) as session:
            found = verify(session, trusted=TRUSTED, prices_required=False).findings
        return [finding.message for finding in found]


@pytest.fixture
def cohorts(shop: Shop) -> Cohorts:
    return Cohorts(shop)


def test_every_account_holds_the_price_at_its_own_rate(shop):
    cohorts = Cohorts(shop, epsilon=20.0, delta=2e-6)
    job_id = cohorts.train(epsilon=2.0, recipe="dp_classifier")
    held, job = cohorts.holds(job_id), shop.job(job_id)
    assert set(held) == cohorts.both
    assert held[shop.account_id].id == job.hold_id
    plan = plan_from_json(job.plan)
    assert any(stage.event.is_sampled for stage in plan.stages)
    assert held[shop.account_id].amount_nano == plan.price_nano
    for account_id, hold in held.items():
        privacy_filter = ledger.filter_of(shop.read(ledger.get_account, account_id))
        priced = plan.priced_by(privacy_filter, plan.budget_nano)
        assert hold.amount_nano == priced.price_nano <= privacy_filter.nano_of(2.0)
        assert privacy_filter.epsilon_of(hold.amount_nano) <= 2.0
    assert held[shop.account_id].amount_nano != held[cohorts.account_id].amount_nano
    assert cohorts.findings() == []


def test_the_first_account_pays_at_its_own_rate_where_it_has_a_dataset_after_that_of_another_one_too(shop):
    cohorts = Cohorts(shop, epsilon=20.0, delta=2e-6)
    own = shop.declare(account_id=shop.account_id, **FEW)
    job_id = cohorts.train(cohorts.dataset_id, own, epsilon=2.0, recipe="dp_classifier")
    plan = plan_from_json(shop.job(job_id).plan)
    for account_id, hold in cohorts.holds(job_id).items():
        privacy_filter = ledger.filter_of(shop.read(ledger.get_account, account_id))
        assert hold.amount_nano == plan.priced_by(privacy_filter, plan.budget_nano).price_nano
    assert plan.price_nano == cohorts.holds(job_id)[shop.account_id].amount_nano
    assert cohorts.findings() == []


def test_a_plan_is_made_for_all_records_together(cohorts):
    alone, together = cohorts.shop.plan(), cohorts.shop.plan(further_dataset_ids=[cohorts.dataset_id])
    assert (alone.facts["units_declared"], together.facts["units_declared"]) == (60_000, 80_000)
    cohorts.shop.assert_nothing_written()


def test_datasets_of_one_account_have_one_hold(shop):
    second = shop.declare(account_id=shop.account_id, **FEW)
    job_id = shop.train(further_dataset_ids=[second])
    assert shop.read(ledger.holds_of, job_id) == (shop.job(job_id).hold_id,)
    assert shop.money() == (0, shop.hold_of(job_id).amount_nano)


@pytest.mark.parametrize("poor", ["first", "second"])
def test_where_one_account_cannot_pay_none_holds(shop, poor):
    cohorts = Cohorts(shop, epsilon=20.0)
    poor_id = shop.open_account("no budget left", epsilon=0.5)
    dataset_id = shop.declare(account_id=poor_id, **FEW)
    named = (dataset_id, [shop.dataset_id]) if poor == "first" else (shop.dataset_id, [cohorts.dataset_id, dataset_id])
    with pytest.raises(InsufficientBudget, match="no budget left"):
        shop.train(dataset_id=named[0], further_dataset_ids=named[1])
    shop.assert_nothing_written()
    assert set(cohorts.balances().values()) == {(0, 0)}


def test_a_hold_that_is_refused_under_its_lock_takes_back_the_others(cohorts, monkeypatch):
    """Between the look at what is left and the hold, another job may be faster."""
    last = max(cohorts.both)
    asked = holds.lock_to_hold

    def spent(session: Any, account_id: str, priced_by: Any) -> ledger.Account:
        account = asked(session, account_id, priced_by)
        account.spent_nano += account.left_nano if account_id == last else 0
        return account

    monkeypatch.setattr(holds, "lock_to_hold", spent)
    with pytest.raises(InsufficientBudget):
        cohorts.train()
    cohorts.shop.assert_nothing_written()


def test_a_frozen_account_holds_back_the_others(cohorts):
    with transaction(cohorts.shop.factory) as session:
        frozen = {"account_id": cohorts.account_id, "frozen": True, "reason": "audit", "now": cohorts.shop.now}
        ledger.set_frozen(session, **frozen)
    with pytest.raises(AccountFrozen):
        cohorts.train()
    cohorts.shop.assert_nothing_written()


def test_a_price_of_another_rate_takes_back_the_first_hold_and_is_found_anew(cohorts, monkeypatch):
    shop, asked, raised = cohorts.shop, holds.lock_to_hold, []

    def raising(session: Any, account_id: str, priced_by: Any) -> ledger.Account:
        if account_id == max(cohorts.both) and not raised:
            raised.append(account_id)
            asking, approving = (make_key(session, name=n, scopes=["admin"], now=shop.now)[0].id for n in "ab")
            wish = {"account_id": account_id, "epsilon": 30.0, "reason": "more", "asked_with": asking}
            request = ledger.request_raise(session, **wish, now=shop.now)
            approve_raise(session, request.id, approving, shop.now)
        return asked(session, account_id, priced_by)

    monkeypatch.setattr(holds, "lock_to_hold", raising)
    job_id = cohorts.train(recipe="dp_classifier")
    assert raised
    assert set(cohorts.holds(job_id)) == cohorts.both
    assert cohorts.findings() == []


def other_project(cohorts: Cohorts) -> str:
    with transaction(cohorts.shop.factory) as session:
        project = Project(id=new_id("prj"), name="others", created_at=cohorts.shop.now)
        session.add(project)
        session.flush()
        session.get_one(AccountRow, cohorts.account_id).project_id = project.id
        session.get_one(Dataset, cohorts.dataset_id).project_id = project.id
    return cohorts.dataset_id


def declared(**facts: Any) -> Any:
    return lambda cohorts: cohorts.shop.declare(account_id=cohorts.account_id, **FEW | facts)


UNFIT = {
    "twice": (lambda c: c.shop.dataset_id, InvalidInput, "named twice"),
    "public": (lambda c: c.shop.public_id, InvalidInput, "needs a private dataset"),
    "gone": (lambda _: new_id("ds"), NotFound, "no such dataset"),
    "empty": (declared(**UNREADY), Conflict, "not ready"),
    "size": (declared(height=32), InvalidInput, "their height differ"),
    "classes": (declared(classes=["a"]), InvalidInput, "classes differ"),
    "project": (other_project, InvalidInput, "belong to two projects"),
    "many": (declared(records_declared=90_000), InvalidInput, "above 1/110000"),
}


@pytest.mark.parametrize("reason", UNFIT)
def test_what_cannot_be_read_together_is_refused_and_nothing_is_held(cohorts, reason):
    make, error, told = UNFIT[reason]
    with pytest.raises(error, match=told):
        cohorts.train(make(cohorts))
    cohorts.shop.assert_nothing_written()


def test_sixteen_datasets_are_the_most(cohorts):
    with pytest.raises(InvalidInput, match="at most 16 datasets"):
        cohorts.train(*(new_id("ds") for _ in range(16)))


def test_records_and_subjects_are_not_mixed_and_unknown_subjects_not_joined(cohorts):
    shop = cohorts.shop
    ids = [shop.open_account(f"families {n}", unit="subject") for n in (1, 2)]
    declared = [shop.declare(account_id=account_id, subjects_declared=1000, **FEW) for account_id in ids]
    with pytest.raises(InvalidInput, match="protects records and account"):
        cohorts.train(declared[0])
    with pytest.raises(InvalidInput, match="cannot be read together"):
        shop.train(dataset_id=declared[0], further_dataset_ids=[declared[1]])
    shop.assert_nothing_written()


def test_subjects_that_are_recognised_are_read_together_and_their_bounds_add_up(cohorts):
    shop = cohorts.shop
    ids = [shop.open_account(f"families {n}", unit="subject") for n in (1, 2)]
    told = {"subjects_declared": 10_000, "subjects_recognised": True, **FEW}
    first, second, same = (shop.declare(account_id=account_id, **told) for account_id in (*ids, ids[0]))
    plan = shop.plan(dataset_id=first, further_dataset_ids=[second, same])
    assert plan.facts["units_declared"] == 30_000
    job_id = shop.train(dataset_id=first, further_dataset_ids=[second, same])
    assert set(cohorts.holds(job_id)) == set(ids)
    ended = shop.declare(account_id=ids[0], subjects_declared=1000, **FEW)
    with pytest.raises(InvalidInput, match="ended with its upload"):
        shop.train(dataset_id=first, further_dataset_ids=[ended])


def test_a_joint_release_is_paid_by_all_and_each_has_a_receipt(cohorts):
    shop, job_id = cohorts.shop, cohorts.train()
    held = cohorts.holds(job_id)
    release = shop.publish(cohorts.charged(1000), release_id=new_id("rel"))
    ended = cohorts.holds(job_id)
    assert {hold.state for hold in ended.values()} == {HoldState.CAPTURED}
    assert cohorts.balances() == dict.fromkeys(cohorts.both, (1000, 0))
    assert all(held[account_id].amount_nano > 1000 for account_id in cohorts.both)
    receipts = {each: shop.read(jobs.receipt_of, release, each) for each in cohorts.both}
    for account_id, receipt in receipts.items():
        statement = check_receipt(receipt, TRUSTED)
        assert (statement["account"]["id"], statement["release_id"]) == (account_id, release.id)
        assert statement["artifact_sha256"] == SHA
        hold_id = ended[account_id].id
        capture = shop.read(ledger.entry_of_hold, hold_id, EntryKind.CAPTURE)
        assert statement["entry_hash"] == capture.hash
    assert release.receipt == receipts[shop.account_id]
    with pytest.raises(NotFound):
        shop.read(jobs.receipt_of, release, shop.open_account("strangers"))
    assert cohorts.findings() == []


def test_a_later_cohort_joins_and_an_earlier_one_keeps_what_it_has_left(cohorts):
    shop = cohorts.shop
    cohorts.train()
    shop.publish(cohorts.charged(1000), release_id=new_id("rel"))
    third = shop.open_account("patients of 2027")
    shop.later(1)
    job_id = cohorts.train(cohorts.dataset_id, shop.declare(account_id=third, **FEW))
    assert set(cohorts.holds(job_id)) == {*cohorts.both, third}
    before = shop.read(ledger.balance, third).held_nano
    assert before == cohorts.holds(job_id)[third].amount_nano
    assert {spent for spent, _ in cohorts.balances().values()} == {1000}


def test_a_queued_training_that_is_cancelled_returns_every_hold(cohorts):
    job_id = cohorts.train()
    cohorts.shop.cancel(job_id)
    assert {hold.state for hold in cohorts.holds(job_id).values()} == {HoldState.RETURNED}
    assert cohorts.balances() == dict.fromkeys(cohorts.both, (0, 0))
    assert cohorts.findings() == []


def test_a_failure_before_arming_returns_and_one_after_charging_captures_all(cohorts):
    shop = cohorts.shop
    first = cohorts.train()
    shop.fail(shop.claimed())
    assert {hold.state for hold in cohorts.holds(first).values()} == {HoldState.RETURNED}
    shop.later(1)
    second = cohorts.train()
    claim = cohorts.charged(500)
    assert shop.fail(claim, FailureCode.DATASET_UNAVAILABLE).state is JobState.FAILED
    assert {hold.captured_nano for hold in cohorts.holds(second).values()} == {500}
    assert cohorts.balances() == dict.fromkeys(cohorts.both, (500, 0))
    assert cohorts.findings() == []


def test_a_later_attempt_fences_every_hold(cohorts):
    job_id = cohorts.train()
    stale = cohorts.charged(500)
    cohorts.shop.later(3600)
    claim = cohorts.shop.claimed(job_id)
    for hold_id in cohorts.shop.read(ledger.holds_of, job_id):
        with pytest.raises(StaleAttempt):
            cohorts.step(ledger.charge, hold_id, attempt=stale.attempt, amount_nano=1, stage="votes")
    cohorts.each(job_id, ledger.arm, attempt=claim.attempt)
    assert cohorts.findings() == []


@pytest.mark.parametrize("scope", ["further", EVERYWHERE])
def test_a_training_waits_while_any_of_its_accounts_is_stopped(cohorts, scope):
    job_id = cohorts.train()
    scope = cohorts.account_id if scope == "further" else scope
    with transaction(cohorts.shop.factory) as session:
        session.add(ArmingStop(scope=scope, code="hash_mismatch", sequence=1, found_at=cohorts.shop.now))
    assert cohorts.shop.claim(job_id) is None
    assert cohorts.shop.read(jobs.claimable, now=cohorts.shop.now) == []
    with transaction(cohorts.shop.factory) as session:
        session.delete(session.get_one(ArmingStop, scope))
    assert cohorts.shop.claim(job_id) is not None


def test_the_same_key_gives_the_same_training_and_other_datasets_are_another_request(cohorts):
    first = cohorts.train(key="k")
    assert cohorts.train(key="k") == first
    with pytest.raises(IdempotencyMismatch):
        cohorts.shop.train(key="k")
    assert len(cohorts.shop.entries()) == 2


def test_what_a_joint_hold_commits_to_is_compared_before_anything_is_armed(cohorts):
    shop, job_id = cohorts.shop, cohorts.train()
    claim = shop.claimed()

    def require(session: Any) -> None:
        secret = jobs.secret_of(session, job_id=job_id, attempt=claim.attempt).hex()
        ledger.require_as_held(session, jobs.get_job(session, job_id), secret)

    shop.read(require)
    other = shop.declare(account_id=cohorts.account_id, **FEW)
    with transaction(shop.factory) as session:
        session.get_one(FurtherDataset, (job_id, 2)).dataset_id = other
    with pytest.raises(LedgerCorruption, match="dataset 2"):
        shop.read(require)
    with transaction(shop.factory) as session:
        session.delete(session.get_one(FurtherDataset, (job_id, 2)))
    with pytest.raises(LedgerCorruption, match="payer"):
        shop.read(require)
    assert cohorts.findings() != []


def test_a_hold_that_is_missing_or_behind_the_others_is_found(cohorts):
    shop, job_id = cohorts.shop, cohorts.train()
    claim = shop.claimed()
    cohorts.step(ledger.arm, claim.hold_id or "", attempt=claim.attempt)
    assert any("in different states" in message for message in cohorts.findings())
    further = next(hold for account_id, hold in cohorts.holds(job_id).items() if account_id != shop.account_id)
    cohorts.step(ledger.arm, further.id, attempt=claim.attempt)
    assert cohorts.findings() == []


def test_trainings_that_name_accounts_in_any_order_never_wait_for_each_other(cohorts):
    """Two threads, the accounts named both ways round: on PostgreSQL a lock order of each one's own would deadlock."""
    shop = cohorts.shop
    ways = [(shop.dataset_id, cohorts.dataset_id), (cohorts.dataset_id, shop.dataset_id)]
    cohorts.shop.plan(further_dataset_ids=[cohorts.dataset_id], epsilon=0.05)  # found once

    def ask(first: str, second: str) -> None:
        for _ in range(5):
            job_id = shop.train(dataset_id=first, further_dataset_ids=[second], epsilon=0.05)
            shop.cancel(job_id)

    assert at_once(*[partial(ask, *way) for way in ways]) == [None, None]
    assert cohorts.balances() == dict.fromkeys(cohorts.both, (0, 0))
    with transaction(shop.factory, read_only=True) as session:
        assert len(session.scalars(select(FurtherDataset.job_id)).all()) == 10


def test_deleting_a_dataset_cancels_trainings_that_share_accounts_in_any_way(cohorts):
    """Accounts are locked once, in one order, however the trainings name them."""
    shop = cohorts.shop
    third = shop.open_account("patients of 2027")
    other = shop.declare(account_id=third, **FEW)
    asked = [cohorts.train(epsilon=0.1), cohorts.train(other, epsilon=0.1), shop.train(epsilon=0.1)]
    locked: list[str] = []
    with pytest.MonkeyPatch.context() as patched, transaction(shop.factory) as session:
        lock = ledger.lock_account
        patched.setattr(
            ledger, "lock_account", lambda s, account_id: (locked.append(account_id), lock(s, account_id))[1]
        )
        deletion.begin(session, shop.dataset_id, cancel_jobs=True, now=shop.now)
    assert locked == sorted({*cohorts.both, third})
    for job_id in asked:
        assert shop.job(job_id).state is JobState.CANCELLED
        assert {hold.state for hold in cohorts.holds(job_id).values()} == {HoldState.RETURNED}
    assert cohorts.findings() == []
