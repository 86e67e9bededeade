"""A rich ledger that the tests of verification change and put back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.db.session import make_engine, make_session_factory
from tests.conftest import NOW, clear_postgres
from tests.service.audit.book import LedgerBook

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
