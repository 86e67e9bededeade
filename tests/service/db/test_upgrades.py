"""A database of November 2026, brought up to date: what was there keeps its meaning, on the safe side."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from alembic import command
from obscura.wire.words import DecisionAction
from service.db.access_tables import Decision
from service.db.schema import migration_config, upgrade_schema
from service.db.session import make_engine, make_session_factory, transaction
from service.errors import Forbidden
from service.ledger.chain import GENESIS_HASH
from tests.conftest import NOW
from tests.service.people import approve_raise

BEFORE = "0012"
AT = NOW.replace(tzinfo=None).isoformat(" ")
STORED_AT = NOW.replace(tzinfo=None).isoformat(" ", timespec="microseconds")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def old_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database as it was when requests stood in two tables."""
    url = f"sqlite:///{tmp_path}/old.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("empty_postgres")
    command.upgrade(migration_config(url), BEFORE)
    return url


@pytest.fixture
def database(old_url: str) -> Iterator[Engine]:
    engine = make_engine(old_url)
    yield engine
    engine.dispose()


def insert(connection: Connection, table: str, **row: Any) -> None:
    names, values = ", ".join(row), ", ".join(f":{name}" for name in row)
    connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({values})"), row)


@pytest.fixture
def filled(database: Engine) -> Engine:
    """Admins, keys, one admin having two, a reader's, an account, a raise that was approved and one that waits."""
    admins = {"key_alice": "adm_alice", "key_spare": "adm_alice", "key_bob": "adm_bob", "key_reader": None}
    account = {"id": "acc_people", "name": "people", "owner": "clinic", "epsilon": 2.0, "delta": 1e-5, "unit": "record"}
    account |= {"adjacency": "add_remove", "rate": 0.0, "base": 0.0, "frozen": False, "created_at": STORED_AT}
    balances = {"capacity_nano": 1, "spent_nano": 0, "held_nano": 0}
    entry = {"account_id": "acc_people", "sequence": 1, "kind": "open", "amount_nano": 1, "details": "{}"}
    entry |= {"previous_hash": GENESIS_HASH, "hash": "0" * 64, "created_at": STORED_AT}
    raised = {"account_id": "acc_people", "epsilon_before": 2.0, "epsilon": 3.0, "reason": "more"}
    raised |= {"requested_by": "key_alice", "requested_by_admin": "adm_alice", "requested_at": AT}
    decided = {"decided_by": "key_bob", "decided_at": AT}  # by whom was not written down in the beginning
    with database.begin() as connection:
        for name in ("alice", "bob", "carol"):
            alone = {"id": f"adm_{name}", "name": name, "admission": "machine", "admitted_at": AT}
            insert(connection, "admins", **alone)
        for key_id, admin_id in admins.items():
            key = {"id": key_id, "name": key_id, "hash": key_id, "created_at": AT, "admin_id": admin_id}
            insert(connection, "api_keys", **key, scopes=json.dumps(["admin" if admin_id else "read"]))
        insert(connection, "accounts", **account, **balances, head_sequence=1, head_hash="0" * 64)
        insert(connection, "entries", **entry, **balances)
        insert(connection, "limit_requests", id="lim_old", state="approved", **raised, **decided)
        insert(connection, "limit_requests", id="lim_waiting", state="pending", **raised)
    return database


def test_a_request_of_before_is_approved_by_somebody_else(filled, old_url):
    upgrade_schema(old_url)
    with transaction(make_session_factory(filled)) as session:
        requests = {row.id: (row.asked_by, row.decided_by) for row in session.query(Decision)}
        assert requests == {"lim_old": ("adm_alice", None), "lim_waiting": ("adm_alice", None)}
        with pytest.raises(Forbidden, match="two people"):
            approve_raise(session, "lim_waiting", "key_spare", NOW)


