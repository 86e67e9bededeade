"""What is kept beside the database betrays one that is too old, and what a verification finds is acted upon."""

import json
import os
import shutil
from collections.abc import Iterator
from errno import EIO
from io import BytesIO
from pathlib import Path

import pytest
from sqlalchemy import select, text

from obscura.wire.formats import CARD_FILE
from service import installation, ledger
from service.audit.findings import FindingCode, clear_stops
from service.audit.proofs import CHECKPOINT_FILE, keep_newest, keep_receipt
from service.db.access_tables import Installation
from service.db.base import is_id, new_id
from service.db.job_tables import Release
from service.db.session import SessionFactory, open_sessions, transaction
from service.errors import NotFound
from service.inspection import follow_up, inspect_at_start, inspect_ledger, may_remove, sign_heads
from service.ledger.stops import arming_stops, lock_of
from service.settings import Settings
from service.storage.folder import FolderStorage
from service.storage.interface import key_of, open_regular
from service.storage.journals import Journal
from tests.conftest import NOW
from tests.service.audit.book import LedgerBook
from tests.service.orders import release_with_files
from tests.service.steps import before_the_first_select
from tests.together import at_once


@pytest.fixture
def restored(book: LedgerBook, tmp_path: Path) -> Settings:
    """A backup of the database with today's data folder, as after a restore."""
    path = tmp_path / "backup.db"
    book.train("patients")
    with book.factory.kw["bind"].connect() as connection:
        connection.exec_driver_sql("ROLLBACK")
        connection.exec_driver_sql(f"VACUUM INTO '{path}'")
    return Settings(data_dir=book.data_dir, database_url=f"sqlite:///{path}")


@pytest.fixture
def older(restored: Settings) -> Iterator[SessionFactory]:
    with open_sessions(restored.database_url) as factory:
        yield factory


def test_a_restored_backup_is_found_by_the_kept_receipt_and_stops_arming(book, restored, older):
    account_id, factory = book.accounts["patients"], older
    inspect_at_start(restored, factory, now=book.now)
    with transaction(factory, read_only=True) as session:
        assert not arming_stops(session)  # the control: today it is no older than anything
    newer = book.train("patients")["statement"]["entry"]["sequence"]
    findings = inspect_ledger(restored, factory).findings
    assert [(finding.code, finding.sequence) for finding in findings] == [(FindingCode.OLDER_THAN_RECEIPT, newer)]
    inspect_at_start(restored, factory, now=book.now)
    with transaction(factory, read_only=True) as session:
        assert [stop.scope for stop in arming_stops(session)] == [account_id]
        assert keep_newest(session, FolderStorage(book.data_dir)) == 0  # the evidence is not overwritten
    # It stays found when the restored database has grown beyond the receipt.
    with transaction(factory) as session:
        clear_stops(session)
    grown = LedgerBook(factory, book.data_dir, book.now, dict(book.accounts))
    for _ in range(3):
        _, hold_id = grown.hold("patients")
        with transaction(factory) as session:
            ledger.return_hold(session, hold_id=hold_id, reason="cancelled", now=grown.tick())
    assert [finding.code for finding in inspect_ledger(restored, factory).findings] == [FindingCode.OLDER_THAN_RECEIPT]


def test_a_damaged_receipt_keeps_no_other_from_being_kept(book):
    book.open("pupils")
    for account in ("patients", "pupils"):
        book.train(account, keep=False)
    with transaction(book.factory) as session:
        of_patients = Release.account_id == book.accounts["patients"]
        session.scalars(select(Release).where(of_patients)).one().receipt = {"receipt": "of nobody"}
    with transaction(book.factory, read_only=True) as session:
        assert keep_newest(session, FolderStorage(book.data_dir)) == 1


def test_a_restored_backup_is_found_by_the_kept_checkpoint(book, settings, restored, older):
    book.hold("patients")
    assert sign_heads(settings, book.factory, inspect_ledger(settings, book.factory), now=book.now) == 1
    found = [(finding.code, finding.account_id) for finding in inspect_ledger(restored, older).findings]
    missing = (FindingCode.CHECKPOINT_MISSING, None)  # whatever is missing, nothing may be armed
    assert found == [missing, (FindingCode.OLDER_THAN_CHECKPOINT, book.accounts["patients"])]


