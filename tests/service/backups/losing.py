"""Installations that lose their database, for the tests of backups."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from service import installation, ledger
from service.db.session import make_engine, make_session_factory
from service.ledger.stops import arming_stops
from service.settings import Settings
from service.storage import storage_of
from service.storage.journals import Journal
from tests.service.audit.book import LedgerBook
from tests.service.orders import release_with_files

CHARGED = "SELECT sum(charged_nano) FROM holds WHERE state = 'armed'"


@contextmanager
def installed(url: str, data_dir: Path, now) -> Iterator[LedgerBook]:
    """An installation with a release, whose training has a journal."""
    engine = make_engine(url)
    made = LedgerBook(make_session_factory(engine), data_dir, now)
    made.open("patients")
    release_with_files(made, "patients", generator="{}")
    assert installation.pair(settings_of(made), made.factory, now=now)
    yield made
    engine.dispose()


def settings_of(book: LedgerBook, **changes) -> Settings:
    url = book.factory.kw["bind"].url.render_as_string(hide_password=False)
    return Settings(**{"data_dir": book.data_dir, "database_url": url} | changes)


def spend(book: LedgerBook, times: int = 1, *, hold: tuple[str, str] | None = None) -> tuple[str, str]:
    """Charge a training, in the runner's order: the charge, then its line in the journal."""
    job_id, hold_id = hold or book.hold("patients")
    if hold is None:
        book.claim(job_id)
        book.arm(hold_id)
    account_id = book.accounts["patients"]
    journal = Journal(storage_of(settings_of(book)), job_id, 1, account_id)
    for _ in range(times):
        charged = book.read(ledger.get_hold, hold_id=hold_id).charged_nano
        book.charge(hold_id, 1)
        paid = book.read(ledger.get_hold, hold_id=hold_id).charged_nano - charged
        assert paid > 0
        journal.write(stage="votes", count=1, price_nano=paid)
    return job_id, hold_id


def left(book: LedgerBook) -> int:
    """What may still be spent, whatever is held and not charged."""
    account = book.read(ledger.get_account, account_id=book.accounts["patients"])
    charged_nano = book.read(lambda session: session.scalar(text(CHARGED))) or 0
    return int(account.capacity_nano - account.spent_nano - charged_nano)


def lose_database(book: LedgerBook) -> None:
    """The database is gone; an empty one of the same address takes its place."""
    engine = book.factory.kw["bind"]
    engine.dispose()
    if book.sqlite:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{engine.url.database}{suffix}").unlink(missing_ok=True)
        return
    with create_engine(engine.url, poolclass=NullPool).begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))


def codes(book: LedgerBook) -> set[str]:
    return {stop.code for stop in book.read(arming_stops)}
