"""Ledgers that the tests of verification change and put back, and a shop of jobs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from service.db.session import SessionFactory, make_engine, make_session_factory
from service.settings import Settings
from tests.conftest import NOW, clear_postgres
from tests.service.job_shop import Shop
from tests.service.ledger_account import AccountBook
from tests.service.ledger_book import LedgerBook

KINDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.services)]


@pytest.fixture(scope="module", params=KINDS)
def filled_book(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path
) -> Iterator[LedgerBook]:
    """A rich ledger with two checkpoints, and entries after the newest; once for each kind of database.

    Each test changes it inside a transaction, verifies there, and rolls back: nobody else sees that.
    """
    folder = tmp_path_factory.mktemp("book")
    if request.param == "sqlite":
        shutil.copyfile(sqlite_template, folder / "obscura.db")
        url = f"sqlite:///{folder / 'obscura.db'}"
    else:
        url = request.getfixturevalue("migrated_postgres")
    engine = make_engine(url)
    made = LedgerBook(make_session_factory(engine), folder / "var", NOW).fill()
    made.checkpoint()
    made.checkpoint()
    made.charge(made.hold_ids[2], 1, 2)  # a hold that was opened before the checkpoint
    made.train("patients")
    yield made
    engine.dispose()
    if request.param == "postgresql":
        clear_postgres(url)


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
    """The settings of the service whose ledger that is."""
    return Settings(data_dir=book.data_dir, database_url=sqlite_url)


@pytest.fixture
def account_book(factory: SessionFactory, open_account: Callable[..., str], now: datetime) -> AccountBook:
    """An account of this test's own, on each kind of database."""
    return AccountBook(factory, open_account(factory), now)


@pytest.fixture
def shop(
    factory: SessionFactory, now: datetime, open_account: Callable[..., str], declare_dataset: Callable[..., str]
) -> Shop:
    """An account with a dataset whose jobs are worked on by hand; once for each kind of database."""
    return Shop(factory, now, open_account, declare_dataset)
