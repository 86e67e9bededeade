"""Arming stops: while one stands for an account, or for all, no private data of it is opened.

A verification that finds something writes one (`service.audit.arming`). It stands beside the log, because nothing
should be appended to a log that is in doubt. Jobs whose account is stopped wait; nothing of theirs is spent or given
back.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, SQLColumnExpression, exists, or_, select
from sqlalchemy.orm import Session

from service.db.ledger_tables import EVERYWHERE, ArmingStop
from service.errors import ObscuraError


class ArmingStopped(ObscuraError):
    """A check of the ledger found a fault: private data stays closed until an operator has mended it."""

    code = "arming_stopped"


def require_armable(session: Session, account_id: str) -> None:
    """Let an account pass for which no stop stands.

    Raises:
        ArmingStopped: one does.
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
    """Return the SQL condition that a stop stands for the account in a column."""
    return exists().where(or_(ArmingStop.scope == account_id, ArmingStop.scope == EVERYWHERE))


def arming_stops(session: Session) -> Sequence[ArmingStop]:
    """Return the stops that stand, oldest first."""
    return session.scalars(select(ArmingStop).order_by(ArmingStop.found_at, ArmingStop.scope)).all()
