"""Backups and restores, on both databases: what was spent after a backup is never spent again unseen."""

import json
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from obscura.wire.schemas import DatasetRequest
from service import installation, ledger
from service.audit.findings import clear_stops
from service.audit.proofs import keep_newest
from service.backups import making
from service.backups.accepting import Outcome, accept
from service.backups.making import MANIFEST, BackupRefused, Made, back_up, read_manifest
from service.backups.restoring import Restored, restore
from service.datasets import receiving, states, vault
from service.datasets.reading import Sent
from service.datasets.vault import DatasetContext, make_fingerprint_key
from service.db.access_tables import ApiKey
from service.db.dataset_tables import Dataset
from service.db.schema import upgrade_schema
from service.db.session import open_sessions, transaction
from service.errors import Conflict, Forbidden, InvalidInput, NotFound
from service.inspection import find_losses, inspect_ledger, may_remove, sign_heads
from service.jobs import claimable, get_job
from service.ledger.stops import InstallationLocked, arming_stops, lock_of
from service.settings import Settings
from service.storage import storage_of
from service.storage.journals import Journal, journalled, journalled_jobs
from tests.service.audit.book import LedgerBook
from tests.service.datasets.uploading import npz
from tests.service.orders import release_with_files
from tests.service.people import make_key

pytestmark = pytest.mark.usefixtures("read_here")


@contextmanager
def installed(url: str, data_dir: Path, now) -> Iterator[LedgerBook]:
    """An installation with a release, whose training has a journal."""
    with open_sessions(url) as factory:
        made = LedgerBook(factory, data_dir, now)
        made.open("patients")
        release_with_files(made, "patients", generator="{}")
        make_fingerprint_key(settings_of(made))
        assert installation.pair(settings_of(made), made.factory, now=now)
        yield made


def settings_of(book: LedgerBook, **changes) -> Settings:
    url = book.factory.kw["bind"].url.render_as_string(hide_password=False)
    return Settings(**{"data_dir": book.data_dir, "database_url": url} | changes)


def spend(book: LedgerBook, times: int = 1, *, hold: tuple[str, str] | None = None) -> tuple[str, str]:
    """Charge a training, in the runner's order: the charge, then its line in the journal."""
    job_id, hold_id = hold or book.hold("patients")
    if hold is None:
        book.claim(job_id)
        book.arm(hold_id)
    account_id = book.accounts["patients"]
    journal = Journal(storage_of(settings_of(book)), job_id, 1, account_id)
    for _ in range(times):
        charged = book.read(ledger.get_hold, hold_id=hold_id).charged_nano
        book.charge(hold_id, 1)
        paid = book.read(ledger.get_hold, hold_id=hold_id).charged_nano - charged
        assert paid > 0
        journal.write(stage="votes", count=1, cost_nano=paid)
    return job_id, hold_id


def left(book: LedgerBook) -> int:
    """What may still be spent, whatever is held and not charged."""
    charged = "SELECT sum(charged_nano) FROM holds WHERE state = 'armed'"
    account = book.read(ledger.get_account, account_id=book.accounts["patients"])
    charged_nano = book.read(lambda session: session.scalar(text(charged))) or 0
    return int(account.capacity_nano - account.spent_nano - charged_nano)


def lose_database(book: LedgerBook) -> None:
    """The database is gone; an empty one of the same address takes its place."""
    engine = book.factory.kw["bind"]
    engine.dispose()
    if book.sqlite:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{engine.url.database}{suffix}").unlink(missing_ok=True)
        return
    with create_engine(engine.url, poolclass=NullPool).begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))


def codes(book: LedgerBook) -> set[str]:
    return {stop.code for stop in book.read(arming_stops)}


@pytest.fixture
def book(database_url: str, tmp_path: Path, now) -> Iterator[LedgerBook]:
    """An installation on each database."""
    with installed(database_url, tmp_path / "var", now) as made:
        yield made
    upgrade_schema(database_url)  # the tests of PostgreSQL share one database, which may have been lost


@pytest.fixture
def lone(sqlite_url: str, tmp_path: Path, now) -> Iterator[LedgerBook]:
    with installed(sqlite_url, tmp_path / "var", now) as made:
        yield made


