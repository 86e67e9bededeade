"""Engine, sessions, and `transaction`, the commit boundary of all callers."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import psycopg
from sqlalchemy import Connection, Engine, Select, create_engine, event, make_url
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import InstrumentedAttribute, Session, sessionmaker

from obscura.private_files import make_private, make_private_folder
from service.errors import DatabaseUnsuitable

SessionFactory = sessionmaker[Session]

LOCK_SECONDS = 30.0  # the longest that a writer waits for a lock; the caller may retry
CONNECT_SECONDS = 5  # so that a hanging PostgreSQL server does not block threads
# The session settings that the server must report. They are reported on connecting, without a round trip.
_POSTGRES_SESSION = {"server_encoding": "UTF8", "client_encoding": "UTF8", "TimeZone": "UTC", "DateStyle": "ISO, MDY"}
READ_ONLY = "obscura_read_only"
READER = "obscura_reader"
# On SQLite, threads of a process wait for this lock before they begin to write. SQLite itself would sleep and retry, up
# to 100 ms at a time, while other writers overtake.
TURN = "obscura_turn"
LAST = "obscura_last"  # the `Last` of a factory's sessions
_BUSY_STATES = ("55P03", "40P01")  # PostgreSQL's lock_not_available and deadlock_detected
_IDS_PER_QUERY = 500
_SQLITE_BUSY = 5  # also the low byte of extended codes


class Last(Protocol):
    """A hook that makes the last write in every writing transaction of a factory, such as an event of the audit log."""

    def before_commit(self, session: Session) -> None: ...

    def committed(self, session: Session) -> None: ...


class DatabaseBusy(OperationalError):
    """A lock timed out, or two transactions deadlocked. Nothing was written; retry."""

    def __str__(self) -> str:
        """Return a message without the statement and its parameters."""
        return "Other transactions held a lock for too long. Nothing was written; retry."


def make_engine(
    url: str, *, pool_size: int = 5, lock_seconds: float = LOCK_SECONDS, connect_seconds: int = CONNECT_SECONDS
) -> Engine:
    """Return an engine for a database.

    SQLite: WAL, synchronous=FULL, foreign keys, a busy timeout, and BEGIN IMMEDIATE for every transaction that may
    write. (The driver's default is deferred transactions, in which concurrent readers would use a stale balance.)
    PostgreSQL: READ COMMITTED; writers lock the account's row. Every session uses UTF-8, UTC and ISO dates, whatever
    the server's defaults are. Connecting raises DatabaseUnsuitable if the database has another encoding.

    `url` is `sqlite:///path` (no in-memory database), or `postgresql+psycopg://...`. Under load, the pool may grow to
    twice `pool_size`.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise ValueError("obscura needs a database file: an in-memory SQLite database is not durable")
        make_private_folder(Path(parsed.database).resolve().parent)
        engine = create_engine(parsed, pool_size=pool_size, max_overflow=pool_size, hide_parameters=True)
        event.listen(engine, "do_connect", partial(_keep_private, Path(parsed.database)))
        event.listen(engine, "connect", partial(_set_up_sqlite, round(1000 * lock_seconds)))
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    if parsed.get_backend_name() != "postgresql":
        raise ValueError(f"obscura runs on SQLite or PostgreSQL, not on {parsed.get_backend_name()}")
    engine = create_engine(
        parsed.set(drivername="postgresql+psycopg"),
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_pre_ping=True,  # replaces connections closed by a server restart
        hide_parameters=True,  # errors are logged, but parameters may be confidential
        isolation_level="READ COMMITTED",
        connect_args={
            "client_encoding": _POSTGRES_SESSION["client_encoding"],
            "options": f"-c timezone=UTC -c datestyle=ISO,MDY -c lock_timeout={round(1000 * lock_seconds)}ms",
            "connect_timeout": connect_seconds,
        },
    )
    event.listen(engine, "connect", _require_suitable, insert=True)  # runs before SQLAlchemy's own queries
    return engine


def make_session_factory(engine: Engine) -> SessionFactory:
    """Return a factory of sessions. Their objects are readable after the commit."""
    sqlite = engine.dialect.name == "sqlite"
    read_only = {READ_ONLY if sqlite else "postgresql_readonly": True}
    info: dict[str, Any] = {READER: engine.execution_options(**read_only)}  # built once: it costs as much as a query
    if sqlite:
        info[TURN] = threading.RLock()
    return sessionmaker(engine, expire_on_commit=False, info=info)


@contextmanager
def open_sessions(url: str, *, lock_seconds: float = LOCK_SECONDS) -> Iterator[SessionFactory]:
    """Open a database for a block, and yield a session factory."""
    engine = make_engine(url, lock_seconds=lock_seconds)
    try:
        yield make_session_factory(engine)
    finally:
        engine.dispose()


def with_info(factory: SessionFactory, **info: Any) -> SessionFactory:
    """Return a copy of a factory with additional `info` in its sessions."""
    extended = copy(factory)
    extended.kw = {**factory.kw, "info": {**factory.kw["info"], **info}}
    return extended


@contextmanager
def transaction(factory: SessionFactory, *, read_only: bool = False, snapshot: bool = False) -> Iterator[Session]:
    """Run one transaction: commit at the end of the block, roll back on any error.

    Args:
        read_only: take no write lock. The database rejects writes.
        snapshot: all queries see the same snapshot. On SQLite they always do.

    Raises:
        DatabaseBusy: other transactions held a lock for too long; nothing was written. On SQLite, also if a thread
            begins a writing transaction inside another transaction.
    """
    bind = factory.kw["info"][READER] if read_only else factory.kw["bind"]
    if snapshot and bind.dialect.name == "postgresql":
        bind = bind.execution_options(isolation_level="REPEATABLE READ")
    turn = nullcontext() if read_only else factory.kw["info"].get(TURN, nullcontext())
    try:
        with turn, factory(bind=bind) as session:
            last: Last | None = None if read_only else session.info.get(LAST)
            with session.begin():
                yield session
                if last is not None:
                    last.before_commit(session)
            if last is not None:
                last.committed(session)
    except OperationalError as error:
        sqlite_code = getattr(error.orig, "sqlite_errorcode", None) or 0
        if getattr(error.orig, "sqlstate", None) in _BUSY_STATES or sqlite_code & 0xFF == _SQLITE_BUSY:
            raise DatabaseBusy(None, None, error.orig or error) from error
        raise


def among(session: Session, wanted: Select[str], column: InstrumentedAttribute[str], ids: Sequence[str]) -> set[str]:
    """Return those of `ids` that a query finds. Many ids are split among several statements."""
    parts = [ids[start : start + _IDS_PER_QUERY] for start in range(0, len(ids), _IDS_PER_QUERY)]
    return {row_id for part in parts for row_id in session.scalars(wanted.where(column.in_(part)))}


def is_duplicate(error: IntegrityError) -> bool:
    """Return whether an error is a violation of a unique constraint or a primary key."""
    names = getattr(error.orig, "sqlstate", None), getattr(error.orig, "sqlite_errorname", None)
    return names[0] == "23505" or names[1] in ("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY")


def _require_suitable(connection: psycopg.Connection[Any], _record: Any) -> None:
    reported, database = connection.info.parameter_status, connection.info.dbname
    wrong = {name: reported(name) for name, value in _POSTGRES_SESSION.items() if reported(name) != value}
    if not wrong:
        return
    connection.close()
    if "server_encoding" in wrong:
        raise DatabaseUnsuitable(
            f"The PostgreSQL database {database!r} has the encoding {wrong['server_encoding']}, and "
            "Obscura needs UTF8. Create another database (CREATE DATABASE obscura ENCODING 'UTF8' TEMPLATE template0) "
            "and name it in OBSCURA_DATABASE_URL."
        )
    settings = ", ".join(f"{name} is {value!r} instead of {_POSTGRES_SESSION[name]!r}" for name, value in wrong.items())
    raise DatabaseUnsuitable(
        f"PostgreSQL did not apply the session's settings: {settings}. If there is a connection pooler between service "
        "and database, configure it to pass on client_encoding and options."
    )


def _keep_private(path: Path, *_: Any) -> None:
    """Restrict the database's files to their owner; raise OperationalError, as SQLite does, if that fails."""
    try:
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        for suffix in ("", "-wal", "-shm"):
            make_private(path.with_name(path.name + suffix))
    except OSError as error:
        raise sqlite3.OperationalError(f"unable to open database file ({type(error).__name__})") from error


def _set_up_sqlite(lock_milliseconds: int, connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not open transactions; _begin_sqlite does
    for pragma in (f"busy_timeout={lock_milliseconds}", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    read_only = READ_ONLY in connection.get_execution_options()
    if connection.info.get(READ_ONLY, False) != read_only:
        connection.exec_driver_sql(f"PRAGMA query_only={'ON' if read_only else 'OFF'}")
        connection.info[READ_ONLY] = read_only
    connection.exec_driver_sql("BEGIN DEFERRED" if read_only else "BEGIN IMMEDIATE")
