"""Records of admins, decisions, projects, keys, webhooks, and the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from obscura.wire.admin_schemas import (
    AdminRecord,
    AuditEventRecord,
    DecisionRecord,
    KeyRecord,
    PersonRecord,
    ProjectRecord,
    ProjectUseRecord,
    WebhookRecord,
)
from obscura.wire.schemas import record_of
from service import quotas
from service.db.access_tables import Admin, ApiKey, Decision, Person
from service.db.audit_tables import AuditEvent
from service.db.project_tables import EVERY_PROJECT, Project
from service.db.webhook_tables import Webhook
from service.errors import NotFound
from service.identity import admins, decisions
from service.identity.access import visible
from service.webhooks.hooks import states_of


def admin(row: Admin) -> AdminRecord:
    """Return the record of an admin."""
    return record_of(AdminRecord, row)


def decisions_of(session: Session, rows: Sequence[Decision], now: datetime) -> list[DecisionRecord]:
    """Return the records of requests that two people decide."""
    names = decisions.names_in(session, rows)
    return [
        record_of(
            DecisionRecord,
            row,
            name=row.name or names[str(row.account_id)],
            introduction=None if row.key_hash is None else f"{row.key_id}:{row.key_hash}",
            shared_with=None if row.shared_with == EVERY_PROJECT else row.shared_with,
            shared_with_name=names.get(row.shared_with or ""),
            state=decisions.state_at(row, now),
            expires_at=row.asked_at + decisions.REQUEST_LIFETIME,
            asked_by_name=names[row.asked_by],
            decided_by_name=names.get(row.decided_by or ""),
        )
        for row in rows
    ]


def decision(session: Session, row: Decision, now: datetime) -> DecisionRecord:
    """Return the record of one request."""
    (record,) = decisions_of(session, [row], now)
    return record


def project(row: Project) -> ProjectRecord:
    """Return the record of a project."""
    return record_of(ProjectRecord, row)


def project_uses(session: Session, rows: Sequence[Project]) -> list[ProjectUseRecord]:
    """Return projects with their quotas and unfinished jobs."""
    unfinished = quotas.unfinished_jobs(session, [row.id for row in rows])
    return [record_of(ProjectUseRecord, row, jobs_unfinished=unfinished[row.id]) for row in rows]


def people(session: Session, rows: Sequence[ApiKey]) -> list[PersonRecord]:
    """Return the people behind the keys that stand for roles."""
    found = session.scalars(select(Person).where(Person.id.in_({row.person_id for row in rows})))
    known = {person.id: person for person in found}
    roles = [(known[str(row.person_id)], row) for row in rows]
    return [
        record_of(
            PersonRecord,
            person,
            key_id=row.id,
            scopes=row.scopes,
            project_id=row.project_id,
            created_at=row.created_at,
        )
        for person, row in roles
    ]


def keys(session: Session, rows: Sequence[ApiKey]) -> list[KeyRecord]:
    """Return keys, without hashes, with the names of their makers."""
    makers = admins.makers(session, rows)
    people = select(Person.id, Person.name).where(Person.id.in_({row.person_id for row in rows if row.person_id}))
    names = {person.id: person.name for person in session.execute(people)} if any(row.person_id for row in rows) else {}
    return [
        record_of(
            KeyRecord,
            row,
            created_by_admin=maker and maker.id,
            created_by_name=names.get(row.person_id or "", maker and maker.name),
        )
        for row, maker in ((row, makers.get(row.id)) for row in rows)
    ]


def webhooks(session: Session, rows: Sequence[Webhook], now: datetime) -> list[WebhookRecord]:
    """Return webhooks, without secrets, with their states."""
    states = states_of(session, rows, now)
    return [record_of(WebhookRecord, row, state=states[row.id]) for row in rows]


# --- audit log: only the caller's project, times to the minute, no sequence numbers ---


def oldest_events(session: Session, *, after: str | None, limit: int) -> list[AuditEventRecord]:
    """Return visible events, oldest first, optionally those after one of them."""
    query = visible(session, AuditEvent).order_by(AuditEvent.sequence).limit(limit)
    if after is not None:
        query = query.where(AuditEvent.sequence > _sequence_of(session, after))
    return [record_of(AuditEventRecord, row) for row in session.scalars(query)]


def newest_events(session: Session, *, before: str | None, limit: int) -> list[AuditEventRecord]:
    """Return visible events, newest first, optionally those before one of them."""
    query = visible(session, AuditEvent).order_by(AuditEvent.sequence.desc()).limit(limit)
    if before is not None:
        query = query.where(AuditEvent.sequence < _sequence_of(session, before))
    return [record_of(AuditEventRecord, row) for row in session.scalars(query)]


def _sequence_of(session: Session, event_id: str) -> int:
    sequence = session.scalar(
        visible(session, AuditEvent, select(AuditEvent.sequence)).where(AuditEvent.id == event_id)
    )
    if sequence is None:
        raise NotFound("There is no such event, or it was removed since. Begin anew without it.", event_id=event_id)
    return sequence
