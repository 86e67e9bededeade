"""Backups and restores, on both databases: what was spent after a backup is never spent again unseen."""

import json
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

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
from service.backups.making import MANIFEST, Backup, BackupRefused, back_up, read_manifest
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
from service.jobs import claimable
from service.ledger.stops import InstallationLocked, lock_of
from service.settings import Settings
from service.storage import storage_of
from service.storage.interface import Storage
from service.storage.journals import Journal, journalled, journalled_jobs
from tests.service.audit.book import LedgerBook
from tests.service.datasets.world import npz, pictures
from tests.service.orders import release_with_files
from tests.service.steps import make_key

pytestmark = pytest.mark.usefixtures("read_here")


class Installed(LedgerBook):
    """An installation that is backed up, loses its database and is restored."""

    def settings(self, **changes: Any) -> Settings:
        url = self.factory.kw["bind"].url.render_as_string(hide_password=False)
        return Settings(**{"data_dir": self.data_dir, "database_url": url} | changes)

    @property
    def backup(self) -> Path:
        return self.data_dir.parent / "backup"

    @property
    def storage(self) -> Storage:
        return storage_of(self.settings())

    def spend(self, times: int = 1, *, hold: tuple[str, str] | None = None) -> tuple[str, str]:
        """Charge a training, in the runner's order: the charge, then its line in the journal."""
        job_id, hold_id = hold or self.start("patients")
        journal = Journal(self.storage, job_id, 1, self.accounts["patients"])
        for _ in range(times):
            charged_nano = self.read(ledger.get_hold, hold_id).charged_nano
            self.charge(hold_id, 1)
            paid_nano = self.read(ledger.get_hold, hold_id).charged_nano - charged_nano
            assert paid_nano > 0
            journal.write(stage="votes", count=1, cost_nano=paid_nano)
        return job_id, hold_id

    def left_nano(self) -> int:
        """What may still be spent, whatever is held and not charged."""
        charged = "SELECT sum(charged_nano) FROM holds WHERE state = 'armed'"
        account = self.account()
        charged_nano = self.read(lambda session: session.scalar(text(charged))) or 0
        return int(account.capacity_nano - account.spent_nano - charged_nano)

    def account(self, name: str = "patients") -> ledger.Account:
        return self.read(ledger.get_account, self.accounts[name])

    def key_of(self, scope: str) -> str:
        """Return the token of a new key; each with the scope admin is another admin's."""
        return str(self.do(make_key, name="key", scopes=[scope])[1])

    def sign(self) -> None:
        settings = self.settings()
        sign_heads(settings, self.factory, inspect_ledger(settings, self.factory), now=self.tick())

    def back_up(self, *, with_keys: bool = False) -> Backup:
        return back_up(self.settings(), self.factory, self.backup, with_keys=with_keys, now=self.now)

    def lose_database(self) -> None:
        """The database is gone; an empty one of the same address takes its place."""
        engine = self.factory.kw["bind"]
        engine.dispose()
        if self.sqlite:
            for suffix in ("", "-wal", "-shm"):
                Path(f"{engine.url.database}{suffix}").unlink(missing_ok=True)
            return
        with create_engine(engine.url, poolclass=NullPool).begin() as connection:
            connection.execute(text("DROP SCHEMA public CASCADE"))
            connection.execute(text("CREATE SCHEMA public"))

    def lose_everything(self) -> None:
        self.lose_database()
        shutil.rmtree(self.data_dir)

    def restore(self, *, keep_files: bool, **changes: Any) -> Restored:
        return restore(self.settings(**changes), self.backup, keep_files=keep_files, now=self.tick())

    def lose_and_restore(self) -> Restored:
        self.lose_database()
        return self.restore(keep_files=True)

    def accept_loss(self, account_id: str, token: str, **more: Any) -> Outcome:
        facts = {"reason": "restored", "now": self.tick()} | more
        return accept(self.settings(), self.factory, account_id, token, **facts)

    def accept_all(self, token: str, **more: Any) -> list[Outcome]:
        losses = find_losses(self.settings(), self.factory)
        return [self.accept_loss(account_id, token, **more) for account_id in losses]

    def codes(self) -> set[str]:
        return {code for _scope, code in self.stops()}

    def is_locked(self) -> bool:
        return self.read(lock_of) is not None

    def is_sound(self) -> bool:
        return inspect_ledger(self.settings(), self.factory, thorough=True).clean


