"""Accounts: opening them, and the pages of accounts and of their log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from privacy.accounting.bounds import DELTA_LEAST, DELTA_MOST, EPSILON_LEAST, EPSILON_MOST
from privacy.accounting.filters import open_filter
from privacy.errors import InvalidParameter
from service.db.base import new_id
from service.db.session import is_duplicate
from service.db.words import Adjacency, FilterName, Unit
from service.errors import Conflict, InvalidInput, LedgerCorruption
from service.ledger.chain import GENESIS_HASH
from service.ledger.checks import check_account, check_entry
from service.ledger.records import Account, Entry
from service.ledger.rows import first_entry, get_account
from service.ledger.statements import ACCOUNTS, ENTRIES, account_rows, add_account, add_entry

NAME_CHARACTERS_MAX = 200
PAGE_SIZE_MAX = 1000


def open_account(
    session: Session,
    *,
    name: str,
    owner: str,
    epsilon: float,
    delta: float,
    unit: str,
    adjacency: str,
    filter_name: str,
    now: datetime,
) -> Account:
    """Open an account: one population, one lifetime budget, one filter.

    Args:
        session: in a writing transaction.
        name: unique; shown to everybody who may see the account.
        owner: who is asked for more.
        epsilon: the limit, 0.001 to 1000.
        delta: 1e-30 to 0.1; jobs also need delta <= 1/records.
        unit: "record" or "subject".
        adjacency: "add_remove".
        filter_name: "gdp" (Gaussian events only, exact) or "rdp" (every event).
        now: aware.

    Raises:
        InvalidInput: a value is out of range.
        Conflict: the name is taken.
    """
    for field, text in (("name", name), ("owner", owner)):
        if not text.strip() or len(text) > NAME_CHARACTERS_MAX or not text.isprintable():
            raise InvalidInput(f"An account's {field} needs 1 to {NAME_CHARACTERS_MAX} printable characters.")
    try:
        chosen = FilterName(filter_name), Unit(unit), Adjacency(adjacency)
    except ValueError as error:
        raise InvalidInput(
            f"{error}: choose filter gdp or rdp, unit record or subject, adjacency add_remove."
        ) from None
    for term, value, least, most in (
        ("epsilon", epsilon, EPSILON_LEAST, EPSILON_MOST),
        ("delta", delta, DELTA_LEAST, DELTA_MOST),
    ):
        if not least <= value <= most:
            raise InvalidInput(f"The budget cannot be opened: an account's {term} is {least:g} to {most:g}.")
    try:
        privacy_filter = open_filter(chosen[0].value, epsilon, delta)
    except InvalidParameter as error:
        raise InvalidInput(f"The budget cannot be opened: {error}.") from error
    if session.scalar(select(ACCOUNTS.c.id).where(ACCOUNTS.c.name == name)) is not None:
        raise _taken(name)
    details = {
        "name": name,
        "owner": owner,
        "epsilon": privacy_filter.epsilon,
        "delta": privacy_filter.delta,
        "unit": chosen[1].value,
        "adjacency": chosen[2].value,
        "filter": chosen[0].value,
        "filter_order": privacy_filter.order,
    }
    account = Account(
        id=new_id("acc"),
        name=name,
        owner=owner,
        epsilon=privacy_filter.epsilon,
        delta=privacy_filter.delta,
        unit=chosen[1],
        adjacency=chosen[2],
        filter=chosen[0],
        filter_order=privacy_filter.order,
        capacity_nano=privacy_filter.capacity_nano,
        spent_nano=0,
        held_nano=0,
        frozen=False,
        head_sequence=1,
        head_hash="",
        created_at=now,
    )
    entry = first_entry(account, details=details, now=now)
    account.head_hash = entry.hash
    try:
        add_account(session, account)
    except IntegrityError as error:
        if not is_duplicate(error):
            raise
        raise _taken(name) from None  # at the same moment, elsewhere
    add_entry(session, entry)
    return account


def accounts(session: Session, *, after: str | None, limit: int) -> Sequence[Account]:
    """Return a page of accounts, oldest first.

    Args:
        session: any transaction.
        after: id of the last account of the page before; None for the first page.
        limit: of the page, 1 to 1000.
    """
    return [account for account, _ in _rows(session, after, limit)]


def audited_accounts(
    session: Session, *, after: str | None, limit: int
) -> Sequence[tuple[Account, LedgerCorruption | None]]:
    """Return a page of accounts like `accounts`, each with what its log says against it, if anything."""
    return [(account, _fault(account, head)) for account, head in _rows(session, after, limit)]


def _rows(session: Session, after: str | None, limit: int) -> list[tuple[Account, Entry | None]]:
    last = None if after is None else get_account(session, after)
    return account_rows(session, after=last, limit=_page(limit))


def _fault(account: Account, head: Entry | None) -> LedgerCorruption | None:
    try:
        check_account(account, head)
    except LedgerCorruption as error:
        return error
    return None


def entries(session: Session, account_id: str, after: int, limit: int) -> Sequence[Entry]:
    """Return a page of an account's log, oldest first, with its hashes, links and numbering checked.

    Args:
        session: any transaction.
        account_id: whose log.
        after: sequence of the last entry of the page before; 0 for the first page.
        limit: of the page, 1 to 1000.

    Raises:
        NotFound: no such account.
        LedgerCorruption: names the first bad entry.
    """
    account = get_account(session, account_id)
    start, limit = max(after, 0), _page(limit)
    # The last entry of the page before is read again: it is what the first one here must link to.
    numbers = ENTRIES.c.sequence.between(start, account.head_sequence)
    query = select(ENTRIES).where(ENTRIES.c.account_id == account_id, numbers).order_by(ENTRIES.c.sequence)
    rows = [Entry(*row) for row in session.execute(query.limit(limit + (start > 0)))]
    previous_hash, expected = GENESIS_HASH, 1
    if start > 0:
        previous_hash, expected = rows[0].previous_hash if rows else "", start
    for row in rows:
        if row.sequence != expected or row.previous_hash != previous_hash:
            break
        check_entry(row)
        previous_hash, expected = row.hash, row.sequence + 1
    if expected <= min(account.head_sequence, start + limit) and start <= account.head_sequence:
        raise LedgerCorruption(
            f"Ledger: the log of account {account_id} is broken at entry {expected}.",
            account_id=account_id,
            sequence=expected,
        )
    return rows[1:] if start else rows


def _taken(name: str) -> Conflict:
    return Conflict(f"An account named *{name}* exists already; datasets about the same people share it.")


def _page(limit: int) -> int:
    if not 1 <= limit <= PAGE_SIZE_MAX:
        raise InvalidInput(f"A page has 1 to {PAGE_SIZE_MAX} rows.", limit=limit)
    return limit
