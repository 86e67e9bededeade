"""Arming stops: while one stands for an account, or for all, no private data of it is opened.

A verification that finds something writes one (`service.audit.arming`). It stands beside the log, because nothing
should be appended to a log that is in doubt. Jobs whose account is stopped wait; nothing of theirs is spent or given
back.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, SQLColumnExpression, bindparam, exists, or_, select
from sqlalchemy.orm import Session

from service.db.ledger_tables import EVERYWHERE, ArmingStop
from service.db.ledger_tables import LOCKING as LOCKING
from service.db.prepared import Prepared
from service.errors import ObscuraError

_LOCKS = or_(*(ArmingStop.code == code for code in sorted(LOCKING)))
_STOP = Prepared(  # every arming runs it
    select(ArmingStop.code).where(
        or_(ArmingStop.scope == bindparam("account_id"), ArmingStop.scope == EVERYWHERE, _LOCKS)
    )
)


class ArmingStopped(ObscuraError):
    """A check of the ledger found a fault: private data stays closed until an operator has mended it."""

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
    """Let an account pass for which no stop stands.

    Raises:
        ArmingStopped: one does.
    """
    stop = _STOP.row(session, {"account_id": account_id})
    if stop is not None and stop[0] in LOCKING:
        raise InstallationLocked(stop[0])
    if stop is not None:
        raise ArmingStopped(
            f"Trainings are stopped: the check of the ledger has found `{stop[0]}`, so no private data is opened until "
            "an operator has looked. Nothing was spent or reserved. Ask the operator to run `obscura ledger verify`, "
            "to correct what it reports, and to run `obscura ledger verify --clear`.",
            reason=stop[0],
        )


def stopped(account_id: SQLColumnExpression[str | None]) -> ColumnElement[bool]:
    """Return the SQL condition that a stop stands for the account in a column."""
    return exists().where(or_(ArmingStop.scope == account_id, ArmingStop.scope == EVERYWHERE, _LOCKS))


def arming_stops(session: Session) -> Sequence[ArmingStop]:
    """Return the stops that stand, oldest first."""
    return session.scalars(select(ArmingStop).order_by(ArmingStop.found_at, ArmingStop.scope)).all()