def test_backups_while_somebody_spends_are_sound(book, tmp_path):
    stop = threading.Event()

    def keep_spending() -> None:
        while not stop.is_set():
            spend(book, 1) if random.random() < 0.5 else book.hold("patients")

    thread = threading.Thread(target=keep_spending)
    thread.start()
    try:
        make_backup(book, tmp_path, with_keys=True)
    finally:
        stop.set()
        thread.join()
    lose_database(book)
    shutil.rmtree(book.data_dir)
    restored = restore(settings_of(book), tmp_path / "backup", keep_files=False, now=book.now)
    assert restored.report.findings == ()


def make_backup(book: LedgerBook, folder: Path, *, with_keys: bool = False) -> Made:
    return back_up(settings_of(book), book.factory, folder / "backup", with_keys=with_keys, now=book.now)


def accept_all(book: LedgerBook, token: str, **more) -> list[Outcome]:
    """Accept what the database lacks, account by account."""
    settings = settings_of(book)
    facts = {"reason": "restored", "now": book.tick()} | more
    return [accept(settings, book.factory, each, token, **facts) for each in find_losses(settings, book.factory)]


def admin(book: LedgerBook, name: str = "boss") -> str:
    return str(book.do(make_key, name=name, scopes=["admin"])[1])


def locked(book: LedgerBook) -> str | None:
    return book.read(lock_of)


def account_of(book: LedgerBook, name: str = "patients") -> ledger.Account:
    return book.read(ledger.get_account, account_id=book.accounts[name])


def sound(book: LedgerBook) -> bool:
    return inspect_ledger(settings_of(book), book.factory, thorough=True).clean


def lose_and_restore(book: LedgerBook, folder: Path) -> Restored:
    lose_database(book)
    return restore(settings_of(book), folder / "backup", keep_files=True, now=book.tick())


def test_a_database_that_comes_back_beside_its_files_is_charged_with_what_they_prove(book, tmp_path):
    known, token = spend(book), admin(book)
    other = book.do(make_key, name="program", scopes=["read"])[0].id
    make_backup(book, tmp_path)
    spend(book, hold=known)
    spend(book, 2)
    left_nano = left(book)
    restored = lose_and_restore(book, tmp_path)
    assert {finding.code.value for finding in restored.report.findings} == {"journal_ahead", "journal_unknown"}
    assert locked(book)
    assert left(book) > left_nano
    (loss,) = find_losses(settings_of(book), book.factory).values()
    assert (loss.account_id, loss.missing_nano) == (book.accounts["patients"], left(book) - left_nano)
    (outcome,) = accept_all(book, token)
    assert (outcome.locked, outcome.remaining, outcome.recorded_nano) == (False, (), loss.missing_nano)
    assert outcome.keys_revoked == 1
    assert book.read(lambda session: session.get_one(ApiKey, other).revoked_at) is not None
    assert codes(book) == set()
    assert left(book) == left_nano
    assert sound(book)
    with pytest.raises(Conflict, match="not locked"):
        accept(settings_of(book), book.factory, loss.account_id, token, reason="again", now=book.tick())
    spend(book)
    assert sound(book)


def test_the_same_backup_restored_again_lacks_everything_again(lone, tmp_path):
    settings, token = settings_of(lone), admin(lone)
    make_backup(lone, tmp_path)
    for _ in range(2):
        spend(lone, 2)
        left_nano = left(lone)
        sign_heads(settings, lone.factory, inspect_ledger(settings, lone.factory), now=lone.tick())
        lose_and_restore(lone, tmp_path)
        assert locked(lone)
        assert not accept_all(lone, token)[-1].locked
        assert left(lone) <= left_nano
        assert sound(lone)


def publish(book: LedgerBook) -> ledger.Account:
    """Spend, and publish a release whose receipt is kept; return the account."""
    release_with_files(book, "patients", generator="{}")
    with transaction(book.factory, read_only=True) as session:
        keep_newest(session, storage_of(settings_of(book)))
    return account_of(book)


@pytest.mark.parametrize("proof", ["receipt", "checkpoint", "both"])
def test_signed_spending_is_recorded_where_no_journal_shows_it(lone, tmp_path, proof):
    settings, token = settings_of(lone), admin(lone)
    make_backup(lone, tmp_path)
    spent = publish(lone)
    if proof != "receipt":
        sign_heads(settings, lone.factory, inspect_ledger(settings, lone.factory), now=lone.tick())
    if proof == "checkpoint":
        for path in (lone.data_dir / "receipts").glob("acc_*"):
            path.unlink()
    lose_and_restore(lone, tmp_path)
    assert locked(lone)
    assert account_of(lone).spent_nano < spent.spent_nano
    assert not accept_all(lone, token)[-1].locked
    assert account_of(lone).spent_nano >= spent.spent_nano
    assert sound(lone)


