"""An account to spend from, a shop of jobs, and a ledger to verify."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from obscura.wire.uploads import Fault
from service.audit.signing import make_signing_key
from service.datasets import reading
from service.db.session import SessionFactory, open_sessions
from service.ingest.__main__ import answer
from service.ingest.request import FORMATS, IngestRequest
from service.settings import Settings
from tests.conftest import clear_postgres
from tests.service.audit.book import LedgerBook
from tests.service.departments import Department, departments
from tests.service.jobs.shop import Shop
from tests.service.ledger.account_book import AccountBook


@pytest.fixture
def account_book(factory: SessionFactory, open_account: Callable[..., str], now: datetime) -> AccountBook:
    return AccountBook(factory, open_account(factory), now)


@pytest.fixture
def shop(
    factory: SessionFactory, now: datetime, open_account: Callable[..., str], declare_dataset: Callable[..., str]
) -> Shop:
    """An account with a dataset, whose jobs the test works on, on each kind of database."""
    return Shop(factory, now, open_account, declare_dataset)


@pytest.fixture
def impatient(database_url: str) -> Iterator[SessionFactory]:
    with open_sessions(database_url, lock_seconds=0.05) as factory:
        yield factory


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read uploads in this process instead of a confined one, which takes longer."""

    def run(request: IngestRequest) -> None:
        word = answer(request, FORMATS[request.format].load())
        if word != "ok":
            raise reading._error(Fault(word), request)

    monkeypatch.setattr(reading, "_run_ingest", run)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a quarter of a MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this user may not mount")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture
def book(sqlite_factory: SessionFactory, tmp_path: Path, now: datetime) -> LedgerBook:
    """An account with nothing in it yet, in a database of the test's own."""
    made = LedgerBook(sqlite_factory, tmp_path / "var", now)
    made.open("patients")
    return made


@pytest.fixture
def settings(book: LedgerBook, sqlite_url: str) -> Settings:
    """The settings of the service whose ledger that is, which has started once."""
    settings = Settings(data_dir=book.data_dir, database_url=sqlite_url)
    make_signing_key(settings.ledger_key_path)
    return settings


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path
) -> Iterator[Settings]:
    """Settings of a service on a migrated database of this module's own, once for each kind."""
    folder: Path = tmp_path_factory.mktemp("place")
    url = f"sqlite:///{shutil.copyfile(sqlite_template, folder / 'obscura.db')}"
    if request.param == "postgresql":
        url = request.getfixturevalue("migrated_postgres")
    yield Settings(data_dir=folder, database_url=url, mode="celery")
    if request.param == "postgresql":
        clear_postgres(url)


@pytest.fixture(scope="module")
def department(place: Settings) -> Iterator[Department]:
    with departments(place) as department:
        yield department
