"""A ledger that the tests of verification change and restore."""

from collections.abc import Iterator

import pytest

from service.db.session import SessionFactory, open_sessions
from service.settings import Settings
from tests.conftest import NOW
from tests.service.audit.book import LedgerBook


@pytest.fixture(scope="module")
def module_factory(place: Settings) -> Iterator[SessionFactory]:
    """Sessions on a database that the tests of a module share."""
    with open_sessions(place.database_url) as factory:
        yield factory


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
