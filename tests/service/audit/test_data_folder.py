"""Journals, releases and uploads that a database lacks are found, and known ones are not."""

import pytest

from service import ledger
from service.audit.findings import Finding, FindingCode
from service.db.base import new_id, release_id_of
from service.inspection import inspect_ledger
from service.settings import Settings
from service.storage.folder import FolderStorage
from service.storage.interface import key_of
from service.storage.journals import Journal
from tests.service.audit.book import LedgerBook
from tests.service.steps import before_the_first_select


def write(book: LedgerBook, job_id: str, *costs_nano: int, account: str = "patients") -> None:
    journal = Journal(FolderStorage(book.data_dir), job_id, 1, book.accounts.get(account, account))
    for cost_nano in costs_nano:
        journal.write(stage="votes", count=1, cost_nano=cost_nano)


def charged(book: LedgerBook) -> tuple[str, int]:
    """Charge a training; return its id and the amount."""
    job_id, hold_id = book.start("patients")
    book.charge(hold_id, 1)
    return job_id, book.read(ledger.get_hold, hold_id).charged_nano


def forgotten(book: LedgerBook, settings: Settings, *, full: bool = True) -> list[Finding]:
    """Return the findings about the data folder."""
    found = inspect_ledger(settings, book.factory, full=full).findings
    return [finding for finding in found if finding.code is not FindingCode.INSTALLATION_MISMATCH]


@pytest.mark.parametrize("full", [True, False])
def test_a_journal_of_an_unknown_job_is_found_with_what_it_shows(book, settings, full):
    job_id = new_id("job")
    write(book, job_id, 1_000_000, 2_000_000)
    (finding,) = forgotten(book, settings, full=full)
    assert (finding.code, finding.account_id, finding.stops) == (FindingCode.JOURNAL_UNKNOWN, None, True)
    assert f"{job_id} shows releases for 3000000 nano-units of account {book.accounts['patients']};" in finding.message


def test_journals_without_charges_and_of_unknown_accounts_are_found(book, settings):
    empty, other = sorted([new_id("job"), new_id("job")])
    write(book, empty)
    write(book, other, 8, account="acc_" + "a" * 20)
    first, second = forgotten(book, settings)
    assert f"{empty} shows releases for 0 nano-units; the job is not in the database" in first.message
    assert f"{other} shows releases for 8 nano-units of account acc_{'a' * 20}; the job is not in the" in second.message


@pytest.mark.parametrize("full", [True, False])
def test_a_journal_that_shows_more_than_was_charged_is_found(book, settings, full):
    job_id, charged_nano = charged(book)
    write(book, job_id, charged_nano)
    assert forgotten(book, settings, full=full) == []
    write(book, job_id, 5)
    (finding,) = forgotten(book, settings, full=full)
    assert (finding.code, finding.account_id) == (FindingCode.JOURNAL_AHEAD, book.accounts["patients"])
    assert f"for {charged_nano + 5} nano-units" in finding.message
    assert "the ledger lacks 5 of these nano-units" in finding.message


def test_of_ended_jobs_the_full_verification_compares_the_journals(book, settings):
    job_id, _ = charged(book)
    book.publish(job_id)
    write(book, job_id, 10**12)
    assert [finding.code for finding in forgotten(book, settings)] == [FindingCode.JOURNAL_AHEAD]


def test_releases_of_unknown_jobs_are_found_and_those_of_known_ones_are_not(book, settings):
    job_id, _ = book.hold("patients")
    known = [book.data_dir / key_of(release_id_of(job_id))]  # in place, and not published yet
    known.append((book.data_dir / key_of(new_id("rel"))).with_suffix(".0123.tmp"))
    release_id, sample_id = new_id("rel"), new_id("smp")  # a sample costs nothing
    for path in known:
        path.mkdir(parents=True)
    assert inspect_ledger(settings, book.factory).clean
    for identifier in (release_id, sample_id):
        (book.data_dir / key_of(identifier)).mkdir(parents=True)
    (release,) = forgotten(book, settings)
    assert (release.code, release.account_id, release.stops) == (FindingCode.RELEASE_UNKNOWN, None, True)
    assert release_id in release.message


@pytest.mark.parametrize("full", [True, False])
def test_a_job_that_is_accepted_charges_and_publishes_during_a_verification_raises_no_alarm(book, settings, full):
    """The folder is read before the database."""

    def publish() -> None:
        job_id, _ = charged(book)
        write(book, job_id, 10)
        book.publish(job_id)
        (book.data_dir / key_of(release_id_of(job_id))).mkdir(parents=True)

    with before_the_first_select(book.factory, publish):
        report = inspect_ledger(settings, book.factory, full=full)
    assert report.clean, report.findings
    assert inspect_ledger(settings, book.factory, full=full).clean
