"""Records of admins, decisions, projects, keys, webhooks, and the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from obscura.wire import admin_schemas as wire
from obscura.wire.schemas import record_of
from obscura.wire.words import DecisionAction, DecisionState
from service import quotas
from service.db.access_tables import EVERY_PROJECT, ApiKey, AuditEvent, Decision, Invitation, Person, Project, Webhook
from service.errors import NotFound
from service.identity import admins, projects
from service.identity.access import Principal, visible
from service.identity.decisions import REQUEST_LIFETIME, pending_first, state_at
from service.identity.invitations import awaiting_admission, state_of
from service.webhooks.delivering import states_of

RAISES_MAX = 8


def decisions(session: Session, rows: Sequence[Decision], now: datetime) -> list[wire.DecisionRecord]:
    ids = {id for row in rows for id in (row.account_id, row.shared_with, row.requested_by, row.decided_by)}
    names = projects.names(session, ids)
    return [
        record_of(
            wire.DecisionRecord,
            row,
            name=row.name or names[str(row.account_id)],
            introduction=None if row.key_hash is None else f"{row.key_id}:{row.key_hash}",
            shared_with=None if row.shared_with == EVERY_PROJECT else row.shared_with,
            shared_with_name=names.get(row.shared_with or ""),
            state=state_at(row, now),
            expires_at=row.requested_at + REQUEST_LIFETIME,
            requested_by_name=names[row.requested_by],
            decided_by_name=names.get(row.decided_by or ""),
        )
        for row in rows
    ]


def pending_raises(session: Session, now: datetime, *conditions: ColumnElement[bool]) -> list[wire.DecisionRecord]:
    """Return the latest requests for a higher limit that can still be approved."""
    chosen = Decision.action == DecisionAction.RAISE, Decision.state == DecisionState.PENDING, *conditions
    shown = decisions(session, pending_first(session, *chosen, limit=RAISES_MAX), now)
    return [asked for asked in shown if asked.state == DecisionState.PENDING]


def count_waiting(session: Session, caller: Principal, now: datetime) -> int:
    """Return how many requests of other admins, and accepted invitations, wait for a decision."""
    pending = Decision.state == DecisionState.PENDING, Decision.requested_at > now - REQUEST_LIFETIME
    count = visible(session, Decision, select(func.count(Decision.id)))
    requests = session.scalar(count.where(*pending, Decision.requested_by != caller.admin_id)) or 0
    return requests + len(awaiting_admission(session, now))


def project_names(session: Session) -> dict[str, str]:
    """Return the names of the caller's projects by id, sorted by name."""
    rows = session.scalars(visible(session, Project).order_by(Project.name).limit(projects.PROJECTS_MAX))
    return {row.id: row.name for row in rows}


def project_uses(session: Session, rows: Sequence[Project]) -> list[wire.ProjectUseRecord]:
    unfinished = quotas.unfinished_jobs(session, [row.id for row in rows])
    return [record_of(wire.ProjectUseRecord, row, jobs_unfinished=unfinished[row.id]) for row in rows]


def people(session: Session, rows: Sequence[ApiKey]) -> list[wire.PersonRecord]:
    """Return a record of the person and the role for each key that represents a role."""
    named = session.scalars(select(Person).where(Person.id.in_({row.person_id for row in rows})))
    people = {person.id: person for person in named}
    shown = []
    for row in rows:
        role = {"key_id": row.id, "scopes": row.scopes, "project_id": row.project_id, "created_at": row.created_at}
        shown.append(record_of(wire.PersonRecord, people[str(row.person_id)], **role))
    return shown


def keys(session: Session, rows: Sequence[ApiKey]) -> list[wire.KeyRecord]:
    """Return keys without hashes, with the names of their creators."""
    makers = admins.makers(session, rows)
    people = select(Person.id, Person.name).where(Person.id.in_({row.person_id for row in rows if row.person_id}))
    names = {person.id: person.name for person in session.execute(people)} if any(row.person_id for row in rows) else {}
    shown = []
    for row in rows:
        maker = makers.get(row.id)
        name = names.get(row.person_id or "", maker and maker.name)
        shown.append(record_of(wire.KeyRecord, row, created_by_admin=maker and maker.id, created_by_name=name))
    return shown


def invitations(session: Session, rows: Sequence[Invitation], now: datetime) -> list[wire.InvitationRecord]:
    """Return invitations, without secrets, with the names of the inviting admins."""
    inviting = admins.makers(session, rows)
    return [
        record_of(
            wire.InvitationRecord,
            row,
            created_by_name=inviting[row.id].name if row.id in inviting else None,
            state=state_of(row, now),
            introduction=None if row.key_hash is None else f"{row.key_id}:{row.key_hash}",
        )
        for row in rows
    ]


def webhooks(session: Session, rows: Sequence[Webhook], now: datetime) -> list[wire.WebhookRecord]:
    """Return webhooks, without secrets, with their states."""
    states = states_of(session, rows, now)
    return [record_of(wire.WebhookRecord, row, state=states[row.id]) for row in rows]


def events(
    session: Session, *, limit: int, after: str | None = None, before: str | None = None, newest: bool = False
) -> list[wire.AuditEventRecord]:
    """Return visible events of the audit log, oldest or newest first, optionally after or before an event's id."""
    query = visible(session, AuditEvent).limit(limit)
    query = query.order_by(AuditEvent.sequence.desc() if newest else AuditEvent.sequence)
    if (event_id := before if newest else after) is not None:
        place = visible(session, AuditEvent, select(AuditEvent.sequence)).where(AuditEvent.id == event_id)
        sequence = session.scalar(place)
        if sequence is None:
            raise NotFound("This event does not exist, or was removed. List events from the start.", event_id=event_id)
        query = query.where(AuditEvent.sequence < sequence if newest else AuditEvent.sequence > sequence)
    return [record_of(wire.AuditEventRecord, row) for row in session.scalars(query)]
