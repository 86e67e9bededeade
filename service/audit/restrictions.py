"""Whether a database knows what people have decided to take away, by what was noted of it beside the database.

The log orders what may be undone later, such as a limit that two people raise again: a note names the entry that it is
about, and only a database that lacks that entry has forgotten it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from obscura.wire.words import EntryKind
from service.audit.findings import Finding, FindingCode
from service.db.access_tables import Admin, ApiKey
from service.db.ledger_tables import AccountRow, EntryRow
from service.storage.interface import Storage
from service.storage.restrictions import (
    Restriction,
    read_ends,
    read_restrictions,
    write_ends,
    write_restriction,
)

Noted = Mapping[str, Restriction | None]


def forgotten(session: Session, noted: Noted) -> dict[str, Restriction]:
    """Return, by account, the notes of lower limits and freezes that a database does not know and does not keep to."""
    found = {}
    for account_id, note in noted.items():
        row = session.get(AccountRow, account_id, populate_existing=True)
        if row is None or note is None:
            continue
        looser = row.epsilon > note.epsilon or (note.frozen and not row.frozen)
        if looser and not _knows(session, account_id, note):
            found[account_id] = note
    return found


def find_unrestricted(session: Session, noted: Noted) -> Iterator[Finding]:
    """Yield accounts whose limit or freeze a database has forgotten, or of which nobody can tell.

    Args:
        noted: `read_restrictions` before the session's snapshot was taken.
    """
    for account_id, note in sorted(forgotten(session, noted).items()):
        message = (
            f"By entry {note.sequence} of its log account {account_id} had a limit of epsilon {note.epsilon:g}"
            f"{' and was frozen' if note.frozen else ''}. This database does not hold that entry, so it is older: "
            "carry that forward, or lower the limit and freeze the account as it was. Two people may raise it again."
        )
        yield Finding(FindingCode.RESTRICTION_FORGOTTEN, message, account_id)
    for account_id in sorted(account_id for account_id, note in noted.items() if note is None):
        if session.get(AccountRow, account_id) is not None:
            message = (
                f"What was noted of account {account_id} in restrictions cannot be read, so nobody knows whether this "
                "database is older than its limit and freeze. Look whether they are right, and move the file away."
            )
            yield Finding(FindingCode.RESTRICTION_FORGOTTEN, message, account_id)


def keep_restrictions(session: Session, storage: Storage, account_id: str | None = None) -> None:
    """Bring the notes up to a database, where a crash came between a commit and its note.

    A note of what the database has forgotten is left alone, and so is one that cannot be read: they are the evidence.

    Args:
        account_id: of the only account to look at, which has just changed; None: those that are not as they were noted.
    """
    noted = read_restrictions(storage, account_id or "acc_")
    lost = forgotten(session, noted)
    opening = aliased(EntryRow)
    limits = AccountRow.id, AccountRow.epsilon, AccountRow.frozen, AccountRow.closed, opening.details
    rows = select(*limits).join(opening, (opening.account_id == AccountRow.id) & (opening.sequence == 1))
    for row in session.execute(rows if account_id is None else rows.where(AccountRow.id == account_id)):
        note = noted.get(row.id)
        terms = (row.epsilon, row.frozen, row.closed)
        before = (note.epsilon, note.frozen, note.closed) if note else (row.details.get("epsilon"), False, False)
        if row.id in lost or (note is None and row.id in noted):
            continue
        if account_id or terms != before or (note is not None and not _knows(session, row.id, note)):
            write_restriction(storage, row.id, Restriction(*_newest(session, row.id), *terms))


def keep_ends(session: Session, storage: Storage) -> None:
    """Note the ends of keys and admins that a database knows and that were not noted."""
    noted = read_ends(storage)
    ends = {name: end for name, end in ends_of(session).items() if end is not None}
    if missing := {name: end for name, end in ends.items() if name not in noted or noted[name] > end}:
        write_ends(storage, missing)


def ends_of(session: Session) -> dict[str, datetime | None]:
    """Return from when on each key opens nothing, and each admin decides nothing; None where no end is known.

    Admins whom groups of a sign-in provider make are left out: it says itself who is one.
    """
    keys = session.execute(select(ApiKey.id, ApiKey.revoked_at, ApiKey.expires_at))
    found = {row.id: min((end for end in row[1:] if end), default=None) for row in keys}
    people = session.execute(select(Admin.id, Admin.removed_at).where(Admin.person_id.is_(None)))
    return found | {row.id: row.removed_at for row in people}


def _knows(session: Session, account_id: str, note: Restriction) -> bool:
    this = EntryRow.account_id == account_id, EntryRow.sequence == note.sequence, EntryRow.hash == note.hash
    return session.scalar(select(EntryRow.sequence).where(*this)) is not None


def _newest(session: Session, account_id: str) -> tuple[int, str]:
    """Return number and hash of the newest entry that changed limit or freeze, or of the first."""
    kinds = EntryKind.OPEN, EntryKind.LIMIT, EntryKind.FREEZE
    those = select(EntryRow.sequence, EntryRow.hash).where(EntryRow.account_id == account_id, EntryRow.kind.in_(kinds))
    sequence, hash = session.execute(those.order_by(EntryRow.sequence.desc()).limit(1)).one()
    return sequence, hash
