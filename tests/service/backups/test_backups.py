"""Backups and restores, on both databases: what was spent after a backup is never spent again unseen."""

import json
import random
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import text

from service import installation, ledger
from service.audit.arming import clear_stops
from service.audit.carried import read_notes
from service.backups.carrying import carry_forward
from service.backups.databases import ProgramMissing
from service.backups.making import back_up
from service.backups.manifest import MANIFEST, BackupRefused, read_manifest
from service.backups.restoring import restore
from service.datasets import receiving, states
from service.datasets.reading import Sent
from service.datasets.vault import make_fingerprint_key
from service.db.access_tables import Decision
from service.db.dataset_tables import Dataset
from service.db.schema import upgrade_schema
from service.db.session import make_engine, make_session_factory, transaction
from service.errors import Conflict, InvalidInput
from service.identity import decisions
from service.inspection import inspect_ledger, sign_heads
from service.settings import Settings
from service.storage import storage_of
from service.storage.folder import FolderStorage
from service.storage.journals import journalled, journalled_jobs
from tests.service.audit.book import LedgerBook
from tests.service.backups.losing import codes, installed, left, lose_database, settings_of, spend
from tests.service.datasets.uploading import npz
from tests.service.people import make_key


@pytest.fixture
def book(database_url: str, tmp_path: Path, now) -> Iterator[LedgerBook]:
    """An installation on each database, with a key of fingerprints."""
    with installed(database_url, tmp_path / "var", now) as made:
        make_fingerprint_key(settings_of(made))
        yield made
    upgrade_schema(database_url)  # the tests of PostgreSQL share one database, which may have been lost


def test_backups_while_somebody_spends_are_sound(book, tmp_path):
    stop = threading.Event()

    def keep_spending() -> None:
        while not stop.is_set():
            spend(book, 1) if random.random() < 0.5 else book.hold("patients")

    thread = threading.Thread(target=keep_spending)
    thread.start()
    try:
        back_up(settings_of(book), book.factory, tmp_path / "backup", with_keys=True, now=book.now)
    finally:
        stop.set()
        thread.join()
    lose_database(book)
    shutil.rmtree(book.data_dir)
    restored = restore(settings_of(book), tmp_path / "backup", keep_files=False, now=book.now)
    assert restored.report.findings == ()


def test_a_database_that_comes_back_beside_its_files_is_charged_with_what_they_show(book, tmp_path):
    known = spend(book)
    back_up(settings_of(book), book.factory, tmp_path / "backup", with_keys=False, now=book.now)
    spend(book, hold=known)
    spend(book, 2)
    left_nano = left(book)
    lose_database(book)
    restored = restore(settings_of(book), tmp_path / "backup", keep_files=True, now=book.now)
    assert {finding.code.value for finding in restored.report.findings} == {"journal_ahead", "journal_unknown"}
    assert codes(book)
    assert left(book) > left_nano
    carried = carry_forward(settings_of(book), book.factory, now=book.now)
    assert carried.report.clean, carried.report.findings
    assert codes(book) == set()
    assert left(book) <= left_nano
    assert set(carried.limits) == {book.accounts["patients"]}
    assert len(carried.aside) == 2
    again = carry_forward(settings_of(book), book.factory, now=book.now)
    assert again.missing_nano == {}


@pytest.mark.parametrize("signed", [False, True])
def test_the_same_backup_restored_once_more_refunds_nothing_of_what_was_carried_forward(lone, tmp_path, signed):
    """What showed it lies aside since the first time, and the database that had it taken off is lost."""
    settings = settings_of(lone)
    back_up(settings, lone.factory, tmp_path / "backup", with_keys=False, now=lone.now)
    spend(lone, 2)
    left_nano = left(lone)
    for _ in range(3):
        lose_database(lone)
        assert restore(settings, tmp_path / "backup", keep_files=True, now=lone.now).report.stops
        assert codes(lone)
        carried = carry_forward(settings, lone.factory, now=lone.now)
        assert carried.report.clean, carried.report.findings
        assert left(lone) <= left_nano
        assert carried.limits
        if signed:
            assert lone.key.key_id
            assert sign_heads(settings, lone.factory, inspect_ledger(settings, lone.factory), now=lone.tick())
        spend(lone)
        left_nano = left(lone)


