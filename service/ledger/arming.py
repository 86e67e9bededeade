"""What follows from a verification. Arming stops: while one stands, no private data is opened for its account, or any.

A stop is written when verification finds something. It stands beside the log, because nothing should be appended to a
log that is in doubt. Jobs whose account is stopped wait; nothing of theirs is spent or returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, SQLColumnExpression, bindparam, delete, exists, or_, select
from sqlalchemy.orm import Session

from service.db.ledger_tables import ArmingStop, Verification, VerificationKind
from service.db.prepared import Prepared
from service.errors import ObscuraError
from service.ledger.findings import EVERYWHERE, Finding, Report

_STOP = Prepared(  # every arming runs it
    select(ArmingStop.code).where(or_(ArmingStop.scope == bindparam("account_id"), ArmingStop.scope == EVERYWHERE))
)


class ArmingStopped(ObscuraError):
    """A check of the ledger found a fault: private data stays closed until an operator has mended it."""

    code = "arming_stopped"


def require_armable(session: Session, account_id: str) -> None:
    """Let an account pass for which no stop stands.

    Raises:
        ArmingStopped: one does.
    """
    stop = _STOP.row(session, {"account_id": account_id})
    if stop is not None:
        raise ArmingStopped(
            "A check of the ledger found a fault, so no private data is opened until an operator has looked. "
            "The job waits; nothing was spent.",
            reason=stop[0],
        )


def stopped(account_id: SQLColumnExpression[str | None]) -> ColumnElement[bool]:
    """Return the SQL condition that a stop stands for the account in a column."""
    return exists().where(or_(ArmingStop.scope == account_id, ArmingStop.scope == EVERYWHERE))


def arming_stops(session: Session) -> Sequence[ArmingStop]:
    """Return the stops that stand, oldest first."""
    return session.scalars(select(ArmingStop).order_by(ArmingStop.found_at, ArmingStop.scope)).all()


def stop_arming(session: Session, findings: Iterable[Finding], *, now: datetime) -> int:
    """Stop what the findings concern; the first finding of each scope stays. Returns how many stops are new."""
    new = 0
    for finding in findings:
        if finding.stops and session.get(ArmingStop, finding.scope) is None:
            session.add(
                ArmingStop(scope=finding.scope, code=finding.code.value, sequence=finding.sequence, found_at=now)
            )
            session.flush()
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
    stops = arming_stops(session)
    session.execute(delete(ArmingStop))
    return len(stops)
