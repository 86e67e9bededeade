"""Trainings after subjects withdrew: the reader gives what is left, at the same price, from the new key alone."""

import io
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from obscura.wire.schemas import DatasetRequest
from service import ledger
from service.datasets import receiving, states, vault, withdrawal
from service.datasets.reading import Sent
from service.datasets.vault import DatasetContext
from service.db.dataset_tables import Dataset
from service.db.session import transaction
from service.errors import LedgerCorruption
from service.inspection import inspect_ledger
from tests.workers.small_trainings import digits, published_by, work
from tests.workers.tiny_runner import TRAINERS
from workers.recipes.interface import Run
from workers.train.orders import read_dataset_key, read_training

IDS = np.array([f"writer {number % 40}" for number in range(200)])
GONE = ("writer 3", "writer 17", "writer that never was")


@pytest.fixture
def writers(workshop: Any) -> Any:
    """The workshop with an account whose subjects are recognised, which its trainings read."""
    vault.make_fingerprint_key(workshop.settings)
    data, now = digits(200), datetime.now(UTC)
    terms = {"owner": "office", "epsilon": 8.0, "delta": 1e-4, "unit": "subject", "adjacency": "add_remove"}
    workshop.account_id = workshop.do(ledger.open_account, name="known writers", now=now, **terms).id
    facts = {"name": "digits", "visibility": "private", "classes": list(data.classes), "height": 8, "width": 8}
    facts |= {"channels": 1, "records_declared": 1500, "subjects_declared": 400, "subjects_recognised": True}
    wanted = DatasetRequest(account_id=workshop.account_id, **facts)
    declared = workshop.do(states.declare, workshop.settings, wanted, now=now)
    workshop.dataset_id, buffer = declared.id, io.BytesIO()
    np.savez(buffer, images=data.private_images, labels=data.private_labels, subjects=IDS)
    sent = Sent(iter([buffer.getvalue()]), "npz")
    receiving.receive(DatasetContext(workshop.settings, workshop.factory, lambda: datetime.now(UTC)), declared.id, sent)
    return workshop


def withdraw(shop: Any, *ids: str) -> withdrawal.Withdrawal:
    now = datetime.now(UTC)
    return withdrawal.withdraw(shop.settings, shop.factory, shop.account_id, ids, cancel_jobs=False, now=now)


def test_a_later_training_reads_what_is_left_and_costs_the_same(writers):
    read: list[Any] = []

    def watched(run: Run) -> Any:
        read.append(run.data)
        return TRAINERS["datalens"](run)

    before = published_by(writers, writers.train(teachers=20), {"datalens": watched})
    assert not withdraw(writers, *GONE).waiting
    job_id = writers.train(teachers=20)
    work(writers, job_id, {"datalens": watched})
    after = writers.release_of(job_id)
    all_images, left = digits(200), ~np.isin(IDS, GONE)
    assert left.sum() == 190
    for data, kept in zip(read, (np.ones(200, bool), left), strict=True):
        assert np.array_equal(data.private_images, all_images.private_images[kept])
        assert np.array_equal(data.private_labels, all_images.private_labels[kept])
        assert len(data.private_subjects) == kept.sum()
    assert set(read[1].private_subjects.tolist()) < set(read[0].private_subjects.tolist())
    assert after.card["cost_nano"] == before.card["cost_nano"], "declared bounds and prices are as they were"
    assert inspect_ledger(writers.settings, writers.factory).findings == ()


def test_no_training_opens_another_content_than_the_row_names(writers):
    """The old key that comes back, under the new name, is not the one that the dataset's row tells of."""
    old = vault.read_key(vault.Vault.of(writers.settings).key_path(writers.dataset_id))
    withdraw(writers, *GONE)
    job_id = writers.train(teachers=20)
    training = writers.do(read_training, writers.claim(job_id))
    read_dataset_key(writers.settings, training.dataset)
    with transaction(writers.factory, read_only=True) as session:
        path = vault.Vault.of(writers.settings).key_path(session.get_one(Dataset, writers.dataset_id).content)
    path.write_bytes(old)
    with pytest.raises(LedgerCorruption, match="not the one"):
        read_dataset_key(writers.settings, training.dataset)
