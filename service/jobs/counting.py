"""Paying for a noisy count of records, once for each request."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from service import ledger
from service.jobs.submission import remember
from service.ledger import Entry


def pay_for_count(
    session: Session, *, principal: str, idempotency_key: str | None, account_id: str, now: datetime
) -> Entry:
    """Spend the price of one noisy count of an account's records. Commit it before the noise is drawn.

    Args:
        idempotency_key: the same key and account give the same entry; None pays each time.
        account_id: an account that protects records.

    Raises:
        IdempotencyMismatch: the key was used with another request.
        NotFound, InvalidInput, AccountFrozen, ArmingStopped, InsufficientBudget: as `ledger.charge_count`.
    """
    sequence = ledger.lock_account(session, account_id).head_sequence + 1  # of the entry that will be written
    first = remember(session, principal, idempotency_key, {"count_records_of": account_id}, str(sequence), now)
    if first is None:
        ledger.charge_count(session, account_id=account_id, now=now)
    else:
        sequence = int(first)
    (entry,) = ledger.entries(session, account_id, sequence - 1, 1)
    return entry