def test_entries_stay_append_only_and_the_way_back_works(filled, old_url):
    def assert_append_only(*statements: str) -> None:
        for statement in statements:
            with pytest.raises(Exception, match="append-only"), filled.begin() as connection:
                connection.execute(text(statement))

    upgrade_schema(old_url)
    assert_append_only("UPDATE entries SET amount_nano = 0", "DELETE FROM entries")
    filled.dispose()
    command.downgrade(migration_config(old_url), BEFORE)
    with filled.connect() as connection:
        tables = ("api_keys", "limit_requests", "entries")
        assert [connection.scalar(text(f"SELECT count(*) FROM {name}")) for name in tables] == [4, 2, 1]
    assert_append_only("DELETE FROM entries")


LIMIT_ROWS = "SELECT * FROM limit_requests ORDER BY id"
ADMIN_ROWS = "SELECT * FROM admin_requests ORDER BY id"


def test_requests_of_two_tables_are_decisions_and_go_back_as_they_were(filled, old_url):
    """Every state and action, with what only raises and only requests about admins say."""
    command.upgrade(migration_config(old_url), "0013")
    with filled.begin() as connection:
        first, account_id = "adm_alice", "acc_people"
        raised = {"account_id": account_id, "epsilon_before": 3.0, "epsilon": 4.0, "reason": "more", "requested_at": AT}
        raised |= {"requested_by": "key_alice", "requested_by_admin": first}
        by_bob = {"decided_by": "key_bob", "decided_by_admin": "adm_bob", "decided_at": STORED_AT}
        insert(connection, "limit_requests", id="lim_new", state="approved", **raised, **by_bob)
        insert(connection, "limit_requests", id="lim_no", state="declined", **raised, **by_bob)
        asked = {"reason": "why", "asked_by": first, "asked_at": AT}
        decided = {"decided_by": "adm_bob", "decided_at": STORED_AT}
        key = {"key_id": "key_dan", "key_hash": "0" * 64}
        for id, state, facts in (
            ("adr_admit", "pending", {"action": "admit", "name": "dan"} | key),
            ("adr_no", "declined", {"action": "admit", "name": "eve"} | key | decided),
            ("adr_yes", "approved", {"action": "admit", "name": "carol", "admin_id": "adm_carol"} | key | decided),
            ("adr_gone", "pending", {"action": "remove", "name": "carol", "admin_id": "adm_carol"}),
            (
                "adr_key",
                "approved",
                {
                    "action": "revoke",
                    "name": "carol",
                    "admin_id": "adm_carol",
                    "key_id": "key_spare",
                    "keys_revoked": 1,
                }
                | decided,
            ),
        ):
            insert(connection, "admin_requests", id=id, state=state, **asked, **facts)
        before = [connection.execute(text(query)).mappings().all() for query in (LIMIT_ROWS, ADMIN_ROWS)]
    assert [len(rows) for rows in before] == [4, 5]

    command.upgrade(migration_config(old_url), "0014")
    with transaction(make_session_factory(filled)) as session:
        rows = {row.id: row for row in session.query(Decision)}
        assert len(rows) == 9
        old, new, admission = rows["lim_old"], rows["lim_new"], rows["adr_yes"]
        assert (old.action, old.asked_by, old.decided_by) == (DecisionAction.RAISE, first, None)
        assert (new.asked_with, new.decided_with, new.decided_by) == ("key_alice", "key_bob", "adm_bob")
        assert (admission.asked_by, admission.asked_with, admission.decided_with) == (first, None, None)
        assert rows["adr_key"].keys_revoked == 1
        assert {row.asked_at for row in rows.values()} == {NOW}
    filled.dispose()
    command.downgrade(migration_config(old_url), "0013")
    with filled.connect() as connection:
        after = [connection.execute(text(query)).mappings().all() for query in (LIMIT_ROWS, ADMIN_ROWS)]
    assert [[dict(row) for row in rows] for rows in after] == [[dict(row) for row in rows] for rows in before]
    upgrade_schema(old_url)
