"""Storing content without a database: what `service.datasets.receiving` does between lease and acceptance."""

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from service.datasets.fingerprints import KnownRefused
from service.datasets.reading import Content, Sent, staged
from service.datasets.vault import DatasetContext, Subjects, Vault
from service.db.dataset_tables import Dataset
from service.db.session import SessionFactory
from service.ingest.array_files import SUBJECTS_NAME
from service.settings import Settings

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
