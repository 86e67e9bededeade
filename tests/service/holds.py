"""Holding an amount of a test's own choice, as if it had been priced at the account's present rate."""

from typing import Any

from sqlalchemy.orm import Session

from service import ledger


def hold_at_present_rate(session: Session, *, account_id: str, **facts: Any) -> ledger.Hold:
    """Take a hold; `facts` are those of `ledger.hold`."""
    present = ledger.filter_of(ledger.get_account(session, account_id))
    return ledger.hold(session, account_id=account_id, priced_by=present, **facts)
