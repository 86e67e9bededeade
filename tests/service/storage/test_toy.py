"""A second storage is one file and one line: a service works with it from upload to deletion."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from obscura.wire.words import JobState
from service import installation, jobs
from service.audit.findings import FindingCode
from service.audit.receipts import kept_receipts
from service.datasets import deletion, reading
from service.datasets.reading import Upload
from service.datasets.vault import make_fingerprint_key, open_dataset
from service.db.job_tables import Sample
from service.errors import InvalidInput, NotFound
from service.inspection import inspect_ledger
from service.settings import Settings
from service.storage import BACKENDS, storage_of
from service.storage.files import digest_directory, digest_file
from service.storage.interface import key_of
from service.storage.journals import journalled
from tests.service.datasets.uploading import npz, receive
from tests.service.storage.contract import StorageContract
from tests.service.storage.toy_storage import ToyStorage
from tests.workers.conftest import Workshop, build
from tests.workers.tiny_runner import TRAINERS as TINY
from workers.supervise.reconcile import sweep


@pytest.fixture
def storage(tmp_path: Path) -> ToyStorage:
    return ToyStorage(Settings(data_dir=tmp_path / "var"))


class TestToy(StorageContract):
    """The contract, kept by rows of a table."""


@pytest.fixture
def shop(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    monkeypatch.setitem(BACKENDS, "toy", ToyStorage)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shop = build(tmp_path / "var", sqlite_url, storage="toy")
    yield shop
    shop.factory.kw["bind"].dispose()


def test_a_training_its_samples_and_all_that_is_verified_need_no_folder(shop):
    now = datetime.now(UTC)
    assert installation.pair(shop.settings, shop.factory, now=now)
    storage = storage_of(shop.settings)
    job_id = shop.train()
    shop.work(job_id, TINY)
    shop.assert_settled(job_id, JobState.SUCCEEDED)
    release = shop.release_of(job_id)
    assert digest_directory(storage.open(release.artifact_dir)) == release.artifact_sha256
    assert journalled(storage, job_id).price_nano == shop.hold(job_id).charged_nano > 0
    drawing = shop.sample(release.id)
    shop.work(drawing, TINY)
    sample = shop.do(jobs.made_by, Sample, drawing)
    assert digest_file(storage.open(key_of(sample.id), f"{sample.id}.npz")) == sample.sha256
    report = inspect_ledger(shop.settings, shop.factory, thorough=True)
    assert (report.findings, report.artifacts) == ((), 1)
    assert len(kept_receipts(storage)) == 1
    assert storage.list("work") == [job_id]
    assert sweep(shop.settings, shop.factory, now=now) == 1
    assert (storage.list("work"), len(storage.list("trash"))) == ([], 1)
    deletion.delete(shop.settings, shop.factory, shop.dataset_id, cancel_jobs=False, now=now)
    assert storage.list("datasets") == [shop.public_id]
    with pytest.raises(NotFound):
        open_dataset(shop.settings, shop.dataset_id)
    storage.remove(key_of(release.id))
    (gone,) = inspect_ledger(shop.settings, shop.factory, thorough=True).findings
    assert gone.code is FindingCode.ARTIFACT_MISMATCH
    assert {path.name for path in shop.settings.data_dir.iterdir()} <= {"keys", "toy", "work"}


def test_an_upload_is_published_and_swept_there(tmp_path, monkeypatch):
    monkeypatch.setitem(BACKENDS, "toy", ToyStorage)
    settings = Settings(data_dir=tmp_path / "var", storage="toy")
    make_fingerprint_key(settings)
    upload = Upload("ds_" + "a2" * 10, ("cat", "dog"), height=4, width=4, channels=1, records_declared=100)
    images, labels = np.zeros((2, 4, 4), np.uint8), np.array([0, 1])
    receive(settings, upload, iter([npz(images, labels)]), None, "npz")
    np.testing.assert_array_equal(open_dataset(settings, upload.dataset_id)[1], labels)
    assert reading.sweep(settings, set) == 0
    assert not (settings.data_dir / "datasets").exists()


def test_a_storage_that_nobody_has_made_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="OBSCURA_STORAGE is cloud; there are folder"):
        storage_of(Settings(data_dir=tmp_path, storage="cloud"))