@pytest.mark.parametrize("moves", [0, 1])
def test_carrying_forward_that_is_interrupted_takes_nothing_twice(lone, tmp_path, monkeypatch, moves):
    settings = settings_of(lone)
    back_up(settings, lone.factory, tmp_path / "backup", with_keys=False, now=lone.now)
    spend(lone)
    spend(lone)
    lose_database(lone)
    assert restore(settings, tmp_path / "backup", keep_files=True, now=lone.now).report.stops
    move, done = FolderStorage.move, list[str]()

    def dies(storage: FolderStorage, key: str, target: str) -> None:
        if len(done) == moves:
            raise KeyboardInterrupt
        done.append(key)
        move(storage, key, target)

    with monkeypatch.context() as patched:
        patched.setattr(FolderStorage, "move", dies)
        with pytest.raises(KeyboardInterrupt):
            carry_forward(settings, lone.factory, now=lone.now)
    left_nano = left(lone)
    carried = carry_forward(settings, lone.factory, now=lone.now)
    assert (carried.missing_nano, carried.limits, left(lone)) == ({}, {}, left_nano)
    assert carried.report.clean, carried.report.findings
    assert codes(lone) == set()
    assert journalled_jobs(storage_of(settings)) == []


def restored_with_carried_spending(lone: LedgerBook, backup: Path) -> None:
    """Spend after a backup, lose the database, restore, and carry the spending forward."""
    spend(lone, 2)
    lose_database(lone)
    restore(settings_of(lone), backup, keep_files=True, now=lone.now)
    assert carry_forward(settings_of(lone), lone.factory, now=lone.tick()).report.clean


def test_a_raise_does_not_refund_carried_spending(lone, tmp_path):
    """Carried spending only lowers the limit: under a limit of 1, a raise back to 1 allowed a true epsilon of 1.4."""
    settings, account_id = settings_of(lone), lone.accounts["patients"]
    limit = lone.read(ledger.get_account, account_id=account_id).epsilon
    back_up(settings, lone.factory, tmp_path / "backup", with_keys=False, now=lone.now)
    restored_with_carried_spending(lone, tmp_path / "backup")
    left_nano = left(lone)
    with pytest.raises(Conflict, match=r"cannot be raised.*nano-units that were spent after the backup"):
        lone.raise_limit("patients", limit)
    assert left(lone) == left_nano
    lone.open("visitors")
    lone.raise_limit("visitors", 9.0)  # other accounts are not concerned


def test_a_raise_requested_before_the_backup_is_not_approved_after_carrying(lone, tmp_path):
    settings, account_id = settings_of(lone), lone.accounts["patients"]
    asking, approving = (lone.do(make_key, name=name, scopes=["admin"])[0].id for name in ("asks", "approves"))
    wanted = {"account_id": account_id, "epsilon": 9.0, "reason": "protocol 17", "asked_with": asking}
    request_id = lone.do(ledger.request_raise, **wanted).id
    back_up(settings, lone.factory, tmp_path / "backup", with_keys=False, now=lone.now)
    restored_with_carried_spending(lone, tmp_path / "backup")
    with transaction(lone.factory) as session:  # as if the limit were the one at which the raise was requested
        row = session.get_one(Decision, request_id)
        row.epsilon_before = ledger.get_account(session, account_id).epsilon
    with pytest.raises(Conflict, match="cannot be raised"), transaction(lone.factory) as session:
        decisions.decide(session, request_id, approving, lone.tick(), ledger.LIMIT_EFFECTS, approved=True)


@pytest.mark.parametrize("frozen_before", [False, True])
def test_an_account_that_carried_spending_has_used_up_is_neither_raised_nor_unfrozen(lone, tmp_path, frozen_before):
    settings, account_id = settings_of(lone), lone.accounts["patients"]
    known = spend(lone)
    back_up(settings, lone.factory, tmp_path / "backup", with_keys=False, now=lone.now)
    lose_and_restore = partial(restore, settings, tmp_path / "backup", keep_files=True)
    spend(lone, 2, hold=known)
    lose_database(lone)
    lose_and_restore(now=lone.now)
    lone.do(ledger.lower_limit, account_id=account_id, epsilon=0.001, reason="less")
    if frozen_before:
        assert lone.read(ledger.get_account, account_id=account_id).frozen
    carry_forward(settings, lone.factory, now=lone.tick())
    assert lone.read(ledger.get_account, account_id=account_id).frozen
    for step, terms in ((ledger.set_frozen, {"frozen": False, "reason": "go on"}), (lone.raise_limit, {})):
        with pytest.raises(Conflict):
            lone.do(step, account_id=account_id, **terms) if terms else step("patients", 5.0)


