"""The audit log as shown: only the caller's project, times to the minute, no sequence numbers."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from obscura.wire.admin_schemas import AuditEventRecord
from obscura.wire.schemas import record_of
from service.db.audit_tables import AuditEvent
from service.errors import NotFound
from service.identity.access import visible


def oldest(session: Session, *, after: str | None, limit: int) -> list[AuditEventRecord]:
    """Return visible events, oldest first, optionally those after one of them."""
    query = visible(session, AuditEvent).order_by(AuditEvent.sequence).limit(limit)
    if after is not None:
        query = query.where(AuditEvent.sequence > _place(session, after))
    return _shown(session.scalars(query).all())


def newest(session: Session, *, before: str | None, limit: int) -> list[AuditEventRecord]:
    """Return visible events, newest first, optionally those before one of them."""
    query = visible(session, AuditEvent).order_by(AuditEvent.sequence.desc()).limit(limit)
    if before is not None:
        query = query.where(AuditEvent.sequence < _place(session, before))
    return _shown(session.scalars(query).all())


def _place(session: Session, event_id: str) -> int:
    sequence = session.scalar(
        visible(session, AuditEvent, select(AuditEvent.sequence)).where(AuditEvent.id == event_id)
    )
    if sequence is None:
        raise NotFound("There is no such event, or it was removed since. Begin anew without it.", event_id=event_id)
    return sequence


def _shown(rows: Sequence[AuditEvent]) -> list[AuditEventRecord]:
    return [record_of(AuditEventRecord, row) for row in rows]
