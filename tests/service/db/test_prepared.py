"""Statements on the driver's own cursor mean what SQLAlchemy's execution of them means, and fail as it does."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import bindparam, insert, literal, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from service import ledger
from service.db.prepared import Prepared
from service.db.session import SessionFactory, transaction
from service.ledger.statements import ACCOUNTS, ENTRIES

OF_ACCOUNT = select(ACCOUNTS).where(ACCOUNTS.c.id == bindparam("account_id"))


@pytest.fixture
def account_id(factory: SessionFactory, open_account: Callable[..., str]) -> str:
    return open_account(factory)


def test_rows_are_the_same_in_every_column(factory, account_id):
    entries = select(ENTRIES, literal(7)).where(ENTRIES.c.account_id == bindparam("account_id"))
    with transaction(factory, read_only=True) as session:
        for statement in (OF_ACCOUNT, entries):
            expected = tuple(session.connection().execute(statement, {"account_id": account_id}).one())
            for _ in range(2):  # the second time with what the first has learned
                found = Prepared(statement).row(session, {"account_id": account_id})
                assert found == expected
                assert [type(value) for value in found or ()] == [type(value) for value in expected]
        assert Prepared(OF_ACCOUNT).row(session, {"account_id": "acc_nobody"}) is None


def test_it_runs_in_the_sessions_transaction(factory, account_id, now):
    rename = Prepared(ACCOUNTS.update().where(ACCOUNTS.c.id == bindparam("which")).values(name=bindparam("to")))
    with transaction(factory) as session:
        before = ledger.get_account(session, account_id).name
        assert rename.touched(session, {"which": account_id, "to": "other"}) == 1
        assert rename.touched(session, {"which": "acc_nobody", "to": "other"}) == 0
        assert ledger.get_account(session, account_id).name == "other"
        session.rollback()
    with transaction(factory, read_only=True) as session:
        assert ledger.get_account(session, account_id).name == before


def test_errors_are_sqlalchemys_and_say_no_values(factory, account_id):
    again = Prepared(insert(ACCOUNTS).values({c.name: bindparam(f"a_{c.name}", type_=c.type) for c in ACCOUNTS.c}))
    with transaction(factory, read_only=True) as session:
        account = dataclasses.asdict(ledger.get_account(session, account_id))
    values: dict[str, Any] = {f"a_{c.name}": account.get(c.name) for c in ACCOUNTS.c}
    with pytest.raises(IntegrityError) as raised, transaction(factory) as session:
        again.touched(session, values)
    assert account["head_hash"] not in str(raised.value)
    with pytest.raises(DBAPIError), transaction(factory, read_only=True) as session:
        again.touched(session, {**values, "a_id": "acc_another"})
