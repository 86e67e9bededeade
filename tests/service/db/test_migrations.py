"""The schema: built from empty, unchanged by a check, down and up again; and how a database is opened."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, MetaData, inspect, text
from sqlalchemy.exc import IntegrityError, StatementError

from alembic import command
from service.db.access_tables import ApiKey
from service.db.base import Base, new_id
from service.db.project_tables import DEFAULT_PROJECT
from service.db.schema import PROJECT_ROOT, migration_config, upgrade_schema
from service.db.session import make_engine, transaction


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/a folder/with 100%/obscura.db"
    return str(request.getfixturevalue("empty_postgres"))


@pytest.fixture
def database(empty_url: str) -> Iterator[Engine]:
    engine = make_engine(empty_url)
    yield engine
    engine.dispose()


def tables(url: str) -> set[str]:
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            return set(inspect(connection).get_table_names())
    finally:
        engine.dispose()


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


def insert(connection: Connection, table: str, *rows: dict[str, object]) -> None:
    known = MetaData()
    known.reflect(connection, only=[table])
    for row in rows:
        connection.execute(known.tables[table].insert(), row)


def test_fingerprints_keep_their_account_and_public_datasets_are_to_be_checked(empty_url, database):
    """From 0001 to 0004 and back, with what an installation has by then."""
    command.upgrade(migration_config(empty_url), "0001")
    known = {(bytes([number]) * 16, f"acc_{number % 2}") for number in range(6)}
    sets = [("acc_0", True), ("acc_0", True), ("acc_1", True), ("acc_1", False), (None, True), (None, False)]
    with database.begin() as connection:
        insert(connection, "accounts", *map(account_row, ("acc_0", "acc_1")))
        rows = (dataset_row(f"ds_{n}", account_id, ready=ready) for n, (account_id, ready) in enumerate(sets))
        insert(connection, "datasets", *rows)
        insert(connection, "fingerprints", *({"digest": digest, "account_id": of} for digest, of in known))
    database.dispose()
    homes = (
        "SELECT digest, account_id FROM fingerprints JOIN datasets ON datasets.id = dataset_id AND "
        "datasets.upload_attempt = fingerprints.upload_attempt WHERE ready_at IS NOT NULL"
    )
    for _ in range(2):
        command.upgrade(migration_config(empty_url), "0004")
        with database.begin() as connection:
            assert {(bytes(digest), of) for digest, of in connection.execute(text(homes))} == known
            unchecked = connection.execute(text("SELECT id, unchecked FROM datasets")).all()
            assert {name for name, waiting in unchecked if waiting} == {"ds_4"}
        command.downgrade(migration_config(empty_url), "0001")
        with database.begin() as connection:
            found = connection.execute(text("SELECT digest, account_id FROM fingerprints"))
            assert {(bytes(digest), of) for digest, of in found} == known
        database.dispose()


def test_a_fingerprint_that_would_be_lost_stops_the_migration(empty_url, database):
    command.upgrade(migration_config(empty_url), "0001")
    with database.begin() as connection:
        insert(connection, "accounts", account_row("acc_0"))
        insert(connection, "fingerprints", {"digest": bytes(16), "account_id": "acc_0"})
    database.dispose()
    with pytest.raises(RuntimeError, match="1 fingerprints"):
        command.upgrade(migration_config(empty_url), "0004")
    with database.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM fingerprints")) == 1


def account_row(name: str) -> dict[str, object]:
    """An account as revision 0001 stores it."""
    numbers = {"capacity_nano": 1, "spent_nano": 0, "held_nano": 0, "head_sequence": 1}
    terms = {"epsilon": 1.0, "delta": 1e-6, "unit": "record", "adjacency": "add_remove", "filter": "gdp"}
    texts = {"id": name, "name": name, "owner": "clinic", "head_hash": "0" * 64}
    return {**numbers, **terms, **texts, "frozen": False, "created_at": datetime(2030, 1, 1, tzinfo=UTC)}


def dataset_row(name: str, account_id: str | None, *, ready: bool) -> dict[str, object]:
    """A dataset as revision 0001 stores it."""
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    facts = {"id": name, "name": name, "account_id": account_id, "created_at": moment, "joined": False}
    facts |= {"visibility": "public" if account_id is None else "private", "state": "ready" if ready else "declared"}
    shape = {"classes": ["a"], "height": 1, "width": 1, "channels": 1, "records_declared": 1}
    content = {"content_sha256": "0" * 64, "content_bytes": 1, "format": "npz", "ready_at": moment}
    return {**facts, **shape, **(content if ready else {"ready_at": None})}


def test_constraints_have_the_same_names_in_code_and_database(empty_url, database):
    upgrade_schema(empty_url)
    with database.connect() as connection:
        inspector = inspect(connection)
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


def test_a_failed_migration_leaves_nothing_behind(empty_url, database):
    with database.begin() as connection:
        connection.execute(text("CREATE TABLE samples (id INTEGER)"))  # the last table of the migration is in the way
    database.dispose()
    with pytest.raises(Exception, match="samples"):
        upgrade_schema(empty_url)
    assert tables(empty_url) <= {"alembic_version", "samples"}


def test_the_alembic_command_uses_the_settings(tmp_path):
    environment = {**os.environ, "OBSCURA_DATABASE_URL": f"sqlite:///{tmp_path}/obscura.db"}
    alembic = [sys.executable, "-m", "alembic"]
    for arguments in (["upgrade", "head"], ["check"]):
        subprocess.run([*alembic, *arguments], check=True, cwd=PROJECT_ROOT, env=environment, timeout=60)
    assert "accounts" in tables(f"sqlite:///{tmp_path}/obscura.db")


def test_jobs_that_are_there_survive_the_coming_and_going_of_evaluations(empty_url, database):
    config = migration_config(empty_url)
    command.upgrade(config, "0001")
    row = (
        "INSERT INTO jobs (id, kind, recipe, options, plan, state, attempt, attempts_lost, cancel_requested, progress, "
        "progress_version, secret, created_at) VALUES (:id, :kind, 'datalens', '{}', '{}', 'queued', 0, 0, :no, '{}', "
        "0, '00', '2030-01-02')"
    )

    def write(kind: str) -> None:
        with database.begin() as connection:
            connection.execute(text(row), {"id": f"job_{kind}", "kind": kind, "no": False})

    def assert_kinds(*kept: str, refused: str) -> None:
        with pytest.raises(IntegrityError):
            write(refused)
        with database.begin() as connection:
            assert set(connection.execute(text("SELECT kind FROM jobs")).scalars()) == set(kept)

    write("sample")
    assert_kinds("sample", refused="evaluate")
    command.upgrade(config, "0012")
    write("evaluate")
    assert_kinds("sample", "evaluate", refused="other")
    command.downgrade(config, "0001")
    assert_kinds("sample", refused="evaluate")
    command.upgrade(config, "head")
    write("other")  # kinds are listed in the code alone
    assert_kinds("sample", "other", refused="")
    with pytest.raises(RuntimeError, match="1 jobs are of kinds that this older version does not know"):
        command.downgrade(config, "0012")


def test_what_there_was_belongs_to_the_first_project(empty_url, database):
    config = migration_config(empty_url)
    command.upgrade(config, "0001")
    with database.begin() as connection:
        insert(connection, "accounts", account_row("acc_0"))
        insert(connection, "datasets", dataset_row("ds_0", "acc_0", ready=True), dataset_row("ds_1", None, ready=True))
        key = {"name": "k", "hash": "0" * 64, "created_at": datetime(2030, 1, 1, tzinfo=UTC), "revoked_at": None}
        insert(connection, "api_keys", {"id": "key_0", "scopes": ["read"], **key})
        insert(connection, "api_keys", {"id": "key_1", "scopes": ["admin"], **key})
    database.dispose()
    command.upgrade(config, "head")
    owners = " UNION ALL ".join(f"SELECT id, project_id FROM {name}" for name in ("accounts", "datasets", "api_keys"))
    of_first = dict.fromkeys(("acc_0", "ds_0", "ds_1", "key_0"), DEFAULT_PROJECT)
    with database.begin() as connection:
        assert dict(map(tuple, connection.execute(text(owners)))) == of_first | {"key_1": None}
        with pytest.raises(IntegrityError, match="of_a_project"), connection.begin_nested():
            connection.execute(text("UPDATE api_keys SET project_id = NULL WHERE id = 'key_0'"))
    database.dispose()
    command.downgrade(config, "0016")
    command.upgrade(config, "head")
    with database.begin() as connection:
        project = {"id": "prj_heart", "name": "heart", "created_at": datetime(2030, 1, 1, tzinfo=UTC)}
        insert(connection, "projects", project)
    database.dispose()
    with pytest.raises(RuntimeError, match="1 projects besides the first"):
        command.downgrade(config, "0016")


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
