"""Consequences of a verification: arming stops, work that continues under one, and checkpoints."""

from datetime import timedelta

import pytest

from obscura.wire.words import HoldState
from service import jobs, ledger
from service.audit.findings import Finding, FindingCode, Report, clear_stops, verifications
from service.audit.proofs import newest_checkpoint
from service.db.session import transaction
from service.inspection import follow_up, inspect_at_start, watch_over
from service.ledger.stops import ArmingStopped, arming_stops
from tests.service.audit.book import LedgerBook
from workers.supervise.attempts import claim_next

EVERYTHING = Report(full=True, findings=(Finding(FindingCode.CHECKPOINT_BROKEN, "Checkpoint 1 is missing."),))


def test_a_stopped_account_arms_nothing_and_its_jobs_wait(factory, tmp_path, now):
    book = LedgerBook(factory, tmp_path / "var", now)
    book.open("patients")
    book.open("pupils")
    stopped_job, stopped_hold = book.hold("patients")
    free_job, free_hold = book.hold("pupils")
    book.claim(stopped_job)
    finding = Finding(FindingCode.HASH_MISMATCH, "changed", book.accounts["patients"], 3)
    for _ in range(2):  # idempotent
        follow_up(factory, Report(full=True, findings=(finding,)), now=now)
    with pytest.raises(ArmingStopped, match="nothing more is spent"):
        book.arm(stopped_hold)
    book.do(jobs.give_back, job_id=stopped_job, attempt=1)
    assert list(book.read(jobs.claimable, now=now)) == [free_job]
    assert book.do(jobs.claim, worker="w", lease_seconds=60, job_id=stopped_job) is None
    book.claim(free_job)
    book.arm(free_hold)
    with transaction(factory) as session:
        assert clear_stops(session) == 1
    assert book.claim(stopped_job) == 2
    book.arm(stopped_hold, 2)
    assert book.read(ledger.get_hold, stopped_hold).state is HoldState.ARMED


def test_armed_work_is_charged_and_captured_under_a_stop(factory, tmp_path, now):
    """A stop refunds nothing: armed jobs continue, pay, and publish."""
    book = LedgerBook(factory, tmp_path / "var", now)
    book.open("patients")
    published, failed, lost = (book.start("patients") for _ in range(3))
    for _, hold_id in (published, failed, lost):
        book.charge(hold_id, 1)
    follow_up(factory, EVERYTHING, now=now)
    for _, hold_id in (published, failed, lost):
        book.charge(hold_id, 1)
    book.publish(published[0])
    book.do(jobs.finish_failed, job_id=failed[0], attempt=1, failure_code=jobs.FailureCode.DATASET_UNAVAILABLE)
    book.now += timedelta(days=1)  # a lease that ran out neither ends the job nor starts it again
    assert book.do(jobs.claim, worker="w", lease_seconds=60, job_id=lost[0], attempts_max=1) is None
    holds = [book.read(ledger.get_hold, hold_id) for _, hold_id in (published, failed, lost)]
    assert [hold.state for hold in holds] == [HoldState.CAPTURED, HoldState.CAPTURED, HoldState.ARMED]
    balance = book.read(ledger.get_account, book.accounts["patients"])
    assert balance.spent_nano == 2 * holds[0].charged_nano > 0
    assert balance.reserved_nano == holds[2].amount_nano


def test_a_finding_without_an_account_stops_everything(book, settings):
    job_id, hold_id = book.hold("patients")
    book.claim(job_id)
    follow_up(book.factory, EVERYTHING, now=book.now)
    with pytest.raises(ArmingStopped):
        book.arm(hold_id)
    with pytest.raises(ArmingStopped):
        book.hold("patients")
    assert claim_next(settings, book.factory, kind="train", worker="w", now=book.now) is None


def test_a_file_that_somebody_hands_in_stops_nothing(book):
    doubt = Finding(FindingCode.RECEIPT_REFUSED, "refused", None, stops=False)
    follow_up(book.factory, Report(full=True, findings=(doubt,)), now=book.now)
    assert book.stops() == []


def test_checkpoints_are_signed_when_due_and_never_over_a_finding(book, settings):
    def newest() -> int:
        checkpoint = book.read(newest_checkpoint)
        return 0 if checkpoint is None else checkpoint.sequence

    watch_over(settings, book.factory, now=book.now)
    assert newest() == 1
    book.train("patients")
    watch_over(settings, book.factory, now=book.now)
    assert newest() == 1  # not within the hour
    later = book.now.replace(hour=book.now.hour + 2)
    watch_over(settings, book.factory, now=later)
    watch_over(settings, book.factory, now=later.replace(hour=later.hour + 2))  # nothing has moved
    assert newest() == 2
    book.train("patients")
    book.corrupt("UPDATE accounts SET spent_nano = spent_nano - 1")
    watch_over(settings, book.factory, now=later.replace(hour=later.hour + 4))
    assert newest() == 2
    assert [code for _, code in book.stops()] == [FindingCode.ACCOUNT_MISMATCH]


def test_the_whole_is_verified_once_a_day(book, settings):
    def read(kind: str) -> tuple[int, int] | None:
        return next(((v.entries, v.findings) for v in book.read(verifications) if v.kind == kind), None)

    watch_over(settings, book.factory, now=book.now)
    assert read("full") == (1, 0)
    book.train("patients")
    watch_over(settings, book.factory, now=book.now + timedelta(hours=2))
    assert (read("full"), read("recent")) == ((1, 0), (5, 0))
    book.corrupt("UPDATE entries SET amount_nano = amount_nano + 1 WHERE sequence = 3")  # before the checkpoints
    watch_over(settings, book.factory, now=book.now + timedelta(hours=23))
    assert read("full") == (1, 0)
    watch_over(settings, book.factory, now=book.now + timedelta(hours=25))
    (stop,) = book.read(arming_stops)
    assert (stop.code, stop.sequence) == (FindingCode.HASH_MISMATCH, 3)


def test_what_cannot_be_verified_is_stopped(book, settings):
    (book.key_path.parent).mkdir(parents=True, exist_ok=True)
    book.key_path.with_suffix(".pub.pem").write_text("nothing")
    inspect_at_start(settings, book.factory, now=book.now)
    assert book.stops() == [("*", FindingCode.NOT_VERIFIABLE)]


def test_a_key_that_cannot_be_used_stops_what_needs_verifying(book, settings):
    book.checkpoint()
    book.key_path.chmod(0o644)  # others may have read it: nothing is signed with it
    book.open("pupils")
    later = book.now + timedelta(hours=2)
    watch_over(settings, book.factory, now=later)
    assert book.read(newest_checkpoint).sequence == 1
    assert book.stops() == []  # nothing is wrong with the ledger
    book.key_path.with_suffix(".pub.pem").write_text("nothing")
    watch_over(settings, book.factory, now=later)
    assert [code for _, code in book.stops()] == [FindingCode.NOT_VERIFIABLE]


def test_a_checkpoint_that_is_no_json_is_found_by_the_watch(book, settings):
    book.checkpoint()
    book.corrupt("UPDATE checkpoints SET heads = '{'")
    watch_over(settings, book.factory, now=book.now)
    assert [code for _, code in book.stops()] == [FindingCode.CHECKPOINT_BROKEN]
