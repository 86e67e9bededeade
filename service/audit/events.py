"""Verifies the audit log: its chain, what was signed for its beginning, and what an earlier export says of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import bindparam, text
from sqlalchemy.orm import Session

from service.audit.findings import Finding, FindingCode
from service.audit.removals import COLUMNS, AuditLogBroken, check_events, check_removals, events_after
from service.audit.rows import find_missing_triggers, with_marks
from service.audit.signing import SignatureRefused
from service.errors import InvalidInput

TABLES = ("audit_events", "audit_removals")
_LINES_AT_A_TIME = 500
_LINE_CHARACTERS_MAX = 4000
_SOME = text(f"SELECT {COLUMNS} FROM audit_events WHERE sequence IN :numbers").bindparams(
    bindparam("numbers", expanding=True)
)


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
        InvalidInput: the export is none.
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
    with export.open(encoding="utf-8") as file:
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
