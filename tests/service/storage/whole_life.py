"""What a service does with a storage that is no folder, from a training to a deletion."""

from datetime import UTC, datetime

import pytest

from obscura.wire.words import JobState
from service import installation, jobs
from service.audit.findings import FindingCode
from service.audit.proofs import kept_receipts
from service.datasets import deletion
from service.datasets.vault import Vault
from service.db.job_tables import Sample
from service.errors import NotFound
from service.inspection import inspect_ledger
from service.storage import storage_of
from service.storage.files import digest_directory, digest_file
from service.storage.interface import key_of
from service.storage.journals import journalled
from tests.workers.conftest import Workshop
from tests.workers.tiny_runner import TRAINERS as TINY
from workers.supervise.reconcile import sweep


def live(shop: Workshop) -> None:
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
        Vault.of(shop.settings).open_dataset(shop.dataset_id)
    storage.remove(key_of(release.id))
    (gone,) = inspect_ledger(shop.settings, shop.factory, thorough=True).findings
    assert gone.code is FindingCode.ARTIFACT_MISMATCH
    assert {path.name for path in shop.settings.data_dir.iterdir()} <= {"keys", "work", "storage"}
