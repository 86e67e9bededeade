"""A data folder and a database know each other: how they come to, who finds out when they do not, and what it stops."""

import os
from pathlib import Path

import pytest

from service import installation
from service.audit.findings import FindingCode
from service.db.access_tables import Installation
from service.db.base import is_id, new_id
from service.db.session import SessionFactory, transaction
from service.inspection import follow_up, inspect_at_start, inspect_ledger, may_remove
from service.settings import Settings
from service.storage.interface import key_of
from tests.conftest import NOW
from tests.service.orders import release_with_files
from tests.service.steps import before_the_first_select
from tests.together import at_once


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


def test_what_holds_an_id_that_the_other_does_not_is_found_in_one_sentence(book, settings):
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
        assert message.count(". ") == 0
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
