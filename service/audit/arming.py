"""What follows from a verification: it is remembered, and what it found stops arming (`service.ledger.stops`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from obscura.wire.words import VerificationKind
from service.audit.findings import Finding, Report
from service.db.ledger_tables import EVERYWHERE, ArmingStop, Verification
from service.notices import tell_of_stop


def stop_arming(session: Session, findings: Iterable[Finding], *, now: datetime) -> int:
    """Stop what the findings concern; the first finding of each scope stays. Returns how many stops are new."""
    new = 0
    for finding in findings:
        if finding.stops and session.get(ArmingStop, finding.scope) is None:
            session.add(
                ArmingStop(scope=finding.scope, code=finding.code.value, sequence=finding.sequence, found_at=now)
            )
            session.flush()
            tell_of_stop(session, None if finding.scope == EVERYWHERE else finding.scope, now=now)
            new += 1
    return new


def record_verification(session: Session, report: Report, *, now: datetime) -> None:
    """Remember when the ledger was last verified and with what result."""
    kind = VerificationKind.FULL if report.full else VerificationKind.RECENT
    counts = {"entries": report.entries, "findings": len(report.findings)}
    session.merge(Verification(kind=kind, verified_at=now, **counts))
    session.flush()


def verifications(session: Session) -> Sequence[Verification]:
    """Return the newest verification of each kind."""
    return session.scalars(select(Verification).order_by(Verification.kind)).all()


def verified_at(session: Session, kind: VerificationKind) -> datetime | None:
    """Return when a verification of this kind last ended, whatever it found; None for never."""
    return session.scalar(select(Verification.verified_at).where(Verification.kind == kind))


def clear_stops(session: Session) -> int:
    """Let data be opened again: only after a full verification found nothing to stop for. Returns how many fell."""
    stops = session.scalars(select(ArmingStop.scope)).all()
    session.execute(delete(ArmingStop))
    return len(stops)
