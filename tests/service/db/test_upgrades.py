"""A database of an earlier version, brought up to date: what was there keeps its meaning, on the safe side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

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


def fill(engine: Engine) -> None:
    """Three admins' keys, one reader's, an account, a raise that was approved and one that waits."""
    keys = (
        {"id": f"key_{name}", "name": name, "scopes": json.dumps([scope]), "hash": name, "at": AT}
        for name, scope in (("alice", "admin"), ("bob", "admin"), ("gone", "admin"), ("reader", "read"))
    )
    with engine.begin() as connection:
        for key in keys:
            connection.execute(
                text(
                    "INSERT INTO api_keys (id, name, hash, scopes, created_at) VALUES (:id, :name, :hash, :scopes, :at)"
                ),
                key,
            )
        connection.execute(text("UPDATE api_keys SET revoked_at = created_at WHERE id = 'key_gone'"))
    with transaction(make_session_factory(engine)) as session:
        account = ledger.open_account(
            session,
            name="people",
            owner="clinic",
            epsilon=2.0,
            delta=1e-5,
            unit="record",
            adjacency="add_remove",
            now=NOW,
        )
    columns = (
        "id, account_id, epsilon_before, epsilon, reason, state, requested_by, requested_at, decided_by, decided_at"
    )
    with engine.begin() as connection:
        for request_id, state, decided in (("lim_old", "approved", True), ("lim_waiting", "pending", False)):
            connection.execute(
                text(
                    f"INSERT INTO limit_requests ({columns}) "
                    "VALUES (:id, :account, 2.0, 3.0, 'more', :state, 'key_alice', :at, :by, :decided_at)"
                ),
                {
                    "id": request_id,
                    "account": account.id,
                    "state": state,
                    "at": AT,
                    "by": "key_bob" if decided else None,
                    "decided_at": AT if decided else None,
                },
            )


def test_admin_keys_of_before_are_one_person(old_url: str) -> None:
    engine = make_engine(old_url)
    fill(engine)
    upgrade_schema(old_url)
    factory = make_session_factory(engine)
    with transaction(factory) as session:
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
    engine.dispose()


def test_entries_stay_append_only_and_the_way_back_works(old_url: str) -> None:
    engine = make_engine(old_url)
    fill(engine)
    upgrade_schema(old_url)
    for statement in ("UPDATE entries SET amount_nano = 0", "DELETE FROM entries"):
        with pytest.raises(Exception, match="append-only"), engine.begin() as connection:
            connection.execute(text(statement))
    engine.dispose()
    command.downgrade(migration_config(old_url), BEFORE)
    engine = make_engine(old_url)

    def count(table: str) -> Any:
        with engine.connect() as connection:
            return connection.execute(text(f"SELECT count(*) FROM {table}")).scalar()

    assert (count("api_keys"), count("limit_requests"), count("entries")) == (4, 2, 1)
    with pytest.raises(Exception, match="append-only"), engine.begin() as connection:
        connection.execute(text("DELETE FROM entries"))
    engine.dispose()
