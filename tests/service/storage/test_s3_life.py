"""A service lives with a bucket, and only with its own database."""

from datetime import UTC, datetime
from typing import Any

import pytest

from obscura.wire.schemas import DatasetRequest
from service import installation
from service.backups.accepting import accept
from service.backups.making import back_up
from service.backups.restoring import restore
from service.datasets import states
from service.datasets.vault import make_fingerprint_key
from service.db.session import open_sessions, transaction
from service.settings import Settings
from service.storage import storage_of
from service.storage.journals import Journal, journalled, read_withdrawn
from tests.service.datasets.world import SubjectWorld
from tests.service.orders import release_with_files
from tests.service.steps import make_key
from tests.service.storage.contract import KEY, RELEASE, publish
from workers.supervise import reconcile

pytest.importorskip("botocore", reason="needs botocore: pip install '.[s3]'")
from service.storage.s3.bucket import Bucket

pytestmark = pytest.mark.usefixtures("read_here")


def test_a_database_that_is_not_the_buckets_removes_nothing(bucket_url, tmp_path, sqlite_url, sqlite_factory, now):
    settings = Settings(data_dir=tmp_path / "var", storage=bucket_url, database_url=sqlite_url, trash_days=0)
    storage = storage_of(settings)
    storage.write("installation", b"ins_" + b"a" * 20)
    publish(storage)
    storage.move(KEY, f"trash/20200102T030405Z.releases.{RELEASE}")
    publish(storage)
    before = [listed.name for listed in Bucket(bucket_url).list("")]
    assert not installation.pair(settings, sqlite_factory, now=now)
    assert reconcile.sweep(settings, sqlite_factory, now=now) == 0
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
