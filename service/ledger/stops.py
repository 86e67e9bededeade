"""Arming stops: while an account, or every account, has one, none of its private data is opened.

A verification with a finding writes one (`service.audit.findings`), beside the log, because nothing should be appended
to a log that is in doubt. Jobs of a stopped account wait; nothing of theirs is spent or returned.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, SQLColumnExpression, exists, or_, select
from sqlalchemy.orm import Session

from service.db.ledger_tables import EVERYWHERE, ArmingStop
from service.db.ledger_tables import LOCKING as LOCKING
from service.errors import ObscuraError

_LOCKS = ArmingStop.code.in_(sorted(LOCKING))


class ArmingStopped(ObscuraError):
    """A check of the ledger found a fault: private data stays closed until an operator has corrected it."""

    code = "arming_stopped"


class InstallationLocked(ArmingStopped):
    """The database is older than what its storage proves: nothing but reading by admins is possible."""

    code = "installation_locked"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"The installation is locked: its database lacks spending or uploads that its storage proves (`{reason}`). "
            "Admins can read. Ask the operator to run `obscura ledger verify`, which lists what is missing, and "
            "`obscura ledger accept ACCOUNT`, which records it as spent.",
            reason=reason,
        )


def lock_of(session: Session) -> str | None:
    """Return the code of a finding that locks the installation; None where it is open."""
    return session.scalar(select(ArmingStop.code).where(_LOCKS).limit(1))


def require_unlocked(session: Session) -> None:
    """Raise InstallationLocked if the database is older than what its storage proves."""
    reason = lock_of(session)
    if reason is not None:
        raise InstallationLocked(reason)


def locked() -> ColumnElement[bool]:
    """Return the SQL condition that the installation is locked."""
    return exists().where(_LOCKS)


def require_armable(session: Session, account_id: str) -> None:
    """Raise if an account is stopped.

    Raises:
        ArmingStopped: it is; names the finding.
    """
    scopes = or_(ArmingStop.scope.in_((account_id, EVERYWHERE)), _LOCKS)
    code = session.scalar(select(ArmingStop.code).where(scopes).limit(1))
    if code in LOCKING:
        raise InstallationLocked(code)
    if code is not None:
        raise ArmingStopped(
            f"Trainings are stopped: the check of the ledger has found `{code}`, so no private data is opened until "
            "an operator has looked. Nothing was spent or reserved. Ask the operator to run `obscura ledger verify`, "
            "to correct what it reports, and to run `obscura ledger verify --clear`.",
            reason=code,
        )


def stopped(account_id: SQLColumnExpression[str | None]) -> ColumnElement[bool]:
    """Return the SQL condition that the account in a column is stopped."""
    return exists().where(or_(ArmingStop.scope == account_id, ArmingStop.scope == EVERYWHERE, _LOCKS))


def arming_stops(session: Session) -> Sequence[ArmingStop]:
    """Return all stops, oldest first."""
    return session.scalars(select(ArmingStop).order_by(ArmingStop.found_at, ArmingStop.scope)).all()
