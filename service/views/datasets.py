"""Records of datasets."""

from __future__ import annotations

from sqlalchemy.orm import Session

from obscura.wire.schemas import DatasetRecord, record_of
from obscura.wire.words import DatasetState, Visibility
from service.db.dataset_tables import Dataset
from service.identity.access import visible
from service.views.rows import ROWS_MAX


def dataset(row: Dataset) -> DatasetRecord:
    """Return the record of a dataset. Omits size and digest of private content, because they depend on private data."""
    public = row.visibility is Visibility.PUBLIC
    return record_of(
        DatasetRecord,
        row,
        content_sha256=row.content_sha256 if public else None,
        content_bytes=row.content_bytes if public else None,
    )


def evaluable_like(session: Session, like: DatasetRecord) -> list[DatasetRecord]:
    """Return the public datasets on which a release can be evaluated, newest first."""
    query = visible(session, Dataset).where(
        Dataset.visibility == Visibility.PUBLIC,
        Dataset.state == DatasetState.READY,
        Dataset.height == like.height,
        Dataset.width == like.width,
        Dataset.channels == like.channels,
    )
    found = session.scalars(query.order_by(Dataset.created_at.desc()).limit(ROWS_MAX)).all()
    return [dataset(row) for row in found if row.classes == like.classes]
