"""Transactions on both databases, and migrations that build the tables of the code."""

import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import inspect, text
from sqlalchemy.exc import OperationalError, StatementError

from alembic import command
from service import ledger
from service.db.access_tables import DEFAULT_PROJECT, ApiKey
from service.db.base import Base, new_id
from service.db.schema import PROJECT_ROOT, migration_config, upgrade_schema
from service.db.session import DatabaseBusy, SessionFactory, make_engine, open_sessions, transaction
from tests.together import PATIENCE_SECONDS, at_once


@contextmanager
def elsewhere(factory: SessionFactory, account_id: str) -> Iterator[None]:
    locked, enough = threading.Event(), threading.Event()

    def lock() -> None:
        with transaction(factory) as session:
            ledger.lock_account(session, account_id)
            locked.set()
            enough.wait(PATIENCE_SECONDS)

    thread = threading.Thread(target=lock)
    thread.start()
    assert locked.wait(PATIENCE_SECONDS)
    try:
        yield
    finally:
        enough.set()
        thread.join(PATIENCE_SECONDS)


def test_a_lock_that_cannot_be_had_is_a_typed_error(factory, impatient, open_account):
    account_id = open_account(factory)
    with elsewhere(factory, account_id):
        with pytest.raises(DatabaseBusy) as caught, transaction(impatient) as session:
            ledger.lock_account(session, account_id)
        assert "retry" in str(caught.value)
        assert account_id not in str(caught.value)
    with transaction(impatient) as session:  # and so it can
        assert ledger.lock_account(session, account_id).id == account_id


@pytest.mark.services
def test_of_two_transactions_that_wait_for_each_other_one_is_told(postgres_factory, open_account):
    one, other = (open_account(postgres_factory, name=name) for name in ("one", "other"))
    meeting = threading.Barrier(2)

    def lock(first: str, second: str) -> None:
        with transaction(postgres_factory) as session:
            ledger.lock_account(session, first)
            meeting.wait(PATIENCE_SECONDS)
            ledger.lock_account(session, second)

    ends = at_once(lambda: lock(one, other), lambda: lock(other, one))
    assert sorted(type(end).__name__ for end in ends) == ["DatabaseBusy", "NoneType"]


def test_other_errors_of_the_database_stay_what_they_are(factory):
    with pytest.raises(Exception, match="no_such_table") as caught, transaction(factory) as session:
        session.execute(text("SELECT * FROM no_such_table"))
    assert not isinstance(caught.value, DatabaseBusy)


def test_whoever_fails_leaves_nothing_and_keeps_nobody_waiting(factory, impatient, open_account):
    account_id = open_account(factory)

    def change_and_fail(error: type[BaseException]) -> None:
        with transaction(factory) as session:
            session.execute(text("UPDATE accounts SET owner = 'somebody else'"))
            raise error

    for error in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(error):
            change_and_fail(error)
    with transaction(impatient) as session:
        assert ledger.lock_account(session, account_id).owner == "clinic"


@pytest.mark.services
def test_what_refers_to_a_locked_account_need_not_wait(postgres_factory, open_account, declare_dataset):
    account_id = open_account(postgres_factory)
    with elsewhere(postgres_factory, account_id):
        # It would otherwise fail after the lock timeout.
        declare_dataset(postgres_factory, account_id=account_id)