@pytest.mark.parametrize("epsilon", [None, 100.0])
def test_neither_a_raise_nor_a_thaw_refunds_missing_spending(lone, tmp_path, epsilon):
    """Spending that only lowered the limit came back with a raise: under a limit of 1, a true epsilon of 1.4."""
    token = admin(lone)
    make_backup(lone, tmp_path)
    spend(lone, 2)
    left_nano = left(lone)
    lose_and_restore(lone, tmp_path)
    accept_all(lone, token, epsilon=epsilon)
    account = account_of(lone)
    assert left(lone) <= left_nano
    assert account.frozen is (account.spent_nano > account.capacity_nano) is (epsilon is not None)
    if account.frozen:
        with pytest.raises(Conflict, match="stays frozen"):
            lone.do(ledger.set_frozen, account_id=account.id, frozen=False, reason="go on")
    else:
        lone.raise_limit("patients", account.epsilon + 1)
        raised = account_of(lone)
        assert raised.spent_nano == account.spent_nano > 0
        assert ledger.balance_of(raised).spent_epsilon > 0
    assert sound(lone)


def test_two_admins_accept_together(lone, tmp_path):
    first, second = admin(lone, "first"), admin(lone, "second")
    _, reader = lone.do(make_key, name="reader", scopes=["read"])
    make_backup(lone, tmp_path)
    spend(lone)
    lose_and_restore(lone, tmp_path)
    with pytest.raises(Forbidden):
        accept_all(lone, reader)
    spent_nano = account_of(lone).spent_nano
    (asked,) = accept_all(lone, first)
    assert asked.request_id is not None
    with pytest.raises(Conflict, match="another admin"):
        accept_all(lone, first)
    assert account_of(lone).spent_nano == spent_nano
    assert locked(lone)
    (done,) = accept_all(lone, second)
    assert (done.request_id, done.locked) == (None, False)
    assert account_of(lone).spent_nano > spent_nano


def test_a_locked_installation_claims_nothing_and_removes_nothing(lone, tmp_path):
    settings = settings_of(lone)
    job_id, _ = lone.hold("patients")
    make_backup(lone, tmp_path)
    spend(lone)
    with transaction(lone.factory, read_only=True) as session:
        assert job_id in claimable(session, now=lone.now)
    lose_and_restore(lone, tmp_path)
    with transaction(lone.factory, read_only=True) as session:
        assert claimable(session, now=lone.now) == []
        assert not may_remove(session, settings)
    with pytest.raises(InstallationLocked, match="obscura ledger accept ACCOUNT"):
        lone.hold("patients")


@pytest.mark.parametrize("unit", ["record", "subject"])
def test_images_and_subjects_of_after_the_backup_get_no_second_budget_in_another_account(lone, tmp_path, unit):
    settings, ids = settings_of(lone), np.arange(40)
    first, second = (lone.open(name, unit=unit) for name in ("first", "second"))
    pictures = np.random.default_rng(7).integers(0, 256, (2, 40, 4, 4), dtype=np.uint8)

    def upload(account_id: str, images: np.ndarray) -> Dataset:
        facts = {"name": "faces", "classes": ["a", "b"], "height": 4, "width": 4, "channels": 1, "records_declared": 50}
        facts |= {"visibility": "private", "subjects_recognised": unit == "subject"}
        facts |= {"subjects_declared": 50 if unit == "subject" else None}
        with transaction(lone.factory) as session:
            dataset_id = states.declare(
                session, settings, DatasetRequest(account_id=account_id, **facts), now=lone.tick()
            ).id
        subjects = {"subjects": ids} if unit == "subject" else {}
        sent = Sent(iter([npz(images, np.zeros(len(images), np.int64), **subjects)]), "npz")
        return receiving.receive(DatasetContext(settings, lone.factory, lone.tick), dataset_id, sent)

    token = admin(lone)
    make_backup(lone, tmp_path)
    lost = upload(first, pictures[0])
    assert lost.account_id == first
    lose_and_restore(lone, tmp_path)
    assert codes(lone) == {"dataset_unknown"}
    with pytest.raises(InstallationLocked):
        upload(second, pictures[0])
    key = vault.Vault.of(settings).key_path(lost.id)
    kept = key.rename(key.with_suffix(".away"))
    with pytest.raises(Conflict, match="1 uploads cannot be fingerprinted"):
        accept_all(lone, token)
    kept.rename(key)
    assert not accept_all(lone, token)[-1].locked
    assert sound(lone)
    try:  # the same images, or new images of the same subjects
        account_id = upload(second, pictures[0 if unit == "record" else 1]).account_id
    except (InvalidInput, Conflict):
        return
    assert account_id == first


