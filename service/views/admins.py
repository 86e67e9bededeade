"""Records of admins, decisions about them, projects, keys, and webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from obscura.wire.admin_schemas import (
    AdminRecord,
    AdminRequestRecord,
    KeyRecord,
    PersonRecord,
    ProjectRecord,
    ProjectUseRecord,
)
from obscura.wire.schemas import record_of
from obscura.wire.webhook_schemas import WebhookRecord
from service import quotas
from service.db.access_tables import Admin, ApiKey, Decision, Person
from service.db.project_tables import Project
from service.db.webhook_tables import Webhook
from service.identity import admins, decisions
from service.webhooks.hooks import states_of


def admin(row: Admin) -> AdminRecord:
    """Return the record of an admin."""
    return record_of(AdminRecord, row)


def admin_request(row: Decision, now: datetime) -> AdminRequestRecord:
    """Return the record of a decision about an admin or a key."""
    introduction = None if row.key_hash is None else f"{row.key_id}:{row.key_hash}"
    return record_of(AdminRequestRecord, row, introduction=introduction, **lifetime(row, now))


def project(row: Project) -> ProjectRecord:
    """Return the record of a project."""
    return record_of(ProjectRecord, row)


def project_uses(session: Session, rows: Sequence[Project]) -> list[ProjectUseRecord]:
    """Return projects with their quotas and unfinished jobs."""
    unfinished = quotas.unfinished_jobs(session, [row.id for row in rows])
    return [record_of(ProjectUseRecord, row, jobs_unfinished=unfinished[row.id]) for row in rows]


def lifetime(row: Decision, now: datetime) -> dict[str, Any]:
    """Return state and expiry of a decision."""
    return {"state": decisions.state_at(row, now), "expires_at": row.asked_at + decisions.REQUEST_LIFETIME}


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
