"""The world of dataset tests: accounts, and datasets that are declared, uploaded, trained on, withdrawn and deleted."""

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sqlalchemy import select

from obscura.wire.words import DatasetState
from service import jobs, ledger
from service.datasets import deletion, receiving, vault, withdrawal
from service.datasets.fingerprints import KnownRefused
from service.datasets.reading import Content, Sent, staged
from service.datasets.vault import DatasetContext, Subjects, Vault
from service.datasets.withdrawal import Withdrawal
from service.db.dataset_tables import Dataset, Fingerprint
from service.db.ledger_tables import Entry
from service.db.session import SessionFactory, transaction
from service.ingest.array_files import IMAGES_NAME, SUBJECTS_NAME
from service.sealing import SealBroken
from service.settings import Settings
from tests.service.orders import submit_training
from tests.service.steps import Steps, WithDatabase, charge

OPTIONS = {"teachers": 5, "top_k": 4, "images": 50}


class World(Steps):
    """A service that has started before, its database, and whoever uses it.

    Args:
        declare: declares a dataset of 4 x 4 pixels for an account, and returns its id.
        open_account: opens an account in the database, and returns its id.
        declare_dataset: writes the row of a dataset that is ready, and returns its id.
    """

    def __init__(
        self,
        settings: Settings,
        factory: SessionFactory,
        declare: Callable[..., str],
        open_account: Callable[..., str],
        declare_dataset: Callable[..., str],
    ) -> None:
        self.settings, self.factory, self.declare, self._open = settings, factory, declare, open_account
        self._write = declare_dataset

    do = WithDatabase.do  # each act states its own time

    def write(self, account_id: str | None, **changes: Any) -> str:
        """Write the row of a dataset, ready without any content; without an account it is public."""
        return self._write(self.factory, account_id=account_id, **changes)

    @property
    def context(self) -> DatasetContext:
        return DatasetContext(self.settings, self.factory, lambda: datetime.now(UTC))

    def account(self, name: str, **terms: object) -> str:
        return self._open(self.factory, name=name, **terms)

    def close(self, account_id: str, *, closed: bool = True) -> None:
        self.do(ledger.limits.set_closed, account_id, closed=closed)

    def send(
        self, dataset_id: str, images: npt.ArrayLike, *, during: Callable[[], Any] = lambda: None, **arrays: Any
    ) -> Dataset:
        """Upload images, of the first class without `labels`; do something else once the last byte has come."""

        def body() -> Any:
            yield npz(images, **{"labels": np.zeros(len(np.asarray(images)), np.int64), **arrays})
            during()

        return receiving.receive(self.context, dataset_id, Sent(body(), "npz"))

    def train(self, dataset_id: str, **changes: Any) -> str:
        return str(self.do(submit_training, dataset_id, datetime.now(UTC), **{"options": OPTIONS, **changes}))

    def spend(self, job_id: str, amount_nano: int) -> str:
        """Run a training as far as a first charge; return the account that pays."""
        now = datetime.now(UTC)
        self.do(jobs.claim, worker="test", now=now, lease_seconds=600, job_id=job_id)
        job = self.job(job_id)
        paid: dict[str, Any] = {"hold_id": job.hold_id, "attempt": 1, "now": now}
        self.do(ledger.arm, **paid)
        self.do(charge, amount_nano=amount_nano, stage=job.plan["stages"][0]["name"], **paid)
        return str(job.account_id)

    def finish_cancelled(self, job_id: str) -> None:
        self.do(jobs.finish_cancelled, job_id=job_id, attempt=1, now=datetime.now(UTC))

    def delete(self, dataset_id: str, *, cancel_jobs: bool = True) -> Dataset:
        now = datetime.now(UTC)
        return deletion.delete(self.settings, self.factory, dataset_id, cancel_jobs=cancel_jobs, now=now)

    def row(self, dataset_id: str) -> Dataset:
        return self.read(lambda session: session.get_one(Dataset, dataset_id))

    def state(self, dataset_id: str) -> DatasetState:
        return self.row(dataset_id).state

    def prints(self, dataset_id: str) -> list[bytes]:
        digests = select(Fingerprint.digest).where(Fingerprint.dataset_id == dataset_id)
        return self.read(lambda session: list(session.scalars(digests)))

    def has_nothing_of(self, dataset_id: str) -> bool:
        return self.row(dataset_id).state is DatasetState.DECLARED and not self.prints(dataset_id)

    def books(self) -> list[Any]:
        with transaction(self.factory, read_only=True) as session:
            entries = session.scalars(select(Entry.hash).order_by(Entry.account_id, Entry.sequence)).all()
            prints = session.execute(select(Fingerprint.digest, Fingerprint.dataset_id)).all()
        return [entries, sorted(map(tuple, prints))]


