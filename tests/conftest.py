"""Fixtures of all tests: empty databases built by the migrations, a warm Python, and captured logs.

SQLite files are copies of one migrated file; one migrated PostgreSQL database is cleared after each test. Its server is
that of OBSCURA_TEST_POSTGRES, or the one on the usual local port. Without a server, those tests are skipped.
"""

import gc
import io
import logging
import os
import random
import secrets
import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import structlog
import typer.main
import typer.testing
from _pytest.assertion import rewrite
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from obscura.wire.words import DatasetState, Visibility
from service import ledger
from service.db.access_tables import DEFAULT_PROJECT, Project
from service.db.base import Base, new_id
from service.db.dataset_tables import Dataset
from service.db.schema import upgrade_schema
from service.db.session import SessionFactory, make_engine, make_session_factory, open_sessions, transaction
from service.logs import configure_logging
from tests.compiled import compile_once
from tests.warm import warm_python

LOCAL_POSTGRES = "postgresql+psycopg://root@127.0.0.1:5432/postgres"
NOW = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
CLASSES = ["boot", "coat", "shirt"]
APPEND_ONLY = ("entries", "checkpoints", "audit_events")
compile_once()
typer.testing._get_command = cache(typer.main.get_command)  # a tenth of a second each time


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the record of uploads out of the home folder of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect tests without garbage collection, and freeze them: each full collection would cost half a second."""
    compile_own_share(session.config)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(100_000, 20, 20)  # garbage is looked for a hundredth as often: an eighth of all processor time
        gc.enable()


def compile_own_share(config: pytest.Config) -> None:
    """Rewrite the assertions of one share of the test files; the other processes compile the other shares."""
    number, together = (
        int(os.environ.get(f"PYTEST_XDIST_{name}", "0").lstrip("gw")) for name in ("WORKER", "WORKER_COUNT")
    )
    for path in sorted(Path(__file__).parent.rglob("test_*.py"))[number::together] if together else ():
        compiled = rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
        with suppress(OSError, SyntaxError):  # the collection says so
            if rewrite._read_pyc(path, compiled) is None and rewrite.try_makedirs(compiled.parent):
                source, code = rewrite._rewrite_test(path, config)
                rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, compiled)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start each process's share with its slow files, so that no process ends alone with a slow test."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    share = -(-len(items) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    if share < len(items):
        shares = (items[start : start + share] for start in range(0, len(items), share))
        items[:] = [item for part in shares for item in sorted(part, key=lambda item: item.path not in slow)]


def pytest_unconfigure() -> None:
    """Leave nothing frozen: libraries count at the end what nobody has collected."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Seed every test alike. Parameters are made at import, before this: use factories of networks, not networks."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A program that is called as Python is, and has everything imported; all processes of the tests share it."""
    own = tmp_path_factory.getbasetemp()
    with warm_python((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "warm") as program:
        yield program


@contextmanager
def starting_by(program: str) -> Iterator[None]:
    """Let this process start services and trainings by a program instead of its own Python."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.executable", program)
        yield


@pytest.fixture
def warm_starts(warm: str) -> Iterator[None]:
    """Let a test start services and trainings by the warm program."""
    with starting_by(warm):
        yield


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("obscura.client.transport.BACKOFF_SECONDS_MAX", 0.0)


@pytest.fixture
def now() -> datetime:
    return NOW


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """What the log writes, as the service configures it; afterwards logging is as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    written = io.StringIO()
    configure_logging("INFO", written)
    yield written
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Engine]:
    """An open connection to a PostgreSQL server that may create databases; skips without one."""
    url = os.environ.get("OBSCURA_TEST_POSTGRES", LOCAL_POSTGRES)
    engine = create_engine(url, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 3})
    try:
        engine.connect().close()
    except OperationalError:
        engine.dispose()
        if "OBSCURA_TEST_POSTGRES" in os.environ:
            raise
        pytest.skip("no PostgreSQL lets us in on 127.0.0.1:5432; set OBSCURA_TEST_POSTGRES to the URL of one")
    yield engine
    engine.dispose()


@contextmanager
def new_database(server: Engine, options: str = "") -> Iterator[str]:
    """Create an empty database, drop it at the end; yields its URL."""
    name = f"obscura_test_{secrets.token_hex(6)}"
    with server.connect() as connection:
        connection.execute(text(f'CREATE DATABASE "{name}" {options}'))
        connection.execute(text(f'ALTER DATABASE "{name}" SET synchronous_commit = off'))  # no test cuts its power
    try:
        yield server.url.set(database=name).render_as_string(hide_password=False)
    finally:
        with server.connect() as connection:
            connection.execute(text(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))


@pytest.fixture
def empty_postgres(postgres_server: Engine) -> Iterator[str]:
    """The URL of a PostgreSQL database without any table, of this test's own."""
    with new_database(postgres_server) as url:
        yield url


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: Engine) -> Iterator[str]:
    """The URL of a migrated PostgreSQL database, used by one test after the other."""
    with new_database(postgres_server) as url:
        upgrade_schema(url)
        yield url


