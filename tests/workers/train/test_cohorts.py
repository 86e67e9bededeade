"""A training on datasets of several accounts, from its order to its release: all pay before every release."""

import json
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from obscura.wire.words import EntryKind, HoldState, JobState
from privacy.accounting.events import event_from_json
from privacy.errors import BudgetExceeded
from service import jobs, ledger
from service.audit.receipts import check_receipt, kept_receipts
from service.audit.signing import trusted_keys
from service.datasets import deletion
from service.db.session import transaction
from service.inspection import inspect_ledger
from service.storage import storage_of
from service.storage.journals import journalled
from tests.workers.conftest import on_either_database
from tests.workers.small_trainings import digits, published_by
from tests.workers.tiny_runner import TRAINERS
from workers.supervise.attempts import ExitStatus
from workers.train.held_budget import HeldBudget, arm_all
from workers.train.orders import read_training


@pytest.fixture
def later(workshop: Any) -> tuple[str, str]:
    """Account and dataset of a later cohort, with terms of its own."""
    return workshop.add_cohort("writers of 2026", digits(1797, first=1500), epsilon=12.0, delta=2e-6)


def charges(workshop: Any, account_id: str, job_id: str) -> list[ledger.Entry]:
    entries = workshop.do(ledger.entries, account_id, 0, 1000)
    return [entry for entry in entries if entry.kind is EntryKind.CHARGE and entry.job_id == job_id]


@on_either_database
def test_every_account_pays_for_every_release_and_the_card_says_what_each_guarantees(workshop, later):
    account_id, dataset_id = later
    job_id = workshop.train(further=[dataset_id])
    release = published_by(workshop, job_id, TRAINERS)
    held = workshop.holds(job_id)
    paid = {each: charges(workshop, each, job_id) for each in held}
    assert set(held) == {workshop.account_id, account_id}
    told = [[(entry.details["stage"], entry.details["event"]) for entry in of] for of in paid.values()]
    assert told[0] == told[1] != []
    for each, hold in held.items():
        assert hold.state is HoldState.CAPTURED
        privacy_filter = workshop.do(ledger.filter_of_hold, hold.id)
        events = [event_from_json(entry.details["event"]) for entry in paid[each]]
        assert hold.captured_nano == sum(privacy_filter.price_nano(event) for event in events)
    cohorts = {cohort["account_id"]: cohort for cohort in release.card["cohorts"]}
    assert {name: cohort["delta"] for name, cohort in cohorts.items()} == {workshop.account_id: 1e-5, account_id: 2e-6}
    assert {name: cohort["price_nano"] for name, cohort in cohorts.items()} == {
        name: hold.captured_nano for name, hold in held.items()
    }
    assert cohorts[account_id]["dataset_ids"] == [dataset_id]
    assert cohorts[workshop.account_id]["epsilon"] == release.card["epsilon"]
    assert "at most 1,900 records" in json.dumps(release.card)
    assert release.name.startswith("digits and 1 more")
    trusted = trusted_keys(workshop.settings.ledger_key_path)
    receipts = [workshop.do(jobs.receipt_of, release, each) for each in held]
    assert {check_receipt(receipt, trusted)["account"]["id"] for receipt in receipts} == set(held)
    assert len(kept_receipts(storage_of(workshop.settings))) == 2
    assert inspect_ledger(workshop.settings, workshop.factory, thorough=True).findings == ()


def test_the_journal_shows_what_each_account_has_paid(workshop, later):
    job_id = workshop.train(further=[later[1]])
    published_by(workshop, job_id, TRAINERS)
    held = workshop.holds(job_id)
    shown = journalled(storage_of(workshop.settings), job_id)
    assert shown.account_id == workshop.account_id
    assert shown.price_nano == held[workshop.account_id].charged_nano
    assert dict(shown.further) == {later[0]: held[later[0]].charged_nano}


