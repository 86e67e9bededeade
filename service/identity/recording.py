"""The audit log: callers, their requests and the outcomes. Append-only rows, also written to the `audit` logger.

An event names the caller, a route or an act, and at most one object id. It does not contain bodies, responses,
durations or amounts. docs/operate/monitor.md explains why no field reveals private data.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, insert, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from obscura.wire.words import Outcome
from service.db.access_tables import AuditEvent
from service.db.base import new_id
from service.db.session import LAST, SessionFactory, transaction, with_info
from service.errors import ObscuraError
from service.identity.access import Principal
from service.logs import AUDIT_LOGGER, get_logger
from service.times import SETTLED

EVENTS_REMOVED_MAX = 5000  # per transaction
_APPEND_LOCK = 0x0B5CA0  # PostgreSQL advisory lock; an arbitrary number
_ACTS = "obscura_acts"
_APPENDED = "obscura_appended"
_ID = re.compile(r"[a-z]{2,4}_(?:[a-z2-7]{20}|default)")


class Act(enum.StrEnum):
    """Changes with an event of their own, written in the same transaction."""

    SIGNED_IN = "signed in"
    SIGNED_OUT = "signed out"
    KEY_MADE = "key made"
    KEY_ROTATED = "key rotated"
    KEY_REVOKED = "key revoked"
    ADMIN_ADMITTED = "admin admitted"
    ADMIN_REMOVED = "admin removed"
    INVITED = "invitation made"
    JOINED = "invitation accepted"
    UNINVITED = "invitation revoked"
    PERSON_MADE = "person made"
    PERSON_LAPSED = "person no longer confirmed"
    ROLE_GIVEN = "role given"
    ROLE_WIDENED = "role widened"
    ROLE_ENDED = "role ended"
    PROJECT_VIEWED = "project viewed"
    PROJECT_MADE = "project made"
    PROJECT_RENAMED = "project renamed"
    QUOTA_SET = "quota set"
    RELEASE_SHARED = "release shared"
    RELEASE_UNSHARED = "release unshared"
    UPLOAD_JOINED = "upload joined"
    UPLOAD_KNOWN = "upload of known images refused"
    ASKED = "decision asked for"
    APPROVED = "decision approved"
    DECLINED = "decision declined"
    CLOCK_ACCEPTED = "clock accepted"


class AuditLogUnavailable(ObscuraError):
    """An event cannot be written, and the settings require an event for every request."""

    def __init__(self) -> None:
        super().__init__(
            "This service requires the audit log, which cannot be written to now. Nothing was changed. Ask the "
            "operator to correct it."
        )


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `action` is a method and a route template, or an `Act`; `project_id` is None for the installation."""

    at: datetime
    action: str
    object_id: str | None
    outcome: Outcome
    key_id: str | None
    admin_id: str | None
    project_id: str | None


def event_of(
    caller: Principal | None,
    action: str,
    object_id: str | None,
    outcome: Outcome,
    *,
    at: datetime,
    project_id: str | None = None,
) -> Event:
    """Return the event of a caller, in their project unless `project_id` is given."""
    if caller is None:
        return Event(at, action, object_id, outcome, None, None, project_id)
    return Event(at, action, object_id, outcome, caller.id, caller.admin_id, project_id or caller.project_id)


def id_in(given: object) -> str | None:
    """Return a value if it has the format of an id, else None: the log must not contain other text."""
    return given if isinstance(given, str) and _ID.fullmatch(given) else None


def append(session: Session, events: Sequence[Event]) -> list[dict[str, Any]]:
    """Insert events and return their rows, for `write_lines` after the commit. Call it last in a transaction.

    On PostgreSQL, this locks the log until the commit. So events become visible in the order of their numbers, and
    paging misses none. SQLite has only one writer.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _APPEND_LOCK})
    rows = [{"id": new_id("evt"), **asdict(event)} for event in events]
    session.execute(insert(AuditEvent), rows)
    return rows


def write_lines(rows: Sequence[dict[str, Any]]) -> None:
    """Write committed events to the `audit` logger, as JSON lines for a log collector."""
    logger = get_logger(AUDIT_LOGGER)
    for row in rows:
        logger.info("audit_event", **row | {"at": row["at"].isoformat(timespec="microseconds")})


def remove_old(
    factory: SessionFactory, *, days: int, now: datetime, proved: bool, at_a_time: int = EVENTS_REMOVED_MAX
) -> int:
    """Delete events older than a number of days; return their number.

    After a jump of the clock, every event looks old. So unless the clock is `proved`, events are deleted only if an
    event that remains is at least a day old. `proved`: the clock has run steadily for a day
    (`service.times.WatchedClock`).
    """
    until, removed = now - timedelta(days=days), 0
    first = select(AuditEvent.sequence, AuditEvent.at).order_by(AuditEvent.sequence).limit(at_a_time)
    witness = select(AuditEvent.sequence).where(AuditEvent.at >= until, AuditEvent.at <= now - SETTLED).limit(1)
    while True:
        with transaction(factory, read_only=True) as session:  # avoids a write lock in the usual case
            oldest = session.execute(first).all()
            old = next((place for place, event in enumerate(oldest) if event.at >= until), len(oldest))
            if not old or not (proved or session.scalar(witness) is not None):
                return removed
        with transaction(factory) as session:
            session.execute(delete(AuditEvent).where(AuditEvent.sequence <= oldest[old - 1].sequence))
        removed += old


def record(session: Session, act: Act, object_id: str, *, project_id: str | None) -> None:
    """Queue an act's event for the end of its transaction, if there is an audit log. For `project_id`, see `Event`."""
    if LAST in session.info:
        session.info.setdefault(_ACTS, []).append((act, object_id, project_id))


@dataclass
class Recorder:
    """Writes the acts of a transaction as its last step (`service.db.session.Last`)."""

    required: bool  # fail the transaction if its events cannot be written; otherwise only log the failure
    clock: Callable[[], datetime]
    caller: Callable[[], Principal | None] = lambda: None  # None for the operator on the machine

    def events(self, session: Session) -> list[Event]:
        now, caller = self.clock(), self.caller()
        return [
            event_of(caller, act, object_id, Outcome.ALLOWED, at=now, project_id=project_id)
            for act, object_id, project_id in session.info.get(_ACTS, ())
        ]

    def before_commit(self, session: Session) -> None:
        """Append the events. Raise AuditLogUnavailable if that fails and they are required."""
        session.flush()  # raise errors of the transaction itself first, unchanged
        events = self.events(session)
        if not events:
            return
        try:
            with nullcontext() if self.required else session.begin_nested():
                session.info[_APPENDED] = append(session, events)
        except SQLAlchemyError as error:
            if self.required:
                raise AuditLogUnavailable from error
            not_written(len(events), error)

    def committed(self, session: Session) -> None:
        write_lines(session.info.pop(_APPENDED, ()))


def not_written(count: int, error: BaseException) -> None:
    """Log that events are missing, for the operator."""
    get_logger(__name__).error("audit_events_not_written", count=count, error=type(error).__name__)


def recorded(factory: SessionFactory, audit_log: str, clock: Callable[[], datetime]) -> SessionFactory:
    """Return a copy of a factory whose sessions write acts according to `Settings.audit_log`."""
    return factory if audit_log == "off" else with_info(factory, **{LAST: Recorder(audit_log == "required", clock)})
