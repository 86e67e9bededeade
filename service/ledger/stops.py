"""Arming stops. While a stop applies to an account, or to all accounts, no job can open their private data.

A verification with a finding writes a stop (`service.audit.findings`) to its own table, because nothing should be
appended to a log that is in doubt. Jobs of a stopped account wait; their holds are neither spent nor returned.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, SQLColumnExpression, exists, or_, select
from sqlalchemy.orm import Session

from service.db.ledger_tables import EVERYWHERE, ArmingStop
from service.db.ledger_tables import LOCKING as LOCKING
from service.errors import ObscuraError

_LOCKS = ArmingStop.code.in_(sorted(LOCKING))
LOCKED: ColumnElement[bool] = exists().where(_LOCKS)  # the SQL condition that the installation is locked


class ArmingStopped(ObscuraError):
    """A check of the ledger found a fault: private data stays closed until an operator corrects it."""


class InstallationLocked(ArmingStopped):
    """The database is older than the proofs in its storage: admins can read, and nothing else is possible."""

    code = "installation_locked"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"The installation is locked: its storage proves spending or uploads that its database lacks (`{reason}`). "
            "Only admins can still read. Ask the operator to run `obscura ledger verify`, which lists what is missing, "
            "and `obscura ledger accept ACCOUNT`, which records the missing amount as spent.",
            reason=reason,
        )


def lock_of(session: Session) -> str | None:
    """Return the code of the finding that locks the installation; None if it is unlocked."""
    return session.scalar(select(ArmingStop.code).where(_LOCKS).limit(1))


def require_unlocked(session: Session) -> None:
    """Raise InstallationLocked if the database is older than the proofs in its storage."""
    reason = lock_of(session)
    if reason is not None:
        raise InstallationLocked(reason)


def stop_of(session: Session, account_id: str) -> ArmingStopped | None:
    """Return an error that names the finding which stops an account; None if the account is not stopped."""
    scopes = or_(ArmingStop.scope.in_((account_id, EVERYWHERE)), _LOCKS)
    codes = session.scalars(select(ArmingStop.code).where(scopes)).all()
    if not codes:
        return None
    code = next((code for code in codes if code in LOCKING), None)
    if code is not None:
        return InstallationLocked(code)
    return ArmingStopped(
        f"Trainings are stopped: a check of the ledger found `{codes[0]}`. No private data is opened, and nothing more "
        "is spent, until this fault is corrected. Ask the operator to run `obscura ledger verify`, correct its "
        "findings, and run `obscura ledger verify --clear`.",
        reason=codes[0],
    )


def require_armable(session: Session, account_id: str) -> None:
    """Raise ArmingStopped if an account is stopped."""
    stop = stop_of(session, account_id)
    if stop is not None:
        raise stop


def stopped(account_id: SQLColumnExpression[str | None]) -> ColumnElement[bool]:
    """Return the SQL condition that the account in a column is stopped."""
    return exists().where(or_(ArmingStop.scope == account_id, ArmingStop.scope == EVERYWHERE, _LOCKS))


def arming_stops(session: Session) -> Sequence[ArmingStop]:
    """Return all stops, oldest first."""
    return session.scalars(select(ArmingStop).order_by(ArmingStop.found_at, ArmingStop.scope)).all()
