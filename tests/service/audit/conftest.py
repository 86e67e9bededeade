"""A ledger that the tests of verification change and restore."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.db.session import SessionFactory, open_sessions
from tests.conftest import NOW, clear_postgres
from tests.service.audit.book import LedgerBook

KINDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.services)]


@pytest.fixture(scope="module", params=KINDS)
def module_factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path
) -> Iterator[SessionFactory]:
    """Sessions on a database that the tests of a module share."""
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("shared") / "obscura.db"
        shutil.copyfile(sqlite_template, path)
        url = f"sqlite:///{path}"
    else:
        url = request.getfixturevalue("migrated_postgres")
    with open_sessions(url) as factory:
        yield factory
    if request.param == "postgresql":
        clear_postgres(url)


@pytest.fixture(scope="module")
def filled_book(module_factory: SessionFactory, tmp_path_factory: pytest.TempPathFactory) -> LedgerBook:
    """A ledger with two checkpoints, and entries after the newest.

    Each test changes it inside a transaction, verifies there, and rolls back: nobody else sees that.
    """
    made = LedgerBook(module_factory, tmp_path_factory.mktemp("book") / "var", NOW).fill()
    made.checkpoint()
    made.checkpoint()
    made.charge(made.hold_ids[2], 1, 2)  # a hold that was opened before the checkpoint
    made.train("patients")
    return made


@pytest.fixture
def patients(book: LedgerBook) -> str:
    return book.accounts["patients"]
