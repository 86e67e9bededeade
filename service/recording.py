"""The audit log: who asked for what and what came of it, as one chain of events. Takes a session, never commits.

An event names who asked, a route or an act, and at most one object by its id. What was sent, what was answered, how
long that took and how much it was are no part of it. See docs/audit_log.md for why each field tells nothing private.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import insert, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from obscura.wire.words import Outcome
from service.access import Principal
from service.db.audit_tables import AuditEvent, AuditRemoval
from service.db.base import canonical_text, new_id
from service.db.session import LAST, SessionFactory, with_info
from service.errors import ObscuraError
from service.logs import get_logger

GENESIS_HASH = "0" * 64  # what the first event links to
CHAIN_VERSION = 1
CHAIN_LOCK = 0x0B5CA0  # of PostgreSQL, where one process appends at a time; any number will do
_ACTS = "obscura_acts"
_ID = re.compile(r"[a-z]{2,4}_(?:[a-z2-7]{20}|default)")


class Act(enum.StrEnum):
    """What people do to keys, roles and requests: an event of its own, in the transaction that does it."""

    SIGNED_IN = "signed in"
    SIGNED_OUT = "signed out"
    KEY_MADE = "key made"
    KEY_ROTATED = "key rotated"
    KEY_REVOKED = "key revoked"
    ADMIN_ADMITTED = "admin admitted"
    ADMIN_REMOVED = "admin removed"
    PERSON_MADE = "person made"
    PERSON_LAPSED = "person no longer confirmed"
    ROLE_GIVEN = "role given"
    ROLE_WIDENED = "role widened"
    ROLE_ENDED = "role ended"
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
    """An event cannot be written, and nothing may happen here without one."""

    code: ClassVar[str] = "audit_log_unavailable"

    def __init__(self) -> None:
        super().__init__(
            "Here nothing is done or shown that cannot be written to the audit log, and that cannot be written to now. "
            "Nothing was changed. An operator must look."
        )


@dataclass(frozen=True, slots=True)
class Event:
    """What an event says.

    Attributes:
        at: when it was asked for, UTC with microseconds.
        action: the template of a route with its method, or an `Act`.
        object_id: what it is about; None where that has no id.
        key_id: of the key that asked; None where none of ours did.
        admin_id: the person whose key that is; None where it is no admin's.
        project_id: that of the key, or the one that an act concerns; None for the installation.
    """

    at: str
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
    """Return the event of a caller, of their project where no other is named."""
    of = project_id if project_id is not None or caller is None else caller.project_id
    key_id, admin_id = (None, None) if caller is None else (caller.id, caller.admin_id)
    moment = at.astimezone(UTC).isoformat(timespec="microseconds")
    return Event(moment, action, object_id, outcome, key_id, admin_id, of)


def id_in(given: object) -> str | None:
    """Return what a caller has named, where that has the form of an id: any other text is not repeated."""
    return given if isinstance(given, str) and _ID.fullmatch(given) else None


def event_hash(event: dict[str, Any]) -> str:
    """Return the SHA-256, as hex, of every field of an event but the hash itself, in canonical JSON."""
    body = {name: value for name, value in event.items() if name != "hash"} | {"version": CHAIN_VERSION}
    return hashlib.sha256(canonical_text(body).encode("ascii")).hexdigest()


def append(session: Session, events: Sequence[Event]) -> None:
    """Add events to the chain. Call it last in a transaction: from here to its end nobody else can."""
    if session.get_bind().dialect.name == "postgresql":  # on SQLite there is one writer at a time
        session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": CHAIN_LOCK})
    sequence, previous_hash = head(session)
    rows = []
    for number, event in enumerate(events, start=sequence + 1):
        row = {"sequence": number, "id": new_id("evt"), **asdict(event), "previous_hash": previous_hash}
        row["hash"] = previous_hash = event_hash(row)
        rows.append(row)
    session.execute(insert(AuditEvent), rows)


def head(session: Session) -> tuple[int, str]:
    """Return number and hash of the newest event, removed ones included; what the first one links to before that."""
    newest = select(AuditEvent.sequence, AuditEvent.hash).order_by(AuditEvent.sequence.desc()).limit(1)
    removed = select(AuditRemoval.through, AuditRemoval.hash).order_by(AuditRemoval.number.desc()).limit(1)
    for query in (newest, removed):
        found = session.execute(query).first()
        if found is not None:
            return found[0], found[1]
    return 0, GENESIS_HASH


def record(session: Session, act: Act, object_id: str, *, project_id: str | None) -> None:
    """Have an act written at the end of its transaction, where there is an audit log.

    Args:
        object_id: of the key, admin, person, project, release, dataset or request.
        project_id: that the act concerns; None for the installation.
    """
    if LAST in session.info:
        session.info.setdefault(_ACTS, []).append((act, object_id, project_id))


@dataclass
class Recorder:
    """Writes the acts of a transaction as its last step (`service.db.session.Last`).

    Attributes:
        required: whether a transaction fails whose events cannot be written; else that is logged.
        clock: returns the time, aware.
        caller: returns who acts; None is the operator, on the machine.
    """

    required: bool
    clock: Callable[[], datetime]
    caller: Callable[[], Principal | None] = lambda: None

    def events(self, session: Session) -> list[Event]:
        """Return what this transaction has to say."""
        now, caller = self.clock(), self.caller()
        return [
            event_of(caller, act, object_id, Outcome.ALLOWED, at=now, project_id=project_id)
            for act, object_id, project_id in session.info.get(_ACTS, ())
        ]

    def before_commit(self, session: Session) -> None:
        """Append the events.

        Raises:
            AuditLogUnavailable: they cannot be written, and must be.
        """
        session.flush()  # what is wrong with the transaction itself is said as ever
        events = self.events(session)
        if not events:
            return
        try:
            if self.required:
                append(session, events)
            else:
                with session.begin_nested():
                    append(session, events)
        except SQLAlchemyError as error:
            if self.required:
                raise AuditLogUnavailable from error
            not_written(len(events), error)

    def committed(self) -> None:
        """Note nothing: an act is written once, where it is done."""


def not_written(count: int, error: BaseException) -> None:
    """Tell the operator that events are missing from the log."""
    get_logger(__name__).error("audit_events_not_written", count=count, error=type(error).__name__)


def recorded(factory: SessionFactory, audit_log: str, clock: Callable[[], datetime]) -> SessionFactory:
    """Return a factory of the same sessions, whose acts are written as `Settings.audit_log` wishes."""
    return factory if audit_log == "off" else with_info(factory, **{LAST: Recorder(audit_log == "required", clock)})
