"""The audit log read again: whether it is as it was written, and what becomes of old events.

These are removed under a signed statement of where the rest begins. The database lets go of an event only when such a
statement covers it, so nobody shortens the log unseen; and whoever holds the database alone cannot sign one. What is to
be removed is verified first: nothing is signed away that was changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import bindparam, delete, select, text
from sqlalchemy.orm import Session

from service.audit.findings import Finding, FindingCode
from service.audit.rows import find_missing_triggers, with_marks
from service.audit.signing import SignatureRefused, SigningKey, check_signed, open_signing_key
from service.db.audit_tables import AuditEvent, AuditRemoval
from service.db.session import SessionFactory, transaction
from service.errors import InvalidInput, ObscuraError
from service.ledger.chain import body_hash, utc_text
from service.recording import CHAIN_LOCK, GENESIS_HASH, event_hash
from service.settings import Settings
from service.times import SETTLED

FORMAT = "obscura audit log removal"
VERSION = 1
EVENTS_MAX = 5000  # at a time
TABLES = ("audit_events", "audit_removals")
_COLUMNS = ", ".join(column.name for column in AuditEvent.__table__.columns)
_AFTER = text(f"SELECT {_COLUMNS} FROM audit_events WHERE sequence > :after ORDER BY sequence LIMIT :rows")
_SOME = text(f"SELECT {_COLUMNS} FROM audit_events WHERE sequence IN :numbers").bindparams(
    bindparam("numbers", expanding=True)
)
_BEFORE_ALL = -(2**63)  # an event that was put before the first must be seen as well
_LINES_AT_A_TIME = 500
_LINE_CHARACTERS_MAX = 4000


class AuditLogBroken(ObscuraError):
    """An event is missing, was changed, or does not link to the one before it."""

    code: ClassVar[str] = "audit_log_broken"

    def __init__(self, sequence: int, why: str) -> None:
        super().__init__(f"Event {sequence} of the audit log {why}.")
        self.sequence = sequence


@dataclass
class EventReport:
    """What a verification of the audit log has read and found.

    Attributes:
        events: that were read.
        removals: signed statements about events that were removed.
        removed_through: number of the last event that was removed; 0 for none.
        newest: number and hash of the newest event; kept elsewhere, they tell later whether it is still there.
        compared: lines of an earlier export that were found unchanged.
        findings: what is wrong; empty for a sound log.
    """

    events: int = 0
    removals: int = 0
    removed_through: int = 0
    newest: tuple[int, str] = (0, "")
    compared: int = 0
    findings: list[Finding] = field(default_factory=list)


def verify_events(session: Session, trusted: Mapping[str, bytes], export: Path | None = None) -> EventReport:
    """Verify the whole log, up to the first event that is not as it was written.

    Args:
        session: reads at one moment.
        trusted: public keys by fingerprint.
        export: an earlier export, whose every line must be in the log unless it was removed since.

    Raises:
        InvalidInput: the file is no export.
    """
    report = EventReport(findings=list(find_missing_triggers(session, TABLES)))
    try:
        report.removals, report.removed_through, digest = check_removals(session, trusted)
    except SignatureRefused as error:
        report.findings.append(Finding(FindingCode.CHECKPOINT_BROKEN, f"What was removed is not signed for. {error}"))
        return report
    report.newest = report.removed_through, digest
    try:
        with with_marks(session) if session.get_bind().dialect.name == "sqlite" else nullcontext():
            after = 0
            while rows := events_after(session, after):
                report.newest = check_events(rows, report.newest)
                report.events += len(rows)
                after = report.newest[0]
            if export is not None:
                _compare(session, report, export, digest)
    except AuditLogBroken as error:
        report.findings.append(Finding(FindingCode.CHAIN_BROKEN, error.message, sequence=error.sequence))
    return report


def events_after(session: Session, sequence: int) -> list[dict[str, Any]]:
    """Return events in order as they are stored, after a number; 0 begins with the first."""
    found = session.execute(_AFTER, {"after": sequence or _BEFORE_ALL, "rows": EVENTS_MAX}).mappings()
    return [dict(row) for row in found]


def check_events(events: Sequence[dict[str, Any]], before: tuple[int, str]) -> tuple[int, str]:
    """Check that events follow one another and are as they were written.

    Args:
        events: in order.
        before: number and hash of the one before them.

    Returns:
        Number and hash of the last one.

    Raises:
        AuditLogBroken: one is not.
    """
    sequence, digest = before
    for event in events:
        if event["sequence"] != sequence + 1:
            raise AuditLogBroken(sequence + 1, "is missing, or stands in another place")
        sequence += 1
        if event["previous_hash"] != digest:
            raise AuditLogBroken(sequence, "does not link to the one before it")
        try:
            digest = event_hash(event)
        except (TypeError, ValueError):
            digest = ""
        if event["hash"] != digest:
            raise AuditLogBroken(sequence, "does not have its hash: it was changed after it was written")
    return sequence, digest


def check_removals(session: Session, trusted: Mapping[str, bytes]) -> tuple[int, int, str]:
    """Check all statements about removals, and return how many there are, and number and hash of the last event.

    Raises:
        SignatureRefused: one is missing, was changed, or is not signed by a trusted key.
    """
    previous, through, digest, count = GENESIS_HASH, 0, GENESIS_HASH, 0
    for count, row in enumerate(session.scalars(select(AuditRemoval).order_by(AuditRemoval.number)), start=1):
        public = trusted.get(row.key_id)
        document = {
            "statement": _statement(row) | {"key_id": row.key_id},
            "public_key": public.hex() if public else "",
            "signature": row.signature,
        }
        statement = check_signed(document, format=FORMAT, version=VERSION, trusted=trusted)
        if row.number != count or row.previous_hash != previous or row.through <= through:
            raise SignatureRefused(f"Removal {count} of the audit log is missing, or does not follow the one before.")
        previous, through, digest = body_hash(statement), row.through, row.hash
    return count, through, digest


def remove_old(factory: SessionFactory, settings: Settings, *, now: datetime, proved: bool = False) -> bool:
    """Remove events that are older than they are kept, at most EVENTS_MAX, and sign for that. True: there are more.

    By a clock that has just jumped ahead all events would be old, and gone for good. So where a clock is not proved,
    the log itself must hold an event that is to be kept and is a day old: one that agrees with it wrote that.

    Args:
        now: aware.
        proved: whether the clock is known to have gone on as it should for a day.

    Raises:
        AuditLogBroken: one of them is not as it was written; nothing is removed.
        SigningKeyUnusable: nobody can sign; nothing is removed.
    """
    until = utc_text(now.astimezone(UTC) - timedelta(days=settings.audit_log_days))
    with transaction(factory, read_only=True) as session:  # the usual case takes no write lock
        oldest = session.scalar(select(AuditEvent.at).order_by(AuditEvent.sequence).limit(1))
        if oldest is None or oldest >= until:
            return False
        settled = AuditEvent.at >= until, AuditEvent.at <= utc_text(now.astimezone(UTC) - SETTLED)
        if not proved and session.scalar(select(AuditEvent.sequence).where(*settled).limit(1)) is None:
            return False
    key = open_signing_key(settings.ledger_key_path)
    with transaction(factory) as session:
        if session.get_bind().dialect.name == "postgresql":
            session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": CHAIN_LOCK})
        last = session.scalar(select(AuditRemoval).order_by(AuditRemoval.number.desc()).limit(1))
        before = (last.through, last.hash) if last is not None else (0, GENESIS_HASH)
        found = events_after(session, before[0])
        young = next((place for place, event in enumerate(found) if event["at"] >= until), len(found))
        if not young:  # another process was first
            return False
        through, digest = check_events(found[:young], before)
        session.add(_signed(key, last, through, digest, now))
        session.flush()
        session.execute(delete(AuditEvent).where(AuditEvent.sequence <= through))
    return young == EVENTS_MAX


def _compare(session: Session, report: EventReport, export: Path, removed_hash: str) -> None:
    """Compare the lines of an export with the log.

    Raises:
        AuditLogBroken: one is not in it as it was.
    """
    for lines in _lines(export):
        stored = session.execute(_SOME, {"numbers": [line["sequence"] for line in lines]}).mappings()
        known = {row["sequence"]: dict(row) for row in stored}
        for line in lines:
            sequence = line["sequence"]
            last = sequence == report.removed_through and line.get("hash") != removed_hash
            if last or (sequence > report.removed_through and known.get(sequence) != line):
                raise AuditLogBroken(sequence, "is not what the export says: the log was changed or cut off since")
            report.compared += sequence > report.removed_through


def _lines(export: Path) -> Iterator[list[dict[str, Any]]]:
    some: list[dict[str, Any]] = []
    with export.open(encoding="utf-8", errors="replace") as file:
        while line := file.readline(_LINE_CHARACTERS_MAX):
            try:
                event = json.loads(line)
                number = event["sequence"]
            except (ValueError, TypeError, KeyError, RecursionError):
                number = None
            if type(number) is not int:
                raise InvalidInput(f"{export} is no export of the audit log: see `obscura audit export`.")
            some.append(event)
            if len(some) == _LINES_AT_A_TIME:
                yield some
                some = []
    if some:
        yield some


def _signed(key: SigningKey, last: AuditRemoval | None, through: int, digest: str, now: datetime) -> AuditRemoval:
    row = AuditRemoval(
        number=last.number + 1 if last else 1,
        through=through,
        hash=digest,
        previous_hash=body_hash(_statement(last) | {"key_id": last.key_id}) if last else GENESIS_HASH,
        removed_at=utc_text(now),
        key_id=key.key_id,
    )
    row.signature = key.sign(_statement(row))["signature"]
    return row


def _statement(row: AuditRemoval) -> dict[str, Any]:
    names = ("number", "through", "hash", "previous_hash", "removed_at")
    return {"format": FORMAT, "version": VERSION, **{name: getattr(row, name) for name in names}}
