"""Records of datasets."""

from __future__ import annotations

from sqlalchemy.orm import Session

from obscura.wire.schemas import DatasetRecord, record_of
from obscura.wire.words import Visibility
from service.db.dataset_tables import Dataset
from service.identity.access import visible
from service.views.rows import ROWS_MAX


def dataset(row: Dataset) -> DatasetRecord:
    """Return the record of a dataset. Size and digest of private content depend on private data and are left out."""
    public = row.visibility is Visibility.PUBLIC
    return record_of(
        DatasetRecord,
        row,
        content_sha256=row.content_sha256 if public else None,
        content_bytes=row.content_bytes if public else None,
    )


def private_of(session: Session, account_id: str) -> list[DatasetRecord]:
    """Return the private datasets of an account, oldest first."""
    private = Dataset.account_id == account_id, Dataset.visibility == Visibility.PRIVATE
    query = visible(session, Dataset).where(*private)
    return [dataset(row) for row in session.scalars(query.order_by(Dataset.created_at).limit(ROWS_MAX))]