def test_where_nothing_can_say_what_was_spent_a_person_decides(book, tmp_path):
    token = admin(book)
    job_id, _ = spend(book)
    make_backup(book, tmp_path, with_keys=True)
    lose_database(book)
    shutil.rmtree(book.data_dir)
    restored = restore(settings_of(book), tmp_path / "backup", keep_files=False, now=book.now)
    assert (restored.report.findings, restored.discarded) == ((), 1)
    assert codes(book) == {"restored"}
    with transaction(book.factory) as session:
        clear_stops(session)
    assert codes(book) == {"restored"}, "no verification can tell what was lost"
    job = book.read(get_job, job_id=job_id)
    assert (job.cancel_requested, job.ended_early) == (True, "discarded")
    assert journalled_jobs(storage_of(settings_of(book))) == [job_id]
    assert installation.pair(settings_of(book), book.factory, now=book.now)
    (outcome,) = accept_all(book, token, epsilon=0.5)
    assert not outcome.locked
    assert outcome.recorded_nano > 0
    assert sound(book)


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


def test_a_backup_is_whole_private_and_without_keys(lone, tmp_path):
    made = make_backup(lone, tmp_path)
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
    there = settings_of(lone, data_dir=tmp_path / "new", database_url="")
    with pytest.raises(BackupRefused, match="newer"):
        restore(there, tmp_path / "backup", keep_files=False, now=lone.now)
    (tmp_path / "backup" / MANIFEST).unlink()
    with pytest.raises(BackupRefused, match="interrupted"):
        read_manifest(tmp_path / "backup")


def test_content_that_is_removed_while_it_is_copied_is_missing_and_the_backup_is_whole(lone, tmp_path, monkeypatch):
    copy = making.copy_file

    def removed_meanwhile(source: Path, target: Path) -> str:
        digest = copy(source, target)
        if "releases" in source.parts:
            raise NotFound("removed")
        return digest

    monkeypatch.setattr(making, "copy_file", removed_meanwhile)
    made = make_backup(lone, tmp_path)
    assert [name.partition("/")[0] for name in made.manifest.missing] == ["releases"]
    assert read_manifest(tmp_path / "backup") == made.manifest


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
        with open_sessions(there.database_url) as factory:
            known = LedgerBook(factory, lone.data_dir, lone.now, {"patients": account_id})
            assert (left(known) > left_nano) <= bool(codes(known)), moment
        assert bool(spent_since) == restored.report.stops
    storage = storage_of(settings)
    shown = sum(journalled(storage, job_id).cost_nano for job_id in journalled_jobs(storage))
    capacity_nano = lone.read(ledger.get_account, account_id=account_id).capacity_nano
    assert 0 < shown <= capacity_nano - left(lone)


def test_an_account_that_the_backup_does_not_know_comes_back_frozen_and_closed(lone, tmp_path):
    token = admin(lone)
    make_backup(lone, tmp_path)
    first = lone.accounts["patients"]
    lone.open("visitors")
    lone.accounts["patients"] = lone.accounts["visitors"]
    spend(lone)
    lone.accounts["patients"] = first
    lose_and_restore(lone, tmp_path)
    assert codes(lone) == {"journal_unknown"}
    assert not accept_all(lone, token)[-1].locked
    account = account_of(lone, "visitors")
    assert account.frozen
    assert account.closed
    assert account.spent_nano > 0
    assert sound(lone)


@pytest.mark.services
def test_a_machine_without_pg_dump_says_what_to_install(postgres_url, postgres_factory, tmp_path, now, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = Settings(data_dir=tmp_path / "var", database_url=postgres_url)
    with pytest.raises(BackupRefused, match="apt-get install postgresql-client"):
        back_up(settings, postgres_factory, tmp_path / "backup", with_keys=False, now=now)