def test_a_receipt_that_a_user_holds_finds_it_too(book, restored, older, tmp_path):
    held = tmp_path / "held.json"
    held.write_text(json.dumps(book.train("patients", keep=False)))
    assert inspect_ledger(restored, older).clean
    (finding,) = inspect_ledger(restored, older, given=[held]).findings
    assert (finding.code, finding.stops) == (FindingCode.OLDER_THAN_RECEIPT, True)
    held.write_text("{}")
    (finding,) = inspect_ledger(restored, older, given=[held]).findings
    assert (finding.code, finding.stops) == (FindingCode.RECEIPT_REFUSED, False)  # anybody may hand in anything


def test_a_finding_says_how_much_is_missing_and_how_to_record_it(book, restored, older):
    newer = book.train("patients")["statement"]["account"]
    account_id = book.accounts["patients"]
    assert "obscura ledger accept ACCOUNT" in str(inspect_at_start(restored, older, now=book.now))
    (finding,) = inspect_ledger(restored, older).findings
    with transaction(older, read_only=True) as session:
        spent_nano = ledger.get_account(session, account_id).spent_nano
        assert lock_of(session) == finding.code
    assert f"{newer['spent_nano']} nano-units were spent; the database says {spent_nano}." in finding.message
    assert f"`obscura ledger accept {account_id}` records the difference" in finding.message


def test_a_crash_between_commit_and_file_raises_no_alarm_and_is_healed(book, settings):
    first = book.train("patients")
    book.train("patients", keep=False)  # the process died before it could keep this one
    (path,) = (book.data_dir / "receipts").glob("acc_*.json")
    assert json.loads(path.read_text()) == first
    assert inspect_ledger(settings, book.factory).clean
    inspect_at_start(settings, book.factory, now=book.now)
    newest = json.loads(path.read_text())
    assert newest["statement"]["entry"]["sequence"] > first["statement"]["entry"]["sequence"]
    assert not keep_receipt(FolderStorage(book.data_dir), first)  # an older one never replaces it


@pytest.mark.parametrize("lost", ["folder", "disk", "endless"])
def test_a_receipt_that_cannot_be_read_stops_its_own_account_alone(book, settings, monkeypatch, lost):
    book.open("pupils")
    for account in ("patients", "pupils"):
        book.train(account)
    path = book.data_dir / "receipts" / f"{book.accounts['patients']}.json"
    if lost == "folder":
        path.unlink()
        path.mkdir()
    elif lost == "endless":
        with path.open("r+b") as file:
            file.truncate(2**40)  # no machine could read it whole
    else:

        class Refusing(BytesIO):
            def read(self, _size=-1):
                raise OSError(EIO, "the disk refuses it")

        def opened(asked):
            return Refusing() if asked == path else open_regular(asked)

        monkeypatch.setattr("service.storage.interface.open_regular", opened)
    (finding,) = inspect_ledger(settings, book.factory).findings
    assert (finding.code, finding.account_id) == (FindingCode.RECEIPT_REFUSED, book.accounts["patients"])


def test_a_journal_that_cannot_be_read_leaves_the_ledger_unverified(book, settings):
    job_id = new_id("job")
    Journal(FolderStorage(book.data_dir), job_id, 1, "acc_a").write(stage="steps", count=1, cost_nano=1)
    path = book.data_dir / "journals" / f"{job_id}.jsonl"
    path.unlink()
    path.mkdir()
    with pytest.raises(NotFound, match=f"The journal {job_id}.jsonl cannot be read."):
        inspect_ledger(settings, book.factory)


def test_a_kept_file_that_was_altered_is_found(book, settings):
    book.train("patients")
    (path,) = (book.data_dir / "receipts").glob("acc_*.json")
    content = path.read_text()
    path.write_text(content.replace("add_remove", "replace_one"))
    (finding,) = inspect_ledger(settings, book.factory).findings
    assert (finding.code, finding.account_id) == (FindingCode.RECEIPT_REFUSED, book.accounts["patients"])
    path.write_text(content)
    sign_heads(settings, book.factory, inspect_ledger(settings, book.factory), now=book.now)
    (book.data_dir / "receipts" / CHECKPOINT_FILE).write_text("[]")
    (finding,) = inspect_ledger(settings, book.factory).findings
    assert (finding.code, finding.account_id) == (FindingCode.CHECKPOINT_FILE_REFUSED, None)


