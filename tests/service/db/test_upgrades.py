"""A database of an earlier version, brought up to date: what was there keeps its meaning, on the safe side."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from alembic import command
from service import auth, ledger
from service.db.access_tables import Admin, ApiKey
from service.db.ledger_tables import LimitRequest
from service.db.schema import migration_config, upgrade_schema
from service.db.session import make_engine, make_session_factory, transaction
from service.db.words import EntryKind
from service.errors import Forbidden, InvalidInput
from tests.conftest import NOW

BEFORE = "0001"
AT = NOW.replace(tzinfo=None).isoformat(" ")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def old_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database as it was before admins were people."""
    url = f"sqlite:///{tmp_path}/old.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("empty_postgres")
    command.upgrade(migration_config(url), BEFORE)
    return url


@pytest.fixture
def old(old_url: str, open_account: Callable[..., str]) -> Iterator[Engine]:
    """Three admins' keys, one reader's, an account, a raise that was approved and one that waits."""
    engine = make_engine(old_url)
    scopes = {"alice": "admin", "bob": "admin", "gone": "admin", "reader": "read"}
    with engine.begin() as connection:
        for name, scope in scopes.items():
            row = {"id": f"key_{name}", "name": name, "scopes": json.dumps([scope]), "hash": name, "created_at": AT}
            insert(connection, "api_keys", row)
        connection.execute(text("UPDATE api_keys SET revoked_at = created_at WHERE id = 'key_gone'"))
    account_id = open_account(make_session_factory(engine), name="people", epsilon=2.0)
    raised = {"account_id": account_id, "epsilon_before": 2.0, "epsilon": 3.0, "reason": "more"}
    raised |= {"requested_by": "key_alice", "requested_at": AT}
    with engine.begin() as connection:
        insert(connection, "limit_requests", raised | {"id": "lim_waiting", "state": "pending"})
        decided = {"id": "lim_old", "state": "approved", "decided_by": "key_bob", "decided_at": AT}
        insert(connection, "limit_requests", raised | decided)
    yield engine
    engine.dispose()


def insert(connection: Connection, table: str, row: dict[str, Any]) -> None:
    names, values = ", ".join(row), ", ".join(f":{name}" for name in row)
    connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({values})"), row)


def test_admin_keys_of_before_are_one_person(old, old_url):
    upgrade_schema(old_url)
    with transaction(make_session_factory(old)) as session:
        (first,) = session.query(Admin).all()
        assert (first.name, first.admission.value) == ("first admin", "machine")
        owners = {key.id: key.admin_id for key in session.query(ApiKey)}
        assert owners == {"key_alice": first.id, "key_bob": first.id, "key_gone": first.id, "key_reader": None}
        requests = {row.id: (row.requested_by_admin, row.decided_by_admin) for row in session.query(LimitRequest)}
        assert requests == {"lim_old": (first.id, None), "lim_waiting": (first.id, None)}
        with pytest.raises(Forbidden, match="two people"):
            ledger.approve_raise(session, request_id="lim_waiting", decided_by="key_bob", now=NOW)
        with pytest.raises(InvalidInput, match="belongs to a person"):
            auth.create_key(session, name="nobody's", scopes=["admin"], now=NOW)
        account_id = session.query(LimitRequest).first().account_id
        ledger.record_fact(session, account_id=account_id, fact={"table": "x"}, now=NOW)
        assert ledger.entries(session, account_id, 0, 10)[-1].kind is EntryKind.FACT


def test_entries_stay_append_only_and_the_way_back_works(old, old_url):
    upgrade_schema(old_url)

    def assert_append_only(*statements: str) -> None:
        for statement in statements:
            with pytest.raises(Exception, match="append-only"), old.begin() as connection:
                connection.execute(text(statement))

    assert_append_only("UPDATE entries SET amount_nano = 0", "DELETE FROM entries")
    old.dispose()
    command.downgrade(migration_config(old_url), BEFORE)
    with old.connect() as connection:
        tables = ("api_keys", "limit_requests", "entries")
        assert [connection.scalar(text(f"SELECT count(*) FROM {name}")) for name in tables] == [4, 2, 1]
    assert_append_only("DELETE FROM entries")
