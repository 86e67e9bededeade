"""Arming stops: while an account, or every account, has one, none of its private data is opened.

A verification with a finding writes one (`service.audit.arming`), beside the log, because nothing should be appended to
a log that is in doubt. Jobs of a stopped account wait; nothing of theirs is spent or returned.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, SQLColumnExpression, exists, or_, select
from sqlalchemy.orm import Session

from service.db.ledger_tables import EVERYWHERE, ArmingStop
from service.errors import ObscuraError


class ArmingStopped(ObscuraError):
    """A check of the ledger found a fault: private data stays closed until an operator has corrected it."""

    code = "arming_stopped"


def require_armable(session: Session, account_id: str) -> None:
    """Raise if an account is stopped.

    Raises:
        ArmingStopped: it is; names the finding.
    """
    scopes = ArmingStop.scope.in_((account_id, EVERYWHERE))
    code = session.scalar(select(ArmingStop.code).where(scopes).limit(1))
    if code is not None:
        raise ArmingStopped(
            f"Trainings are stopped: the check of the ledger has found `{code}`, so no private data is opened until "
            "an operator has looked. Nothing was spent or reserved. Ask the operator to run `obscura ledger verify`, "
            "to correct what it reports, and to run `obscura ledger verify --clear`.",
            reason=code,
        )


def stopped(account_id: SQLColumnExpression[str | None]) -> ColumnElement[bool]:
    """Return the SQL condition that the account in a column is stopped."""
    return exists().where(or_(ArmingStop.scope == account_id, ArmingStop.scope == EVERYWHERE))


def arming_stops(session: Session) -> Sequence[ArmingStop]:
    """Return all stops, oldest first."""
    return session.scalars(select(ArmingStop).order_by(ArmingStop.found_at, ArmingStop.scope)).all()
