"""An account to spend from, a shop of jobs, and a ledger to verify."""

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from service.audit.signing import make_signing_key
from service.db import session as sessions
from service.db.session import SessionFactory, make_engine, make_session_factory
from service.settings import Settings
from tests.service.audit.book import LedgerBook
from tests.service.jobs.shop import Shop
from tests.service.ledger.account_book import AccountBook


@pytest.fixture
def account_book(factory: SessionFactory, open_account: Callable[..., str], now: datetime) -> AccountBook:
    """An empty account, on each kind of database."""
    return AccountBook(factory, open_account(factory), now)


@pytest.fixture
def shop(
    factory: SessionFactory, now: datetime, open_account: Callable[..., str], declare_dataset: Callable[..., str]
) -> Shop:
    """An account with a dataset, whose jobs the test works on, on each kind of database."""
    return Shop(factory, now, open_account, declare_dataset)


@pytest.fixture
def impatient(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SessionFactory]:
    """Sessions with short lock timeouts."""
    monkeypatch.setattr(sessions, "SQLITE_BUSY_MILLISECONDS", 50)
    monkeypatch.setattr(sessions, "POSTGRES_LOCK_TIMEOUT", "50ms")
    engine = make_engine(database_url)
    yield make_session_factory(engine)
    engine.dispose()


@pytest.fixture
def book(sqlite_url: str, tmp_path: Path, now: datetime) -> Iterator[LedgerBook]:
    """An account with nothing in it yet, in a database of the test's own."""
    engine = make_engine(sqlite_url)
    made = LedgerBook(make_session_factory(engine), tmp_path / "var", now)
    made.open("patients")
    yield made
    engine.dispose()


@pytest.fixture
def settings(book: LedgerBook, sqlite_url: str) -> Settings:
    """The settings of the service whose ledger that is, which has started once."""
    settings = Settings(data_dir=book.data_dir, database_url=sqlite_url)
    make_signing_key(settings.ledger_key_path)
    return settings