class SubjectWorld(World):
    """The same, where accounts protect subjects, whom datasets recognise and who may withdraw."""

    _seed = 0

    def account(self, name: str, **terms: object) -> str:
        return super().account(name, **{"unit": "subject", **terms})

    def upload(self, account_id: str, ids: Any, **facts: Any) -> str:
        """Declare a dataset and upload one fresh image for each of these ids."""
        dataset_id = self.declare(account_id, **{"subjects_declared": 10, "subjects_recognised": True, **facts})
        self._seed += 1
        images = pictures(len(ids), seed=self._seed)
        self.send(dataset_id, images, subjects=np.asarray(ids))
        return dataset_id

    def numbers(self, dataset_id: str, ids: Any) -> dict[Any, int]:
        return dict(zip(ids, stored_subjects(self.settings, dataset_id).tolist(), strict=True))

    def datasets(self, state: DatasetState) -> int:
        ids = select(Dataset.id).where(Dataset.state == state)
        return len(self.read(lambda session: session.scalars(ids).all()))

    def withdraw(self, account_id: str, *ids: Any, cancel_jobs: bool = False) -> Withdrawal:
        now = datetime.now(UTC)
        return withdrawal.withdraw(self.settings, self.factory, account_id, ids, cancel_jobs=cancel_jobs, now=now)

    def go_on(self) -> None:
        withdrawal.go_on(self.settings, self.factory)

    def records(self, dataset_id: str) -> list[bytes]:
        return [image.tobytes() for image in Vault.of(self.settings).open_dataset(self.row(dataset_id).content)[0]]

    def contents(self, dataset_id: str) -> list[str]:
        return Vault.of(self.settings).contents_of(dataset_id)

    def opens(self, folder: Path, dataset_id: str) -> bool:
        """Whether any existing key opens these images, under any name that they may have been sealed for."""
        keys = [vault.read_key(path) for path in self.settings.keys_path.rglob("*.key")]
        for key in keys:
            for name in (dataset_id, *(f"{dataset_id}.{number}" for number in (1, 2))):
                try:
                    with vault.SealedArray(folder, name, IMAGES_NAME, key) as images:
                        images.read()
                        return True
                except SealBroken:
                    continue
        return False


DATASET = "ds_" + "a2" * 10


def begun(**changes: Any) -> Dataset:
    """Return the row of a dataset that is being uploaded: at most 100 gray images of 4 x 6 pixels in two classes."""
    facts = {"id": DATASET, "classes": ["cat", "dog"], "height": 4, "width": 6, "channels": 1, "records_declared": 100}
    facts |= {"subjects_recognised": False, "upload_attempt": 1, "project_id": "prj_default"}
    return Dataset(**facts | changes)


def receive(
    settings: Settings,
    dataset: Dataset,
    blocks: Iterable[bytes],
    announced_bytes: int | None = None,
    format: str = "npz",
) -> Content:
    context = DatasetContext(settings, SessionFactory(), lambda: datetime.now(UTC))
    with staged(context, dataset, Sent(iter(blocks), format, announced_bytes)) as content:
        content.publish()
        return content


@contextmanager
def known_refused(fault: str) -> Iterator[pytest.ExceptionInfo[KnownRefused]]:
    with pytest.raises(KnownRefused) as refused:
        yield refused
    assert refused.value.numbers == {"fault": fault}


def stored_subjects(settings: Settings, name: str) -> Subjects:
    with Vault.of(settings).open_array(name, SUBJECTS_NAME) as array:
        return array.read()


def pictures(count: int, *, seed: int = 0, shape: tuple[int, ...] = (4, 4)) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def npz(images: npt.ArrayLike, labels: npt.ArrayLike, **more: npt.ArrayLike) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, images=images, labels=labels, **more)
    return buffer.getvalue()
