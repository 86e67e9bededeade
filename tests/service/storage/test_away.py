"""A storage that does not answer stops nobody's trainings, and keys that are still on their way are waited for."""

import io
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from obscura.wire.words import DatasetState, JobState
from service.audit.signing import make_signing_key
from service.datasets import deletion
from service.datasets.vault import Vault
from service.db.dataset_tables import Dataset
from service.db.session import transaction
from service.inspection import inspect_at_start, verify_again
from service.ledger.stops import arming_stops
from service.storage import BACKENDS
from service.storage.interface import StorageUnavailable
from tests.service.storage.toy_storage import Fickle
from tests.workers.conftest import Workshop, build
from tests.workers.tiny_runner import TRAINERS as TINY
from workers.supervise.attempts import ExitStatus, claim_job, claim_next
from workers.supervise.reconcile import reconcile

NOW = datetime.now(UTC)


@pytest.fixture
def shop(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    monkeypatch.setattr(Fickle, "away", False)
    monkeypatch.setitem(BACKENDS, "fickle", Fickle)
    shop = build(tmp_path / "var", sqlite_url, storage="fickle")
    yield shop
    shop.factory.kw["bind"].dispose()


def test_a_storage_that_is_away_is_no_finding(shop, monkeypatch):
    shop.train()
    monkeypatch.setattr(Fickle, "away", True)
    with pytest.raises(StorageUnavailable):
        inspect_at_start(shop.settings, shop.factory, now=NOW)
    with pytest.raises(StorageUnavailable):
        verify_again(shop.settings, shop.factory, full=False, now=NOW)
    with pytest.raises(StorageUnavailable):
        claim_next(shop.settings, shop.factory, kind="train", worker="test", now=NOW)
    assert shop.do(arming_stops) == []


def test_an_attempt_whose_storage_is_lost_is_followed_by_another(shop, monkeypatch):
    job_id = shop.train()
    attempt = shop.claim(job_id)
    monkeypatch.setattr(Fickle, "away", True)
    assert shop.work(attempt, TINY) is ExitStatus.LOST
    assert shop.job(job_id).state is JobState.RUNNING
    monkeypatch.setattr(Fickle, "away", False)
    assert shop.work(attempt, TINY) is ExitStatus.ENDED
    shop.assert_settled(job_id, JobState.SUCCEEDED)


def test_a_job_waits_for_keys_that_are_on_their_way(shop, stream: io.StringIO):
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