def test_changed_artifacts_are_found(book, settings, tmp_path):
    target = release_with_files(book, "patients", generator="{}")
    kept = shutil.copytree(target, tmp_path / "made")
    report = inspect_ledger(settings, book.factory, thorough=True)
    assert (report.clean, report.artifacts) == (True, 1)
    (target / "generator.json").write_text("[]")
    (finding,) = inspect_ledger(settings, book.factory, thorough=True).findings
    assert (finding.code, finding.stops) == (FindingCode.ARTIFACT_MISMATCH, True)
    shutil.rmtree(target)
    (finding,) = inspect_ledger(settings, book.factory, thorough=True).findings
    assert (finding.code, finding.stops) == (FindingCode.ARTIFACT_MISMATCH, False)  # lost, but nothing unpaid is shown
    target.symlink_to(kept)
    assert not inspect_ledger(settings, book.factory, thorough=True).clean
    assert inspect_ledger(settings, book.factory).clean  # only where it is asked for


def test_a_privacy_card_that_says_something_else_than_the_files_is_found(book, settings, tmp_path):
    release_with_files(book, "patients", **{Path(CARD_FILE).stem: "{}"})  # what the book's releases show
    assert inspect_ledger(settings, book.factory, thorough=True).clean
    for shown in ('{"epsilon": 0.1}', "{"):
        with book.factory.kw["bind"].begin() as connection:
            connection.exec_driver_sql(f"UPDATE releases SET card = '{shown}'")
        found = inspect_ledger(settings, book.factory, thorough=True).findings
        # The row is not what its entry commits to, and not what its files say.
        assert [finding.code for finding in found] == [FindingCode.RELEASE_MISMATCH, FindingCode.CARD_MISMATCH]
        assert {finding.account_id for finding in found} == {book.accounts["patients"]}


@pytest.mark.parametrize("table", ["entries", "checkpoints"])
def test_a_trigger_that_was_dropped_is_found(book, settings, table):
    with book.factory.kw["bind"].begin() as connection:
        connection.exec_driver_sql(f"DROP TRIGGER {table}_no_delete")
    (finding,) = inspect_ledger(settings, book.factory).findings
    assert (finding.code, finding.account_id) == (FindingCode.TRIGGER_MISSING, None)
    assert f"{table}_no_delete" in finding.message


@pytest.mark.services
def test_a_trigger_that_was_disabled_is_found(postgres_url, postgres_factory, tmp_path):
    settings = Settings(data_dir=tmp_path, database_url=postgres_url)
    for change in ("DISABLE", "ENABLE REPLICA", "ENABLE"):
        with transaction(postgres_factory) as session:
            session.execute(text(f"ALTER TABLE entries {change} TRIGGER entries_no_update_delete"))
        findings = inspect_ledger(settings, postgres_factory).findings
        assert ["entries_no_update_delete" in finding.message for finding in findings] == [True] * (change != "ENABLE")


# --- a data folder and a database know each other ---------------------------------------------------------------------


def pair(settings: Settings, factory: SessionFactory) -> bool:
    return installation.pair(settings, factory, now=NOW)


def row(factory: SessionFactory) -> str | None:
    with transaction(factory, read_only=True) as session:
        return installation.recorded(session)


def mismatches(settings: Settings, factory: SessionFactory) -> list[str]:
    found = inspect_ledger(settings, factory).findings
    return [finding.message for finding in found if finding.code is FindingCode.INSTALLATION_MISMATCH]


@pytest.fixture
def new(database_url: str, tmp_path: Path) -> Settings:
    (tmp_path / "var").mkdir(mode=0o700)
    return Settings(data_dir=tmp_path / "var", database_url=database_url)


def test_a_new_installation_gets_one_id_however_many_processes_start(new, factory):
    assert at_once(*[lambda: pair(new, factory)] * 4) == [True] * 4
    own_id = row(factory)
    assert own_id is not None
    assert is_id(own_id, "ins")
    path = new.data_dir / "installation"
    assert path.read_text() == f"{own_id}\n"
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert not (new.data_dir / "installation.new").exists()
    assert mismatches(new, factory) == []


