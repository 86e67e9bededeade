"""Where datasets whose subjects are recognised are declared and uploaded, for the tests of those."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
from sqlalchemy import select

from obscura.wire.words import DatasetState
from service.datasets import receiving
from service.datasets.reading import Sent
from service.datasets.vault import DatasetContext
from service.db.dataset_tables import Dataset
from service.db.session import SessionFactory, transaction
from service.settings import Settings
from tests.service.datasets.uploading import npz, stored_subjects

Numbers = dict[Any, int]


class Desk:
    """Where datasets with subjects are declared and uploaded."""

    def __init__(self, settings: Settings, factory: SessionFactory, declare: Any, open_account: Any) -> None:
        self.settings, self.factory, self.declare, self._open = settings, factory, declare, open_account
        self._seed = 0

    def context(self) -> DatasetContext:
        return DatasetContext.of(self.settings, self.factory, lambda: datetime.now(UTC))

    def account(self, name: str) -> str:
        account_id: str = self._open(self.factory, name=name, unit="subject")
        return account_id

    def upload(self, account_id: str, ids: Any, **facts: Any) -> str:
        """Upload one fresh picture for each of these ids."""
        declared = {"subjects_declared": 10, "subjects_recognised": True, **facts}
        dataset_id: str = self.declare(account_id, **declared)
        self._seed += 1
        images = np.random.default_rng(self._seed).integers(0, 256, (len(ids), 4, 4), dtype=np.uint8)
        body = npz(images, np.zeros(len(ids), np.int64), subjects=np.asarray(ids))
        sent = Sent(iter([body]), "npz")
        receiving.receive(self.context(), dataset_id, sent)
        return dataset_id

    def numbers(self, dataset_id: str, ids: Any) -> Numbers:
        return dict(zip(ids, stored_subjects(self.settings, dataset_id).tolist(), strict=True))

    def datasets(self, state: DatasetState) -> int:
        with transaction(self.factory, read_only=True) as session:
            return len(session.scalars(select(Dataset.id).where(Dataset.state == state)).all())