@pytest.mark.services
def test_a_connection_that_the_server_has_closed_is_replaced(postgres_factory, postgres_server):
    backend = text("SELECT pg_backend_pid()")

    def used() -> int:
        with transaction(postgres_factory, read_only=True) as session:
            return session.scalar(backend)

    closed = used()
    assert used() == closed  # one that is at rest is used again
    with postgres_server.connect() as server:
        server.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": closed})
        while server.scalar(text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid"), {"pid": closed}):
            time.sleep(0.01)
    assert used() != closed


def test_a_postgresql_server_that_never_answers_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing"
        with pytest.raises(OperationalError, match="timeout"):
            make_engine(url, connect_seconds=2).connect()


# --- migrations -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/a folder/with 100%/obscura.db"
    return str(request.getfixturevalue("empty_postgres"))


def tables(url: str) -> set[str]:
    with open_sessions(url) as factory, factory() as session:
        return set(inspect(session.connection()).get_table_names())


def test_up_check_down_and_up(empty_url, capsys):
    expected = {"alembic_version", *Base.metadata.tables}
    upgrade_schema(empty_url)
    assert tables(empty_url) == expected
    command.check(migration_config(empty_url))  # raises when the tables and the migrations differ
    command.downgrade(migration_config(empty_url), "base")
    assert tables(empty_url) == {"alembic_version"}
    upgrade_schema(empty_url)
    upgrade_schema(empty_url)
    assert tables(empty_url) == expected


def test_constraints_have_the_same_names_in_code_and_database(empty_url):
    upgrade_schema(empty_url)
    with open_sessions(empty_url) as factory, factory() as session:
        inspector = inspect(session.connection())
        for table in Base.metadata.sorted_tables:
            declared = {str(check.name) for check in table.constraints if type(check).__name__ == "CheckConstraint"}
            built = {str(check["name"]) for check in inspector.get_check_constraints(table.name)}
            assert built == declared, table.name


def test_several_processes_may_migrate_at_once(empty_url, warm):
    code = "import sys; from service.db.schema import upgrade_schema; upgrade_schema(sys.argv[1])"

    def migrate(_index: int) -> None:
        subprocess.run([warm, "-c", code, empty_url], check=True, cwd=PROJECT_ROOT, timeout=60)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(migrate, range(3)))
    assert tables(empty_url) == {"alembic_version", *Base.metadata.tables}


def test_a_failed_migration_leaves_nothing_behind(empty_url):
    with open_sessions(empty_url) as factory, transaction(factory) as session:
        session.execute(text("CREATE TABLE samples (id INTEGER)"))  # the last table of the migration is in the way
    with pytest.raises(Exception, match="samples"):
        upgrade_schema(empty_url)
    assert tables(empty_url) <= {"alembic_version", "samples"}


def test_the_alembic_command_uses_the_settings(tmp_path):
    environment = {**os.environ, "OBSCURA_DATABASE_URL": f"sqlite:///{tmp_path}/obscura.db"}
    command = [sys.executable, "-m", "alembic", "upgrade", "head"]
    subprocess.run(command, check=True, cwd=PROJECT_ROOT, env=environment, timeout=60)
    assert "accounts" in tables(f"sqlite:///{tmp_path}/obscura.db")


# --- opening --------------------------------------------------------------------------------------------------------


def test_sqlite_is_opened_durably(sqlite_factory):
    expected = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}
    with sqlite_factory.kw["bind"].connect() as connection:
        found = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in expected}
    assert found == expected


def test_a_writing_transaction_on_sqlite_shuts_out_other_writers_from_its_start(sqlite_url, sqlite_factory):
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), timeout=0)
    with transaction(sqlite_factory) as session:
        session.execute(text("SELECT 1"))  # has only read so far, and yet
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        with transaction(sqlite_factory, read_only=True) as reader:
            assert reader.execute(text("SELECT count(*) FROM accounts")).scalar() == 0
    other.execute("BEGIN IMMEDIATE")
    other.close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://localhost/x"])
def test_other_databases_are_refused(url):
    with pytest.raises(ValueError, match="obscura"):
        make_engine(url)


def test_foreign_keys_hold(factory, declare_dataset):
    with pytest.raises(Exception, match=r"(?i)foreign key"):
        declare_dataset(factory, account_id="acc_none")


def test_times_are_aware_on_both_databases(factory):
    moment = datetime(2030, 6, 1, 14, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    with transaction(factory) as session:
        key = ApiKey(id=new_id("key"), name="k", hash="0" * 64, scopes=[], created_at=moment)
        key.project_id = DEFAULT_PROJECT
        session.add(key)
    with transaction(factory, read_only=True) as session:
        read = session.query(ApiKey).one().created_at
    assert read == moment
    assert read.tzinfo is UTC or read.utcoffset() == timedelta(0)


def test_a_naive_time_is_refused(factory):
    key = ApiKey(id=new_id("key"), name="k", hash="0" * 64, scopes=[], created_at=datetime(2030, 1, 1))
    with pytest.raises(StatementError, match="naive"), transaction(factory) as session:
        session.add(key)


def test_ids_are_random_and_of_one_form():
    ids = {new_id("job") for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(name) == 24 and name.startswith("job_") and name[4:].isalnum() for name in ids)
