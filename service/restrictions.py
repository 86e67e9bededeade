"""Restrictions outlive a restore: they are noted beside the database, and a restored one is told.

Keys that ended, admins who were removed and accounts that were closed are told at once, before any request: nobody
needs to decide that. Lower limits and freezes are entries of a log, and an entry that an older log gained would hide
which receipts are newer than it. So these stop trainings, until they are carried forward (`service.backups.carrying`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from functools import partial

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service import ledger
from service.audit.restrictions import ends_of, keep_ends, keep_restrictions
from service.db.access_tables import Admin, ApiKey
from service.db.session import COMMITTED, SessionFactory, transaction, with_info
from service.errors import LedgerCorruption, NotFound, ObscuraError
from service.identity.auth import revoke
from service.identity.recording import Act, record
from service.ledger import Account
from service.logs import get_logger
from service.settings import Settings
from service.storage import storage_of
from service.storage.interface import Storage
from service.storage.restrictions import read_ends, read_restrictions, write_restriction


def noting(factory: SessionFactory, settings: Settings) -> SessionFactory:
    """Return a factory of the same sessions, which note what they have restricted once it is committed."""
    return with_info(factory, **{COMMITTED: partial(_note, settings, factory)})


def _note(settings: Settings, factory: SessionFactory, changed: Collection[str]) -> None:
    """Bring the notes up to the database. What cannot be written is logged, and written after the next verification."""
    try:
        storage = storage_of(settings)
        with transaction(factory, read_only=True) as session:
            accounts = sorted(name for name in changed if name.startswith("acc_"))
            for account_id in accounts:
                keep_restrictions(session, storage, account_id)
            if len(accounts) < len(changed):
                keep_ends(session, storage)
    except (ObscuraError, OSError, SQLAlchemyError) as error:  # it is committed, and the caller is to hear that
        get_logger(__name__).error("restriction_not_noted", error=type(error).__name__)


def set_closed(session: Session, storage: Storage, account_id: str, *, closed: bool) -> Account:
    """As `ledger.set_closed`. That an account is closed no more is noted before it is committed.

    The log does not say which came later, closing or reopening. So no note ever says "closed" of an account that was
    reopened, and one that does tells of a database that has forgotten it.
    """
    account = ledger.set_closed(session, account_id, closed=closed)
    note = None if closed else read_restrictions(storage, account_id).get(account_id)
    if note is not None and note.closed:
        write_restriction(storage, account_id, replace(note, closed=False))
    return account


def recall(settings: Settings, factory: SessionFactory, *, now: datetime) -> None:
    """Tell a database that was restored from a backup which keys have ended since, which admins were removed and which
    accounts were closed. Call it before any request is answered; on a database that knows all this it writes nothing.

    Raises:
        OSError, sqlalchemy.exc.SQLAlchemyError: storage or database are away.
    """
    storage = storage_of(settings)
    noted, closed = read_ends(storage), read_restrictions(storage)
    with transaction(factory, read_only=True) as session:
        known = ends_of(session)
    ends = {name: noted[name] for name, end in known.items() if name in noted and (end is None or end > noted[name])}
    if ends:
        get_logger(__name__).warning("ends_recalled", count=len(ends))
        with transaction(factory) as session:
            _end(session, ends, now)
    for account_id in sorted(account_id for account_id, note in closed.items() if note is not None and note.closed):
        try:
            with transaction(factory, read_only=True) as session:
                forgotten = not ledger.get_account(session, account_id).closed
            if forgotten:
                get_logger(__name__).warning("closing_recalled", account_id=account_id)
                with transaction(factory) as session:
                    ledger.set_closed(session, account_id, closed=True)
        except NotFound:  # it was opened after the backup
            continue
        except LedgerCorruption:  # which the verification tells of
            get_logger(__name__).error("closing_not_recalled", account_id=account_id)


def _end(session: Session, ends: dict[str, datetime], now: datetime) -> None:
    over = [name for name, end in ends.items() if end <= now]
    revoke(session, ApiKey.id.in_(over), now=now, with_made=False)  # what went with a key was noted, too
    for key in session.scalars(select(ApiKey).where(ApiKey.id.in_(sorted(ends.keys() - set(over))))):
        key.expires_at = ends[key.id]
    for admin in session.scalars(select(Admin).where(Admin.id.in_(over))):
        admin.removed_at = now
        record(session, Act.ADMIN_REMOVED, admin.id, project_id=admin.project_id)