@contextmanager
def installed(url: str, data_dir: Path, now: datetime) -> Iterator[Installed]:
    """An installation with a release, whose training has a journal."""
    with open_sessions(url) as factory:
        made = Installed(factory, data_dir, now)
        made.open("patients")
        release_with_files(made, "patients", generator="{}")
        make_fingerprint_key(made.settings())
        assert installation.pair(made.settings(), made.factory, now=now)
        yield made


@pytest.fixture
def book(database_url: str, tmp_path: Path, now) -> Iterator[Installed]:
    with installed(database_url, tmp_path / "var", now) as made:
        yield made
    upgrade_schema(database_url)  # the tests of PostgreSQL share one database, which may have been lost


@pytest.fixture
def lone(sqlite_url: str, tmp_path: Path, now) -> Iterator[Installed]:
    with installed(sqlite_url, tmp_path / "var", now) as made:
        yield made


def test_backups_while_somebody_spends_are_sound(book):
    stop = threading.Event()

    def keep_spending() -> None:
        while not stop.is_set():
            book.spend(1) if random.random() < 0.5 else book.hold("patients")

    thread = threading.Thread(target=keep_spending)
    thread.start()
    try:
        book.back_up(with_keys=True)
    finally:
        stop.set()
        thread.join()
    book.lose_everything()
    assert book.restore(keep_files=False).report.findings == ()


def test_a_database_that_comes_back_beside_its_files_is_charged_with_what_they_prove(book):
    known, token = book.spend(), book.key_of("admin")
    other = book.do(make_key, name="program", scopes=["read"])[0].id
    book.back_up()
    book.spend(hold=known)
    book.spend(2)
    left_nano = book.left_nano()
    restored = book.lose_and_restore()
    assert {finding.code.value for finding in restored.report.findings} == {"journal_ahead", "journal_unknown"}
    assert book.is_locked()
    assert book.left_nano() > left_nano
    (loss,) = find_losses(book.settings(), book.factory).values()
    assert (loss.account_id, loss.missing_nano) == (book.accounts["patients"], book.left_nano() - left_nano)
    outcome = book.accept_loss("patients", token)
    assert (outcome.locked, outcome.remaining, outcome.recorded_nano) == (False, (), loss.missing_nano)
    assert outcome.keys_revoked == 1
    assert book.read(lambda session: session.get_one(ApiKey, other).revoked_at) is not None
    assert book.codes() == set()
    assert book.left_nano() == left_nano
    assert book.is_sound()
    with pytest.raises(Conflict, match="not locked"):
        book.accept_loss(loss.account_id, token)
    book.spend()
    assert book.is_sound()


def test_the_same_backup_restored_again_lacks_everything_again(lone):
    token = lone.key_of("admin")
    lone.back_up()
    for _ in range(2):
        lone.spend(2)
        left_nano = lone.left_nano()
        lone.sign()
        lone.lose_and_restore()
        assert lone.is_locked()
        assert not lone.accept_all(token, epsilon=0.0)[-1].locked
        assert lone.left_nano() <= left_nano
        assert lone.is_sound()


@pytest.mark.parametrize("proof", ["receipt", "checkpoint", "both"])
def test_signed_spending_is_recorded_where_no_journal_shows_it(lone, proof):
    token = lone.key_of("admin")
    lone.back_up()
    release_with_files(lone, "patients", generator="{}")
    lone.read(keep_newest, lone.storage)
    spent = lone.account()
    if proof != "receipt":
        lone.sign()
    if proof == "checkpoint":
        for path in (lone.data_dir / "receipts").glob("acc_*"):
            path.unlink()
    lone.lose_and_restore()
    assert lone.is_locked()
    assert lone.account().spent_nano < spent.spent_nano
    assert not lone.accept_all(token)[-1].locked
    assert lone.account().spent_nano >= spent.spent_nano
    assert lone.is_sound()


@pytest.mark.parametrize("epsilon", [None, 100.0])
def test_neither_a_raise_nor_a_thaw_refunds_missing_spending(lone, epsilon):
    """Spending that only lowered the limit came back with a raise: under a limit of 1, a true epsilon of 1.4."""
    token = lone.key_of("admin")
    lone.back_up()
    lone.spend(2)
    left_nano = lone.left_nano()
    lone.lose_and_restore()
    lone.accept_all(token, epsilon=epsilon)
    account = lone.account()
    assert lone.left_nano() <= left_nano
    assert account.frozen is (account.spent_nano > account.capacity_nano) is (epsilon is not None)
    if account.frozen:
        with pytest.raises(Conflict, match="stays frozen"):
            lone.do(ledger.limits.set_frozen, account_id=account.id, frozen=False, reason="go on")
    else:
        lone.raise_limit("patients", account.epsilon + 1)
        raised = lone.account()
        assert raised.spent_nano == account.spent_nano > 0
        assert ledger.balance_of(raised).spent_epsilon > 0
    assert lone.is_sound()