def test_the_journal_of_a_training_on_one_dataset_is_written_as_before(workshop):
    job_id = workshop.train()
    published_by(workshop, job_id, TRAINERS)
    storage = storage_of(workshop.settings)
    lines = [json.loads(line) for line in storage.read("journals", f"{job_id}.jsonl").split(b"\n") if line]
    assert {tuple(line) for line in lines} == {("attempt", "stage", "count", "price_nano", "account_id")}


def test_a_charge_that_one_hold_does_not_cover_charges_none(workshop, later):
    """The last account's hold is used up behind the back of the others."""
    job_id = workshop.train(further=[later[1]])
    attempt = workshop.claim(job_id)
    with transaction(workshop.factory) as session:
        training = read_training(session, attempt)
        arm_all(session, training, attempt.number)
    last = training.payers[-1]
    stage = training.plan.stages[0]
    with transaction(workshop.factory) as session:
        rest = ledger.get_hold(session, last.hold_id).amount_nano - 1
        facts = {"attempt": attempt.number, "stage": "elsewhere", "now": training.job.created_at}
        ledger.charge(session, hold_id=last.hold_id, amount_nano=rest, **facts)
    budget = HeldBudget(workshop.context(attempt), training)
    with pytest.raises(BudgetExceeded):
        budget.charge(stage.event, stage.name)
    assert {hold.charged_nano for hold in workshop.holds(job_id).values()} == {0, rest}
    assert charges(workshop, training.payers[0].account.id, job_id) == []
    assert journalled(storage_of(workshop.settings), job_id).price_nano == 0


def test_an_attempt_that_was_stopped_goes_on_and_every_account_pays_once_more_for_what_is_repeated(workshop, later):
    job_id = workshop.train(further=[later[1]])
    stop = threading.Event()

    def stopping(run: Any) -> Any:
        run.pay(run.plan.stages[0].event, run.plan.stages[0].name)
        stop.set()
        run.progress(stage="votes", step=0, steps=1)
        raise AssertionError

    assert workshop.work(job_id, {"datalens": stopping}, stop) is ExitStatus.INTERRUPTED
    workshop.give_back(job_id)
    first = {each: hold.charged_nano for each, hold in workshop.holds(job_id).items()}
    assert min(first.values()) > 0
    published_by(workshop, job_id, TRAINERS)
    for each, hold in workshop.holds(job_id).items():
        assert first[each] < hold.captured_nano <= hold.amount_nano
    assert len({len(charges(workshop, each, job_id)) for each in first}) == 1


def test_a_training_that_ends_early_publishes_and_returns_the_rest_to_every_account(workshop, later):
    job_id = workshop.train(further=[later[1]])

    def cancelled(run: Any) -> Any:
        for stage in run.plan.stages[:2]:
            run.pay(stage.event, stage.name)
        workshop.cancel(job_id)
        return TRAINERS["datalens"](run)

    assert workshop.work(job_id, {"datalens": cancelled}) is ExitStatus.ENDED
    held = workshop.holds(job_id)
    assert workshop.job(job_id).state is JobState.SUCCEEDED
    assert {hold.state for hold in held.values()} == {HoldState.CAPTURED}
    assert inspect_ledger(workshop.settings, workshop.factory, thorough=True).findings == ()


def test_deleting_any_of_its_datasets_ends_a_training_and_every_account_keeps_what_was_charged(workshop, later):
    job_id = workshop.train(further=[later[1]])
    assert workshop.do(deletion.jobs_needing, later[1]) == [job_id]
    attempt = workshop.claim(job_id)
    with transaction(workshop.factory) as session:
        training = read_training(session, attempt)
        arm_all(session, training, attempt.number)
    HeldBudget(workshop.context(attempt), training).charge(training.plan.stages[0].event, training.plan.stages[0].name)
    workshop.do(deletion.begin, later[1], cancel_jobs=True, now=datetime.now(UTC))
    workshop.do(jobs.finish_cancelled, job_id=job_id, attempt=attempt.number, now=datetime.now(UTC))
    held = workshop.holds(job_id).values()
    assert {hold.state for hold in held} == {HoldState.CAPTURED}
    assert min(hold.captured_nano for hold in held) > 0
