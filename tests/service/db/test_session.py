"""Transactions on both databases: lock timeouts, deadlocks, errors and closed connections."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from service import ledger
from service.db.session import DatabaseBusy, SessionFactory, make_engine, transaction
from tests.together import PATIENCE_SECONDS, at_once


@contextmanager
def elsewhere(factory: SessionFactory, account_id: str) -> Iterator[None]:
    """Lock the account in another thread."""
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