def test_two_admins_accept_together(lone):
    first, second = lone.key_of("admin"), lone.key_of("admin")
    lone.back_up()
    lone.spend()
    lone.lose_and_restore()
    with pytest.raises(Forbidden):
        lone.accept_all(lone.key_of("read"))
    spent_nano = lone.account().spent_nano
    (asked,) = lone.accept_all(first)
    assert asked.request_id is not None
    with pytest.raises(Conflict, match="another admin"):
        lone.accept_all(first)
    assert lone.account().spent_nano == spent_nano
    assert lone.is_locked()
    (done,) = lone.accept_all(second)
    assert (done.request_id, done.locked) == (None, False)
    assert lone.account().spent_nano > spent_nano


def test_a_locked_installation_claims_nothing_and_removes_nothing(lone):
    job_id, _ = lone.hold("patients")
    lone.back_up()
    lone.spend()
    assert job_id in lone.read(claimable, now=lone.now)
    lone.lose_and_restore()
    assert lone.read(claimable, now=lone.now) == []
    assert not lone.read(may_remove, lone.settings())
    with pytest.raises(InstallationLocked, match="obscura ledger accept ACCOUNT"):
        lone.hold("patients")


@pytest.mark.parametrize("unit", ["record", "subject"])
def test_images_and_subjects_of_after_the_backup_get_no_second_budget_in_another_account(lone, unit):
    settings, ids = lone.settings(), np.arange(40)
    first, second = (lone.open(name, unit=unit) for name in ("first", "second"))

    def upload(account_id: str, images: np.ndarray) -> Dataset:
        facts = {"name": "faces", "classes": ["a", "b"], "height": 4, "width": 4, "channels": 1, "records_declared": 50}
        facts |= {"subjects_declared": 50, "subjects_recognised": True} if unit == "subject" else {}
        request = DatasetRequest(account_id=account_id, visibility="private", **facts)
        dataset_id = lone.do(states.declare, settings, request).id
        subjects = {"subjects": ids} if unit == "subject" else {}
        sent = Sent(iter([npz(images, np.zeros(len(images), np.int64), **subjects)]), "npz")
        return receiving.receive(DatasetContext(settings, lone.factory, lone.tick), dataset_id, sent)

    token = lone.key_of("admin")
    lone.back_up()
    lost = upload(first, pictures(40))
    assert lost.account_id == first
    lone.lose_and_restore()
    assert lone.codes() == {"dataset_unknown"}
    with pytest.raises(InstallationLocked):
        upload(second, pictures(40))
    key = vault.Vault.of(settings).key_path(lost.id)
    kept = key.rename(key.with_suffix(".away"))
    with pytest.raises(Conflict, match="1 uploads cannot be fingerprinted"):
        lone.accept_all(token)
    kept.rename(key)
    assert not lone.accept_all(token)[-1].locked
    assert lone.is_sound()
    try:  # the same images, or new images of the same subjects
        account_id = upload(second, pictures(40, seed=0 if unit == "record" else 1)).account_id
    except (InvalidInput, Conflict):
        return
    assert account_id == first


def test_where_nothing_can_say_what_was_spent_a_person_decides(book):
    token = book.key_of("admin")
    job_id, _ = book.spend()
    book.back_up(with_keys=True)
    book.lose_everything()
    restored = book.restore(keep_files=False)
    assert (restored.report.findings, restored.discarded) == ((), 1)
    assert book.codes() == {"restored"}
    with transaction(book.factory) as session:
        clear_stops(session)
    assert book.codes() == {"restored"}, "no verification can tell what was lost"
    job = book.job(job_id)
    assert (job.cancel_requested, job.ended_early) == (True, "discarded")
    assert journalled_jobs(book.storage) == [job_id]
    assert installation.pair(book.settings(), book.factory, now=book.now)
    (outcome,) = book.accept_all(token, epsilon=0.5)
    assert not outcome.locked
    assert outcome.recorded_nano > 0
    assert book.is_sound()


