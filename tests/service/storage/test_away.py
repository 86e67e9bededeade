"""A service with a remote storage: it needs no folder, survives a storage that is away, and waits for keys.

With a real bucket: only its own database removes anything there, backups move in and out, and subjects withdraw.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from obscura.cli.console import CliError, Output
from obscura.wire.schemas import DatasetRequest
from obscura.wire.words import DatasetState, JobState
from service import installation, jobs
from service.audit.findings import FindingCode
from service.audit.proofs import kept_receipts
from service.audit.signing import make_signing_key
from service.backups.accepting import accept
from service.backups.making import back_up
from service.backups.restoring import restore
from service.cli.serving import serve
from service.datasets import deletion, reading, states
from service.datasets.vault import Vault, make_fingerprint_key
from service.db.dataset_tables import Dataset
from service.db.job_tables import Sample
from service.db.session import open_sessions, transaction
from service.errors import InvalidInput, NotFound
from service.inspection import inspect_at_start, inspect_ledger, verify_again
from service.ledger.stops import arming_stops
from service.settings import Settings
from service.storage import storage_of
from service.storage.interface import StorageUnavailable, digest_directory, digest_file, key_of
from service.storage.journals import Journal, journalled, read_withdrawn
from tests.service.datasets.world import DATASET, SubjectWorld, begun, npz, receive
from tests.service.orders import release_with_files
from tests.service.steps import make_key
from tests.service.storage.contract import KEY, RELEASE, publish
from tests.service.storage.memory_bucket import MEMORY_URL, MemoryBucket
from tests.workers.conftest import Workshop, build
from tests.workers.tiny_runner import TRAINERS as TINY
from workers.supervise.attempts import ExitStatus, claim_job, claim_next
from workers.supervise.reconcile import reconcile, sweep

pytest.importorskip("botocore", reason="needs botocore: pip install '.[s3]'")
from service.storage.s3.bucket import Bucket

pytestmark = pytest.mark.usefixtures("read_here")
NOW = datetime.now(UTC)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryBucket:
    bucket = MemoryBucket()
    bucket.serve(monkeypatch, tmp_path / "var" / "storage")
    return bucket


@pytest.fixture
def shop(tmp_path: Path, sqlite_url: str, bucket: MemoryBucket) -> Iterator[Workshop]:
    shop = build(tmp_path / "var", sqlite_url, storage=MEMORY_URL)
    yield shop
    shop.factory.kw["bind"].dispose()


def test_a_training_its_samples_and_all_that_is_verified_need_no_folder(shop, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert installation.pair(shop.settings, shop.factory, now=NOW)
    storage = storage_of(shop.settings)
    job_id = shop.train()
    shop.work(job_id, TINY)
    shop.assert_settled(job_id, JobState.SUCCEEDED)
    release = shop.release_of(job_id)
    assert digest_directory(storage.open(release.artifact_dir)) == release.artifact_sha256
    assert journalled(storage, job_id).cost_nano == shop.hold(job_id).charged_nano > 0
    drawing = shop.sample(release.id)
    shop.work(drawing, TINY)
    sample = shop.do(jobs.made_by, Sample, drawing)
    assert digest_file(storage.open(key_of(sample.id), f"{sample.id}.npz")) == sample.sha256
    report = inspect_ledger(shop.settings, shop.factory, thorough=True)
    assert (report.findings, report.artifacts) == ((), 1)
    assert len(kept_receipts(storage)) == 1
    assert storage.list("work") == [job_id]
    assert sweep(shop.settings, shop.factory, now=NOW) == 1
    assert (storage.list("work"), len(storage.list("trash"))) == ([], 1)
    deletion.delete(shop.settings, shop.factory, shop.dataset_id, cancel_jobs=False, now=NOW)
    assert storage.list("datasets") == [shop.public_id]
    with pytest.raises(NotFound):
        Vault.of(shop.settings).open_dataset(shop.dataset_id)
    storage.remove(key_of(release.id))
    (gone,) = inspect_ledger(shop.settings, shop.factory, thorough=True).findings
    assert gone.code is FindingCode.ARTIFACT_MISMATCH
    assert {path.name for path in shop.settings.data_dir.iterdir()} <= {"keys", "work", "storage"}


def test_an_upload_is_published_and_swept_there(bucket, tmp_path):
    settings = Settings(data_dir=tmp_path / "var", storage=MEMORY_URL)
    make_fingerprint_key(settings)
    labels = np.array([0, 1])
    receive(settings, begun(), [npz(np.zeros((2, 4, 6), np.uint8), labels)])
    reading.sweep(settings, set)
    np.testing.assert_array_equal(Vault.of(settings).open_dataset(DATASET)[1], labels)
    assert not (settings.data_dir / "datasets").exists()


def test_an_unknown_storage_is_refused(tmp_path):
    settings = Settings(data_dir=tmp_path, storage="cloud")
    with pytest.raises(InvalidInput, match="OBSCURA_STORAGE is cloud; choose one of folder"):
        storage_of(settings)
    with pytest.raises(CliError, match="OBSCURA_STORAGE is cloud; choose one of folder"):
        serve(settings, Output(as_json=False))


def test_a_storage_that_is_away_is_no_finding(shop, bucket):
    shop.train()
    bucket.is_away = True
    training = {"kind": "train", "worker": "test"}
    for act, facts in ((inspect_at_start, {}), (verify_again, {"full": False}), (claim_next, training)):
        with pytest.raises(StorageUnavailable):
            act(shop.settings, shop.factory, now=NOW, **facts)
    assert shop.do(arming_stops) == []


def test_an_attempt_whose_storage_is_lost_is_followed_by_another(shop, bucket):
    job_id = shop.train()
    attempt = shop.claim(job_id)
    bucket.is_away = True
    assert shop.work(attempt, TINY) is ExitStatus.LOST
    assert shop.job(job_id).state is JobState.RUNNING
    bucket.is_away = False
    assert shop.work(attempt, TINY) is ExitStatus.ENDED
    shop.assert_settled(job_id, JobState.SUCCEEDED)


def test_a_job_waits_for_keys_that_are_on_their_way(shop, stream):
    job_id, key = shop.train(), Vault.of(shop.settings).key_path(shop.dataset_id)

    def claimed() -> bool:
        return claim_job(shop.settings, shop.factory, job_id=job_id, worker="test", now=NOW) is not None

    shop.settings.ledger_key_path.unlink()
    assert not claimed()
    make_signing_key(shop.settings.ledger_key_path)
    content = key.read_bytes()
    key.unlink()
    assert not claimed()
    assert key.name in stream.getvalue()
    assert shop.job(job_id).attempts_lost == 0
    key.write_bytes(content)
    assert claimed()


def test_copies_of_the_keys_of_deleted_datasets_are_destroyed(shop):
    path = Vault.of(shop.settings).key_path(shop.dataset_id)
    copy = path.read_bytes()
    deletion.delete(shop.settings, shop.factory, shop.dataset_id, cancel_jobs=False, now=NOW)
    path.write_bytes(copy)
    reconcile(shop.settings, shop.factory, send=lambda *_: None, now=datetime.now(UTC))
    assert not path.exists()
    assert Vault.of(shop.settings).key_path(shop.public_id).exists()


def test_a_dataset_whose_key_is_gone_is_not_shown_as_ready_while_the_service_runs(shop):
    path = Vault.of(shop.settings).key_path(shop.dataset_id)
    key = path.read_bytes()

    def state() -> DatasetState:
        reconcile(shop.settings, shop.factory, send=lambda *_: None, now=datetime.now(UTC))
        with transaction(shop.factory, read_only=True) as session:
            return session.get_one(Dataset, shop.dataset_id).state

    assert state() is DatasetState.READY
    path.unlink()
    assert state() is DatasetState.FAILED
    path.write_bytes(key)
    assert state() is DatasetState.READY


# --- a real bucket ----------------------------------------------------------------------------------------------------


def test_a_database_that_is_not_the_buckets_removes_nothing(bucket_url, tmp_path, sqlite_url, sqlite_factory, now):
    settings = Settings(data_dir=tmp_path / "var", storage=bucket_url, database_url=sqlite_url, trash_days=0)
    storage = storage_of(settings)
    storage.write("installation", b"ins_" + b"a" * 20)
    publish(storage)
    storage.move(KEY, f"trash/20200102T030405Z.releases.{RELEASE}")
    publish(storage)
    before = [listed.name for listed in Bucket(bucket_url).list("")]
    assert not installation.pair(settings, sqlite_factory, now=now)
    assert sweep(settings, sqlite_factory, now=now) == 0
    assert [listed.name for listed in Bucket(bucket_url).list("")] == before


def test_a_backup_moves_an_installation_into_a_bucket_and_back(bucket_url, book, settings, tmp_path):
    release = release_with_files(book, "patients", generator="{}")
    assert installation.pair(settings, book.factory, now=book.now)
    account_id = book.accounts["patients"]
    Journal(storage_of(settings), "job_" + "a" * 20, 1, account_id).write(stage="votes", count=1, cost_nano=7)
    _, token = book.do(make_key, name="boss", scopes=["admin"])
    back_up(settings, book.factory, tmp_path / "first", with_keys=True, now=book.now)
    there = Settings(data_dir=tmp_path / "there", storage=bucket_url, database_url=f"sqlite:///{tmp_path / 'there.db'}")
    restored = restore(there, tmp_path / "first", keep_files=False, now=book.now)
    assert {finding.code.value for finding in restored.report.findings} == {"journal_unknown"}  # of no job of ours
    assert restored.report.artifacts == 1
    storage = storage_of(there)
    Journal(storage, "job_" + "a" * 20, 2, account_id).write(stage="votes", count=1, cost_nano=3)
    with open_sessions(there.database_url) as factory:
        facts = {"reason": "moved", "now": book.tick()}
        outcomes = [accept(there, factory, each, token, **facts) for each in sorted(book.accounts.values())]
        assert sum(outcome.recorded_nano for outcome in outcomes) == 10
        assert not outcomes[-1].locked
        back_up(there, factory, tmp_path / "second", with_keys=True, now=book.tick())
    back = Settings(data_dir=tmp_path / "back", database_url=f"sqlite:///{tmp_path / 'back.db'}")
    assert restore(back, tmp_path / "second", keep_files=False, now=book.now).report.artifacts == 1
    assert (tmp_path / "back" / "releases" / release.name / "generator.json").read_text() == "{}"
    assert journalled(storage_of(back), "job_" + "a" * 20).counts == {"votes": 2}


def test_subjects_withdraw_from_what_lies_in_a_bucket(bucket_url, tmp_path, sqlite_factory, open_account):
    settings = Settings(data_dir=tmp_path / "var", storage=bucket_url)
    make_fingerprint_key(settings)
    facts = {"name": "people", "classes": ["a"], "height": 4, "width": 4, "channels": 1, "visibility": "private"}

    def declare(account_id: str, **more: Any) -> str:
        with transaction(sqlite_factory) as session:
            wanted = DatasetRequest(**facts, records_declared=99, account_id=account_id, **more)
            return states.declare(session, settings, wanted, now=datetime.now(UTC)).id

    people = SubjectWorld(settings, sqlite_factory, declare, open_account, declare)
    account_id = people.account("patients")
    first = people.upload(account_id, ["anna", "bert"])
    content = {listed.name for listed in Bucket(bucket_url).list("") if "/journals/" not in listed.name}
    people.withdraw(account_id, "anna")
    later = people.upload(account_id, ["carl", "anna"])
    names = [f"{dataset_id}.1" for dataset_id in (first, later)]
    assert storage_of(settings).list("datasets") == sorted(names)
    assert [len(people.records(dataset_id)) for dataset_id in (first, later)] == [1, 1]
    assert people.context.vault.stored_keys() == set(names)
    left = {listed.name for listed in Bucket(bucket_url).list("")}
    assert not content & left, "nothing of what was uploaded lies there"
    assert read_withdrawn(storage_of(settings), account_id)