def test_a_person_cannot_lock_an_account_by_the_words_of_a_reason(lone):
    reason = f"5 {ledger.CARRIED} (x)"
    lone.do(ledger.lower_limit, account_id=lone.accounts["patients"], epsilon=2.0, reason=reason, by="key_somebody")
    lone.raise_limit("patients", 4.0)


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a restore forgets the fingerprints of uploads after the backup, so these units get a second budget; "
    "a locked restore will replace carrying forward",
)
@pytest.mark.parametrize("unit", ["record", "subject"])
def test_images_and_subjects_of_after_the_backup_get_no_second_budget_in_another_account(lone, tmp_path, unit):
    settings, ids = settings_of(lone), np.arange(40)
    make_fingerprint_key(settings)
    first, second = (lone.open(name, unit=unit) for name in ("first", "second"))
    pictures = np.random.default_rng(7).integers(0, 256, (2, 40, 4, 4), dtype=np.uint8)

    def upload(account_id: str, images: np.ndarray) -> Dataset:
        facts = {
            "name": "faces",
            "classes": ["a", "b"],
            "height": 4,
            "width": 4,
            "channels": 1,
            "visibility": "private",
        }
        facts |= {"records_declared": 50, "subjects_declared": 50 if unit == "subject" else None}
        facts |= {"subjects_recognised": True} if unit == "subject" else {}
        with transaction(lone.factory) as session:
            dataset_id = states.declare(session, settings, account_id=account_id, now=lone.tick(), **facts).id
        subjects = {"subjects": ids} if unit == "subject" else {}
        sent = Sent(iter([npz(images, np.zeros(len(images), np.int64), **subjects)]), "npz")
        return receiving.receive(settings, lone.factory, dataset_id, sent, clock=lone.tick)

    back_up(settings, lone.factory, tmp_path / "backup", with_keys=False, now=lone.now)
    assert upload(first, pictures[0]).account_id == first
    lose_database(lone)
    restore(settings, tmp_path / "backup", keep_files=True, now=lone.now)
    carry_forward(settings, lone.factory, now=lone.tick())
    try:  # the same images, or new images of the same subjects
        account_id = upload(second, pictures[0 if unit == "record" else 1]).account_id
    except (InvalidInput, Conflict):
        return
    assert account_id == first


def test_what_was_signed_since_is_not_moved_by_the_next_time(lone, tmp_path):
    """The files of receipts and of the checkpoint have the names of those that were moved aside before."""
    settings, storage = settings_of(lone), storage_of(settings_of(lone))
    assert lone.key.key_id
    for moment in range(2):
        back_up(settings, lone.factory, tmp_path / f"{moment}", with_keys=False, now=lone.now)
        spend(lone)
        sign_heads(settings, lone.factory, inspect_ledger(settings, lone.factory), now=lone.tick())
        assert storage.holds("receipts/checkpoint.json")
        lose_database(lone)
        found = restore(settings, tmp_path / f"{moment}", keep_files=True, now=lone.now).report.findings
        assert "older_than_checkpoint" in {finding.code.value for finding in found}
        carried = carry_forward(settings, lone.factory, now=lone.now)
        assert carried.report.clean, carried.report.findings
        assert sum("checkpoint" in key for key in carried.aside) == 1
    assert [list(note.keys) for note in read_notes(storage)] == [[], []]


def test_where_nothing_can_say_what_was_spent_a_person_decides(book, tmp_path):
    job_id, _ = spend(book)
    back_up(settings_of(book), book.factory, tmp_path / "backup", with_keys=True, now=book.now)
    lose_database(book)
    shutil.rmtree(book.data_dir)
    restored = restore(settings_of(book), tmp_path / "backup", keep_files=False, now=book.now)
    assert (restored.report.findings, restored.discarded) == ((), 1)
    assert codes(book) == {"restored"}
    job = book.read(
        lambda session: session.execute(
            text("SELECT cancel_requested, ended_early FROM jobs WHERE id = :id"), {"id": job_id}
        ).one()
    )
    assert (bool(job[0]), job[1]) == (True, "discarded")
    assert journalled_jobs(storage_of(settings_of(book))) == [job_id]
    assert installation.pair(settings_of(book), book.factory, now=book.now)
    book.do(lambda session, **_: clear_stops(session))
    assert inspect_ledger(settings_of(book), book.factory, thorough=True).clean


def test_a_place_that_holds_something_is_refused_and_stays_as_it_is(book, tmp_path):
    settings = settings_of(book)
    made = tmp_path / "backup"
    back_up(settings, book.factory, made, with_keys=False, now=book.now)
    with pytest.raises(BackupRefused, match=r"already|tables"):
        restore(settings, made, keep_files=True, now=book.now)
    lose_database(book)
    with pytest.raises(BackupRefused, match="keep-files"):
        restore(settings, made, keep_files=False, now=book.now)
    with pytest.raises(BackupRefused, match="keys first"):
        restore(settings.model_copy(update={"data_dir": tmp_path / "new"}), made, keep_files=False, now=book.now)
    (book.data_dir / installation.FILE).write_text("ins_" + "a" * 20)
    with pytest.raises(BackupRefused, match="installation"):
        restore(settings, made, keep_files=True, now=book.now)
    with pytest.raises(BackupRefused, match="another disk"):
        back_up(settings, book.factory, book.data_dir / "backup", with_keys=False, now=book.now)