def test_a_place_that_holds_something_is_refused_and_stays_as_it_is(book, tmp_path):
    book.back_up()
    with pytest.raises(BackupRefused, match=r"already|tables"):
        book.restore(keep_files=True)
    book.lose_database()
    with pytest.raises(BackupRefused, match="keep-files"):
        book.restore(keep_files=False)
    with pytest.raises(BackupRefused, match="First restore the key folder"):
        book.restore(keep_files=False, data_dir=tmp_path / "new")
    (book.data_dir / installation.FILE).write_text("ins_" + "a" * 20)
    with pytest.raises(BackupRefused, match="installation"):
        book.restore(keep_files=True)
    with pytest.raises(BackupRefused, match="another disk"):
        back_up(book.settings(), book.factory, book.data_dir / "backup", with_keys=False, now=book.now)


def test_a_backup_is_whole_private_and_without_keys(lone, tmp_path):
    made = lone.back_up()
    paths = [path for path in lone.backup.rglob("*") if path.is_file()]
    assert not any("keys" in path.parts or path.suffix in (".key", ".pem") for path in paths)
    assert all(path.stat().st_mode & 0o077 == 0 for path in lone.backup.rglob("*"))
    assert made.size_bytes == sum(path.stat().st_size for path in paths if path.name != MANIFEST)
    assert read_manifest(lone.backup) == made.manifest
    changed = lone.backup / sorted(made.manifest.files)[-1]
    whole = changed.read_bytes()
    changed.write_bytes(whole + b" ")
    with pytest.raises(BackupRefused, match="were changed later"):
        read_manifest(lone.backup)
    changed.unlink()
    with pytest.raises(BackupRefused, match="1 are missing"):
        read_manifest(lone.backup)
    changed.write_bytes(whole)
    document = json.loads((lone.backup / MANIFEST).read_bytes())
    (lone.backup / MANIFEST).write_text(json.dumps(document | {"schema": "9999"}))
    with pytest.raises(BackupRefused, match="newer"):
        lone.restore(keep_files=False, data_dir=tmp_path / "new", database_url="")
    (lone.backup / MANIFEST).unlink()
    with pytest.raises(BackupRefused, match="interrupted"):
        read_manifest(lone.backup)


def test_content_that_is_removed_while_it_is_copied_is_missing_and_the_backup_is_whole(lone, monkeypatch):
    copy = making.copy_file

    def removed_meanwhile(source: Path, target: Path) -> str:
        digest = copy(source, target)
        if "releases" in source.parts:
            raise NotFound("removed")
        return digest

    monkeypatch.setattr(making, "copy_file", removed_meanwhile)
    made = lone.back_up()
    assert [name.partition("/")[0] for name in made.manifest.missing] == ["releases"]
    assert read_manifest(lone.backup) == made.manifest


def test_random_moments_refund_nothing_unseen(lone, tmp_path):
    """Backups and losses at random moments; the files survive each, and the database is another one each time."""
    hold, dice = lone.spend(), random.Random(37)
    for moment in range(4):
        lone.spend(dice.randrange(2), hold=hold if dice.random() < 0.5 else None) if moment else None
        lone.back_up()
        spent_since = dice.randrange(3)
        lone.spend(spent_since) if spent_since else None
        left_nano = lone.left_nano()
        url = f"sqlite:///{tmp_path / f'restored-{moment}.db'}"
        restored = lone.restore(keep_files=True, database_url=url)
        lone.backup.rename(tmp_path / f"backup-{moment}")
        with open_sessions(url) as factory:
            known = Installed(factory, lone.data_dir, lone.now, lone.accounts)
            assert (known.left_nano() > left_nano) <= bool(known.codes()), moment
        assert bool(spent_since) == restored.report.stops
    shown = sum(journalled(lone.storage, job_id).cost_nano for job_id in journalled_jobs(lone.storage))
    assert 0 < shown <= lone.account().capacity_nano - lone.left_nano()


def test_an_account_that_the_backup_does_not_know_comes_back_frozen_and_closed(lone):
    token = lone.key_of("admin")
    lone.back_up()
    first = lone.accounts["patients"]
    lone.open("visitors")
    lone.accounts["patients"] = lone.accounts["visitors"]
    lone.spend()
    lone.accounts["patients"] = first
    lone.lose_and_restore()
    assert lone.codes() == {"journal_unknown"}
    assert not lone.accept_all(token)[-1].locked
    account = lone.account("visitors")
    assert account.frozen
    assert account.closed
    assert account.spent_nano > 0
    assert lone.is_sound()


@pytest.mark.services
def test_a_machine_without_pg_dump_says_what_to_install(postgres_url, postgres_factory, tmp_path, now, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = Settings(data_dir=tmp_path / "var", database_url=postgres_url)
    with pytest.raises(BackupRefused, match="apt-get install postgresql-client"):
        back_up(settings, postgres_factory, tmp_path / "backup", with_keys=False, now=now)
