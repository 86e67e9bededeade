"""A noisy count of an account's records: paid at once, because it is made where the records are, by their owner."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from obscura.wire.words import EntryKind, Unit
from privacy.mechanisms.record_count import STDDEV, count_event
from service.errors import InvalidInput
from service.ledger.accounts import filter_of, insufficient, require_open, require_unfrozen
from service.ledger.rows import append, lock_account
from service.ledger.stops import require_armable


def charge_count(session: Session, *, account_id: str, now: datetime) -> int:
    """Spend the price of one noisy count of records. Must be committed before its noise is drawn.

    Returns:
        The sequence of the entry.

    Raises:
        NotFound: no such account.
        InvalidInput: the account protects subjects, of whom one may have any number of records.
        AccountClosed: the account takes no new data, so there is nothing to count.
        AccountFrozen: the account spends nothing new.
        ArmingStopped: a check of the ledger found a fault and nobody has mended it.
        InsufficientBudget: too little is left; carries all numbers.
    """
    account = lock_account(session, account_id)
    if account.unit is Unit.SUBJECT:
        raise InvalidInput(
            f"Account *{account.name}* protects subjects, of whom one may have any number of records: no noise hides "
            "such a count. State the most records and subjects that there can be."
        )
    require_open(account)  # a count is for declaring a dataset
    require_unfrozen(account)
    require_armable(session, account.id)
    event = count_event(STDDEV)
    price_nano = filter_of(account).price_nano(event)
    if price_nano > account.left_nano:
        raise insufficient(account, price_nano)
    append(
        session,
        account,
        EntryKind.COUNT,
        amount_nano=price_nano,
        spent=price_nano,
        details={"event": event.to_json(), "noise_stddev": STDDEV},
        now=now,
    )
    return account.head_sequence