@pytest.fixture
def postgres_url(migrated_postgres: str) -> Iterator[str]:
    """The URL of a migrated PostgreSQL database without any row."""
    yield migrated_postgres
    clear_postgres(migrated_postgres)


OF_A_PROJECT = [column.name for column in Project.__table__.columns if column.nullable]


def clear_postgres(url: str) -> None:
    # Whatever a test left behind must not keep the next one waiting.
    others = "datname = current_database() AND pid <> pg_backend_pid()"
    ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"{ended}; {emptying_postgres()}")


def emptying_postgres() -> str:
    """SQL that deletes every row but the first project's, which is made as it was again; triggers stand aside."""
    script = [
        *(f"ALTER TABLE {name} DISABLE TRIGGER USER" for name in APPEND_ONLY),
        *(f"DELETE FROM {table.name}" for table in reversed(Base.metadata.sorted_tables) if table.name != "projects"),
        f"DELETE FROM projects WHERE id != '{DEFAULT_PROJECT}'",
        f"UPDATE projects SET name = 'default', {', '.join(f'{column} = NULL' for column in OF_A_PROJECT)}",
        *(f"ALTER TABLE {name} ENABLE TRIGGER USER" for name in APPEND_ONLY),
    ]
    return "; ".join(script)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file, to be copied."""
    path = tmp_path_factory.mktemp("template") / "template.db"
    upgrade_schema(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """The URL of a migrated SQLite database of this test's own."""
    path = tmp_path / "obscura.db"
    shutil.copyfile(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of a migrated database of this test's own, once for each kind."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = make_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def factory(engine: Engine) -> SessionFactory:
    """Sessions on a migrated database, once for each kind."""
    return make_session_factory(engine)


@pytest.fixture
def sqlite_factory(sqlite_url: str) -> Iterator[SessionFactory]:
    with open_sessions(sqlite_url) as factory:
        yield factory


@pytest.fixture
def postgres_factory(postgres_url: str) -> Iterator[SessionFactory]:
    with open_sessions(postgres_url) as factory:
        yield factory


@pytest.fixture
def open_account(now: datetime) -> Callable[..., str]:
    """Open an account and return its id: `open_account(factory, epsilon=8.0)`."""

    def opened(factory: SessionFactory, *, name: str = "patients", **changes: object) -> str:
        facts = {"owner": "clinic", "epsilon": 8.0, "delta": 1e-5, "unit": "record", "adjacency": "add_remove"}
        with transaction(factory) as session:
            return ledger.open_account(session, name=name, **{"now": now, **facts, **changes}).id  # type: ignore[arg-type]

    return opened


def dataset_row(account_id: str | None, now: datetime, **changes: object) -> Dataset:
    """Return the row of a dataset that is ready; `account_id=None` makes it public."""
    visibility = Visibility.PUBLIC if account_id is None else Visibility.PRIVATE
    facts = {"id": new_id("ds"), "name": "pictures", "visibility": visibility, "created_at": now}
    declared = {"classes": CLASSES, "height": 28, "width": 28, "channels": 1, "records_declared": 60_000}
    content = {"state": DatasetState.READY, "content_sha256": "0" * 64, "content_bytes": 1, "ready_at": now}
    return Dataset(account_id=account_id, **{**facts, **declared, **content, **changes})


def declared_row(account_id: str | None, now: datetime, **changes: object) -> Dataset:
    without = {"state": DatasetState.DECLARED, "content_sha256": None, "content_bytes": None, "ready_at": None}
    return dataset_row(account_id, now, **{**without, **changes})


@pytest.fixture
def declare_dataset(now: datetime) -> Callable[..., str]:
    """Write the row of a dataset that is ready and return its id; `account_id=None` makes it public."""

    def declared(factory: SessionFactory, *, account_id: str | None, **changes: object) -> str:
        dataset = dataset_row(account_id, now, **changes)
        with transaction(factory) as session:
            session.add(dataset)
        return dataset.id

    return declared