def test_a_start_that_was_interrupted_is_gone_on_with_at_either_place(new, factory):
    (new.data_dir / "installation.new").write_text("ins_of_a_start_that_never_committed\n")
    assert pair(new, factory)
    path, own_id = new.data_dir / "installation", row(factory)
    path.rename(new.data_dir / "installation.new")  # as if the process had died after the commit
    assert mismatches(new, factory) == []
    assert pair(new, factory)
    assert (path.read_text(), row(factory)) == (f"{own_id}\n", own_id)


def test_what_holds_an_id_that_the_other_does_not_is_found(book, settings):
    assert pair(settings, book.factory)
    path, own_id = settings.data_dir / "installation", row(book.factory)
    cases: dict[str | None, tuple[str, str]] = {
        None: (f"The database belongs to installation {own_id}, and the data folder to none", "OBSCURA_DATA_DIR"),
        "ins_b": (f"installation {own_id}, and the data folder to installation ins_b", "OBSCURA_DATABASE_URL"),
        "": (f"installation {own_id}, and the data folder to installation ", "OBSCURA_DATABASE_URL"),
    }
    for kept, told in cases.items():
        path.unlink(missing_ok=True)
        if kept is not None:
            path.write_text(kept)
        (message,) = mismatches(settings, book.factory)
        assert all(part in message for part in told)
        assert message.count(". ") <= 1
        assert message.endswith("until then nothing is removed, and no private data is opened.")
        assert not pair(settings, book.factory)  # starting again mends nothing by itself
    path.write_text(f"{own_id}\n")
    with transaction(book.factory) as session:
        session.delete(session.get_one(Installation, 1))
    (message,) = mismatches(settings, book.factory)
    assert message.startswith(f"The database belongs to none, and the data folder to installation {own_id}")
    assert not pair(settings, book.factory)


def test_a_mismatch_stops_everything_and_is_the_first_finding(book, settings):
    assert pair(settings, book.factory)
    (settings.data_dir / "installation").write_text("ins_b\n")
    (book.data_dir / key_of(new_id("rel"))).mkdir(parents=True)
    sentence = inspect_at_start(settings, book.factory, now=book.now)
    assert sentence == mismatches(settings, book.factory)[0]
    assert book.stops() == [("*", "installation_mismatch")]
    (settings.data_dir / "installation").write_text(f"{row(book.factory)}\n")
    sentence = inspect_at_start(settings, book.factory, now=book.now)
    assert sentence is not None
    assert "its database is older than its storage (installation_mismatch, release_unknown)" in sentence


@pytest.mark.parametrize("unknown", ["release", "sample", "journal", "receipt", "dataset", "admin key"])
def test_without_ids_the_two_are_paired_only_if_the_database_knows_everything(book, settings, tmp_path, unknown):
    folder = release_with_files(book, "patients", generator="{}")
    data_dir = settings.data_dir
    strange = {
        "release": data_dir / key_of(new_id("rel")),
        "sample": data_dir / key_of(new_id("smp")),
        "journal": data_dir / "journals" / f"{new_id('job')}.jsonl",
        "receipt": data_dir / "receipts" / f"{new_id('acc')}.json",
        "dataset": data_dir / key_of(new_id("ds")),
        "admin key": settings.admin_key_path,
    }[unknown]
    strange.mkdir(parents=True)
    assert not pair(settings, book.factory)
    assert row(book.factory) is None
    assert not (data_dir / "installation").exists()
    strange.rmdir()
    assert pair(settings, book.factory)
    assert folder.is_dir()


def test_a_finding_that_stops_no_training_keeps_files_from_being_removed_too(book, settings, tmp_path):
    def allowed() -> bool:
        with transaction(book.factory, read_only=True) as session:
            return may_remove(session, settings)

    assert allowed()
    assert inspect_at_start(settings, book.factory, now=book.tick()) is None
    assert allowed()
    handed_in = tmp_path / "receipt.json"
    handed_in.write_text("{}")
    follow_up(book.factory, inspect_ledger(settings, book.factory, given=[handed_in]), now=book.tick())
    assert book.stops() == []
    assert not allowed()
    assert inspect_at_start(settings, book.factory, now=book.tick()) is None  # the next verification finds nothing
    assert allowed()


def test_a_first_start_during_a_verification_raises_no_alarm(book, settings):
    with before_the_first_select(book.factory, lambda: pair(settings, book.factory)):
        assert mismatches(settings, book.factory) == []
    assert row(book.factory) is not None
    assert mismatches(settings, book.factory) == []