@pytest.fixture
def lone(sqlite_url: str, tmp_path: Path, now) -> Iterator[LedgerBook]:
    with installed(sqlite_url, tmp_path / "var", now) as made:
        yield made


def test_a_backup_is_whole_private_and_without_keys(lone, tmp_path):
    made = back_up(settings_of(lone), lone.factory, tmp_path / "backup", with_keys=False, now=lone.now)
    paths = [path for path in (tmp_path / "backup").rglob("*") if path.is_file()]
    assert not any("keys" in path.parts or path.suffix in (".key", ".pem") for path in paths)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "backup").rglob("*"))
    assert made.size_bytes == sum(path.stat().st_size for path in paths if path.name != MANIFEST)
    assert read_manifest(tmp_path / "backup") == made.manifest
    changed = tmp_path / "backup" / sorted(made.manifest.files)[-1]
    whole = changed.read_bytes()
    changed.write_bytes(whole + b" ")
    with pytest.raises(BackupRefused, match="not what was written"):
        read_manifest(tmp_path / "backup")
    changed.unlink()
    with pytest.raises(BackupRefused, match="1 are missing"):
        read_manifest(tmp_path / "backup")
    changed.write_bytes(whole)
    document = json.loads((tmp_path / "backup" / MANIFEST).read_bytes())
    (tmp_path / "backup" / MANIFEST).write_text(json.dumps(document | {"schema": "9999"}))
    with pytest.raises(BackupRefused, match="newer"):
        restore(
            settings_of(lone, data_dir=tmp_path / "new", database_url=""),
            tmp_path / "backup",
            keep_files=False,
            now=lone.now,
        )
    (tmp_path / "backup" / MANIFEST).unlink()
    with pytest.raises(BackupRefused, match="interrupted"):
        read_manifest(tmp_path / "backup")


def test_random_moments_refund_nothing_unseen(lone, tmp_path):
    """Backups and losses at random moments; the files survive each, and the database is another one each time."""
    settings, hold = settings_of(lone), spend(lone)
    dice, account_id = random.Random(37), lone.accounts["patients"]
    for moment in range(4):
        spend(lone, dice.randrange(2), hold=hold if dice.random() < 0.5 else None) if moment else None
        backup = tmp_path / f"backup-{moment}"
        back_up(settings, lone.factory, backup, with_keys=False, now=lone.now)
        spent_since = dice.randrange(3)
        spend(lone, spent_since) if spent_since else None
        left_nano = left(lone)
        there = settings_of(lone, database_url=f"sqlite:///{tmp_path / f'restored-{moment}.db'}")
        restored = restore(there, backup, keep_files=True, now=lone.now)
        engine = make_engine(there.database_url)
        known = LedgerBook(make_session_factory(engine), lone.data_dir, lone.now, {"patients": account_id})
        assert (left(known) > left_nano) <= bool(codes(known)), moment
        assert bool(spent_since) == restored.report.stops
        engine.dispose()
    storage = storage_of(settings)
    shown = sum(journalled(storage, job_id).price_nano for job_id in journalled_jobs(storage))
    capacity_nano = lone.read(ledger.get_account, account_id=account_id).capacity_nano
    assert 0 < shown <= capacity_nano - left(lone)


def test_an_account_that_the_backup_does_not_know_keeps_trainings_stopped(lone, tmp_path):
    back_up(settings_of(lone), lone.factory, tmp_path / "backup", with_keys=False, now=lone.now)
    first = lone.accounts["patients"]
    lone.open("visitors")
    lone.accounts["patients"] = lone.accounts["visitors"]
    spend(lone)
    lone.accounts["patients"] = first
    lose_database(lone)
    restore(settings_of(lone), tmp_path / "backup", keep_files=True, now=lone.now)
    with pytest.raises(BackupRefused, match="opened after the backup"):
        carry_forward(settings_of(lone), lone.factory, now=lone.now)
    assert codes(lone) == {"journal_unknown"}


@pytest.mark.services
def test_a_machine_without_pg_dump_says_what_to_install(postgres_url, tmp_path, now, monkeypatch):
    engine = make_engine(postgres_url)
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = Settings(data_dir=tmp_path / "var", database_url=postgres_url)
    with pytest.raises(ProgramMissing, match="apt-get install postgresql-client"):
        back_up(settings, make_session_factory(engine), tmp_path / "backup", with_keys=False, now=now)
    engine.dispose()
