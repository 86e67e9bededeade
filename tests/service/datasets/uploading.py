"""Storing content without a database: what `service.datasets.receiving` does between lease and acceptance."""

import io
from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from service.datasets.reading import Content, Sent, Upload, staged
from service.datasets.vault import DatasetContext, Subjects, Vault
from service.db.session import SessionFactory
from service.ingest.array_files import SUBJECTS_NAME
from service.settings import Settings


def receive(
    settings: Settings, upload: Upload, blocks: Iterator[bytes], announced_bytes: int | None, format: str
) -> Content:
    """Read content and publish it at once."""
    context = DatasetContext.of(settings, SessionFactory(), lambda: datetime.now(UTC))
    with staged(context, upload, Sent(blocks, format, announced_bytes)) as content:
        content.publish()
        return content


def stored_subjects(settings: Settings, name: str) -> Subjects:
    """Return the stored subjects of a content."""
    with Vault.of(settings).open_array(name, SUBJECTS_NAME) as array:
        return array.read()


def npz(images: npt.ArrayLike, labels: npt.ArrayLike, **more: npt.ArrayLike) -> bytes:
    """Return an .npz, which stores its arrays as they are."""
    buffer = io.BytesIO()
    np.savez(buffer, images=images, labels=labels, **more)
    return buffer.getvalue()
