"""The random id that pairs a data folder with a database: a file in the folder, and a row of the database.

The database decides which files are removed, overwritten or used. So a wrong or new database would remove paid results.
The first start writes the id to both. While the ids differ, the service does not remove, run or open anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

from sqlalchemy import delete, select, text, update
from sqlalchemy.orm import Session

from service import ledger
from service.audit.data_folder import DataFolder, read_data_folder, unknown_to
from service.audit.findings import Finding, FindingCode
from service.db.access_tables import Admin, Delivery, Installation, Person, SignIn
from service.db.base import is_id, new_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.session import SessionFactory, among, transaction
from service.errors import ClockRefused, NotFound
from service.identity.recording import Act, record
from service.settings import Settings
from service.storage import storage_of
from service.storage.interface import Storage
from service.times import CLOCK_BEHIND_MAX, wrong_clock

FILE = "installation"
_PENDING = "installation.new"  # written before the row is committed, and renamed afterwards
_LOCK = 0x0B5C12  # PostgreSQL advisory lock
_ID_CHARACTERS_MAX = 64


def pair(settings: Settings, factory: SessionFactory, *, now: datetime) -> bool:
    """Pair a database and a data folder that have no ids yet; return whether they are now paired. Call it at start-up.

    The database must know everything of value in the folder. Idempotent, including concurrent and interrupted calls.
    """
    storage = storage_of(settings)
    with transaction(factory, read_only=True) as session:  # avoids a write lock if they are paired, as usual
        own_id = recorded(session)
    if own_id is not None and own_id == _read(storage, FILE):
        return True
    with transaction(factory) as session:
        if session.get_bind().dialect.name == "postgresql":
            session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        own_id = recorded(session)
        if own_id is None and _read(storage, FILE) is None and _knows_all(session, settings):
            own_id = new_id("ins")
            storage.write(_PENDING, f"{own_id}\n".encode("ascii"))
            session.add(Installation(id=own_id, made_at=now))
    if own_id is not None and _read(storage, _PENDING) == own_id and _read(storage, FILE) is None:
        with suppress(NotFound):  # already moved by another process
            storage.move(_PENDING, FILE)
    return own_id is not None and own_id == _read(storage, FILE)


def accept_clock(session: Session, *, now: datetime) -> datetime | None:
    """Record that the clock was ahead when the ledger's newest entries were written, and has been corrected.

    Those entries keep their times, and later entries never have earlier times. From then on, the clock is compared with
    `now` instead of those times. Ends leases and confirmations that were dated by the wrong clock.

    Return the time of the newest entry; None, without a change, if the clock is not behind that time.
    """
    newest = ledger.newest_at(session)
    with suppress(ClockRefused):
        ledger.require_clock(session, now)
        return None
    why = wrong_clock(now, None)
    if why is not None:
        raise ClockRefused(f"The clock of this machine is wrong: {why}. Nothing was changed.", now=str(now))
    row = session.scalar(select(Installation).with_for_update())
    if row is None or newest is None:
        raise NotFound("The database belongs to no installation yet.")
    row.clock_accepted_at, row.clock_ahead_until = now, newest
    for column in (Job.lease_until, Dataset.upload_lease_until, Delivery.next_at):
        later = column > now + CLOCK_BEHIND_MAX
        session.execute(update(column.class_).where(later).values({column.key: now}))
    ahead = Person.confirmed_at > now
    session.execute(update(Person).where(ahead).values(confirmed_at=now, keys_until=now, asked_until=None))
    session.execute(delete(SignIn).where(SignIn.created_at > now))
    record(session, Act.CLOCK_ACCEPTED, row.id, project_id=None)
    return newest


def belongs(session: Session, settings: Settings) -> bool:
    """Return whether database and data folder have the same id, or no id yet."""
    own_id = recorded(session)
    return own_id == mark_of(storage_of(settings), own_id)


def recorded(session: Session) -> str | None:
    """Return the id of the database."""
    return session.scalar(select(Installation.id))


def mark_of(storage: Storage, own_id: str | None = None) -> str | None:
    """Return the id of the data folder. An unfinished pairing with `own_id` counts as finished."""
    pending = _read(storage, _PENDING)  # before FILE, because it may be renamed to FILE meanwhile
    kept = _read(storage, FILE)
    return own_id if kept is None and pending == own_id else kept


def find_mismatch(session: Session, settings: Settings, folder: DataFolder, kept: str | None) -> Iterator[Finding]:
    """Yield a finding if database and data folder do not belong together.

    `kept` is the result of `mark_of`. Read `folder` and `kept` before the session's snapshot.
    """
    own_id = recorded(session)
    if own_id is not None and own_id != kept:
        kept = mark_of(storage_of(settings), own_id)  # a first start may have written it meanwhile
    if own_id == kept:
        unknown = unknown_to(session, folder) if own_id is None else {}
        contents = " and ".join(f"{len(ids)} {noun}" for noun, ids in unknown.items() if ids)
        if not contents:
            return
        message = (
            f"The data folder holds {contents} that the database does not contain: start the service with the "
            "OBSCURA_DATABASE_URL of the database that contains them"
        )
    else:
        database, data_folder = ("none" if each is None else f"installation {each}" for each in (own_id, kept))
        message = (
            f"The database belongs to {database}, and the data folder to {data_folder} (a new database belongs to "
            "none, and so does an empty or unmounted folder). Start the service with the OBSCURA_DATABASE_URL and the "
            "OBSCURA_DATA_DIR of the same installation"
        )
    message += "; until then nothing is removed, and no private data is opened."
    yield Finding(FindingCode.INSTALLATION_MISMATCH, message)


def _knows_all(session: Session, settings: Settings) -> bool:
    storage = storage_of(settings)
    folder = read_data_folder(storage, ())  # before the queries
    datasets = [name for name in storage.list("datasets") if is_id(name, "ds")]
    has_admin = settings.admin_key_path.exists()
    return not (
        any(unknown_to(session, folder).values())
        or set(datasets) - among(session, select(Dataset.id), Dataset.id, datasets)
        or (has_admin and session.scalar(select(Admin.id).limit(1)) is None)
    )


def _read(storage: Storage, name: str) -> str | None:
    try:
        return storage.read("", name)[:_ID_CHARACTERS_MAX].decode("ascii", "replace").strip()
    except NotFound:
        return None
