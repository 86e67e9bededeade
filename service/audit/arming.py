"""What follows from a verification: it is remembered, and what it found stops arming (`service.ledger.stops`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from obscura.wire.words import VerificationKind
from service.audit.findings import Finding, FindingCode, Report
from service.db.ledger_tables import EVERYWHERE, LOCKING, AccountRow, ArmingStop, Verification
from service.notices import tell_of_stop

_KEPT = LOCKING | {FindingCode.INSTALLATION_MISMATCH.value}  # a mismatch explains the findings that lock


def stop_arming(session: Session, findings: Iterable[Finding], *, now: datetime) -> int:
    """Stop what the findings concern; return how many stops are new.

    The first finding of each scope stays, except that one which locks the installation replaces one which does not.
    """
    new = 0
    for finding in findings:
        stop = session.get(ArmingStop, finding.scope) if finding.stops else None
        if stop is not None and finding.code in LOCKING and stop.code not in _KEPT:
            stop.code, stop.sequence = finding.code.value, finding.sequence
        if finding.stops and stop is None:
            session.add(
                ArmingStop(scope=finding.scope, code=finding.code.value, sequence=finding.sequence, found_at=now)
            )
            session.flush()
            tell_of_stop(session, None if finding.scope == EVERYWHERE else finding.scope, now=now)
            new += 1
    return new


def stop_restored(session: Session, made_at: str, *, now: datetime) -> None:
    """Stop every account of a database that was restored without its files, until its losses are accepted.

    Args:
        made_at: when the backup was made.
    """
    for account_id in session.scalars(select(AccountRow.id).order_by(AccountRow.id)).all():
        message = (
            f"The database was restored from a backup of {made_at}. What account {account_id} spent after that is not "
            f"in it. Record what may have been spent by `obscura ledger accept {account_id} --epsilon E`."
        )
        stop_arming(session, [Finding(FindingCode.RESTORED, message, account_id)], now=now)


def end_restored(session: Session, account_id: str) -> None:
    """Remove the stop of `stop_restored` from an account whose losses are accepted."""
    code = ArmingStop.code == FindingCode.RESTORED.value
    session.execute(delete(ArmingStop).where(ArmingStop.scope == account_id, code))


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
    """Remove the stops that a verification has found, once a full one finds nothing to stop for; return how many.

    The stops of a restore without its files stay: no verification can find what was lost, so people accept it.
    """
    found = ArmingStop.code != FindingCode.RESTORED.value
    stops = session.scalars(select(ArmingStop.scope).where(found)).all()
    session.execute(delete(ArmingStop).where(found))
    return len(stops)
