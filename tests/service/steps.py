"""Steps on a database, each in a transaction of its own; holds and charges of any amount, and keys, for the tests."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, event, select, text
from sqlalchemy.orm import Session

from obscura.wire.schemas import BalanceFacts
from obscura.wire.words import EntryKind
from privacy.accounting.events import GaussianEvent
from privacy.plans.plan import stage_from_json
from service import ledger
from service.audit.findings import Finding
from service.audit.verify import verify
from service.db.access_tables import ApiKey
from service.db.base import new_id
from service.db.job_tables import Job
from service.db.session import SessionFactory, transaction
from service.identity import admins, auth, decisions
from service.identity.access import find
from tests.conftest import APPEND_ONLY

Row = TypeVar("Row")

CARD: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "unit": "record", "adjacency": "add_remove"}
CARD |= {"recipe": "datalens", "assumed_public": [], "not_covered": []}
CARD |= {"accounting": {"method": "approximate_gdp", "cost_nano": 1}}
REPORT: dict[str, Any] = {
    "release": {"name": "release", "recipe": "datalens", "stages": [], "facts": {}, "incomplete": None}
    | {"created_at": "2030-01-02T03:00+00:00"},
    "synthetic": {"images": 0, "classes": [], "collapsed": [], "exact_duplicates": 0, "between_class_distance": 0.0}
    | {"mode_collapse_rule": ""},
    "technical": {},
}


class WithDatabase:
    """The base of what tests work with on a database; each act is a transaction of its own."""

    factory: SessionFactory

    def do(self, act: Callable[..., Any], *given: Any, **more: Any) -> Any:
        with transaction(self.factory) as session:
            return act(session, *given, **more)

    def read(self, look: Callable[..., Any], *given: Any, **more: Any) -> Any:
        with transaction(self.factory, read_only=True) as session:
            return look(session, *given, **more)

    def change(self, table: type[Any], row_id: str, **columns: Any) -> None:
        with transaction(self.factory) as session:
            for name, value in columns.items():
                setattr(session.get_one(table, row_id), name, value)

    def row(self, table: type[Row], row_id: str) -> Row:
        return self.read(lambda session: session.get_one(table, row_id))

    def job(self, job_id: str) -> Job:
        return self.read(find, Job, job_id)

    def rows(self, table: type[Row], *conditions: Any) -> list[Row]:
        with transaction(self.factory, read_only=True) as session:
            return list(session.scalars(select(table).where(*conditions)))


class WithAccount(WithDatabase):
    """The base of what tests work with on one account."""

    account_id: str

    def account(self) -> ledger.Account:
        return self.read(ledger.get_account, self.account_id)

    def balance(self) -> BalanceFacts:
        return ledger.balance_of(self.account())

    def entries(self) -> list[ledger.Entry]:
        return list(self.read(ledger.entries, self.account_id, 0, 1000))

    def kinds(self) -> list[EntryKind]:
        return [entry.kind for entry in self.entries()]


class Steps(WithDatabase):
    """The base of the ledgers and job shops that tests work with; `now` is the time of the next step."""

    now: datetime

    @property
    def sqlite(self) -> bool:
        return str(self.factory.kw["bind"].dialect.name) == "sqlite"

    def do(self, step: Callable[..., Any], *arguments: Any, **facts: Any) -> Any:
        return super().do(step, *arguments, **{"now": self.now, **facts})

    def findings(self) -> tuple[Finding, ...]:
        """Verify the whole ledger, without a key to check signatures."""
        return tuple(self.read(verify, trusted={}).findings)

    def sql(self, statement: str) -> None:
        with transaction(self.factory) as session:
            session.execute(text(statement))

    def corrupt(self, *statements: str) -> None:
        """Change append-only tables for good, without any other trace."""
        with self.factory.kw["bind"].begin() as connection, without_triggers(connection):
            for statement in statements:
                connection.exec_driver_sql(statement)


@contextmanager
def before_the_first_select(factory: SessionFactory, act: Callable[[], object]) -> Iterator[None]:
    """Act once in a block, just before the first SELECT on a database, which must come."""
    begun: list[str] = []

    def before_select(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT") and not begun:
            begun.append(statement)
            act()

    event.listen(factory.kw["bind"], "before_cursor_execute", before_select)
    yield
    event.remove(factory.kw["bind"], "before_cursor_execute", before_select)
    assert begun


@contextmanager
def without_triggers(connection: Connection) -> Iterator[None]:
    if connection.dialect.name == "sqlite":
        triggers = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").all()
        before, after = [f"DROP TRIGGER {name}" for name, _ in triggers], [made_by for _, made_by in triggers]
    else:
        before = [f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in APPEND_ONLY]
        after = [f"ALTER TABLE {table} ENABLE TRIGGER USER" for table in APPEND_ONLY]
    for statement in before:
        connection.exec_driver_sql(statement)
    yield
    for statement in after:
        connection.exec_driver_sql(statement)


def releases(count: int) -> dict[str, Any]:
    """Return an event that costs as many nano-units as it has releases."""
    return GaussianEvent(sensitivity=1.0, stddev=40_000.0, count=1).to_json() | {"count": count}


def hold_amount(session: Session, *, account_id: str, amount_nano: int, **facts: Any) -> ledger.Hold:
    """Hold an amount for a stage `votes`; `facts` are those of `ledger.hold`."""
    present = ledger.filter_of(ledger.get_account(session, account_id))
    stage = {"name": "votes", "event": releases(amount_nano), "cost_nano": amount_nano}
    priced: dict[str, Any] = {"amount_nano": amount_nano, "priced_by": present, "details": {"stages": [stage]}}
    return ledger.hold(session, account_id=account_id, **priced | facts)


def charge(session: Session, *, amount_nano: int, stage: str = "votes", **facts: Any) -> int:
    """Charge an amount; `facts` are those of `ledger.charge`."""
    return ledger.charge(session, amount_nano=amount_nano, stage=stage, event=releases(amount_nano), **facts)


def charge_planned(session: Session, *, hold_id: str, attempt: int, now: datetime, count: int = 1) -> int:
    """Charge for releases of the first stage that a hold was taken for, as a training does."""
    held = ledger.entry_of_hold(session, hold_id, EntryKind.HOLD).details
    stage = stage_from_json(held["stages"][0], {})
    return ledger.charge(
        session,
        hold_id=hold_id,
        attempt=attempt,
        amount_nano=stage.price_of(count),
        stage=stage.name,
        event=dataclasses.replace(stage.event, count=count).to_json(),
        paid_as_whole=stage.paid_as_whole,
        now=now,
    )


def make_key(
    session: Session, *, name: str, scopes: Iterable[str], now: datetime, admin_id: str | None = None
) -> tuple[ApiKey, str]:
    chosen = list(scopes)
    if "admin" not in chosen or admin_id is not None:
        first = select(ApiKey).where(ApiKey.admin_id == admin_id).limit(1)
        by = None if admin_id is None else auth.principal_of(session.scalars(first).one())
        return auth.create_key(session, name=name, scopes=chosen, now=now, by=by)
    _admin, token = admins.admit_on_machine(session, name=f"{name} {new_id('x')}", now=now)
    key = session.get_one(ApiKey, f"key_{token.split('_')[1]}")
    key.scopes = sorted(set(chosen))
    session.flush()
    return key, token


def approve_raise(session: Session, request_id: str, key_id: str, now: datetime) -> None:
    decisions.decide(session, request_id, key_id, now, ledger.limits.LIMIT_EFFECTS, approved=True)


def raise_limit(session: Session, account_id: str, epsilon: float, now: datetime) -> None:
    """Raise a limit, for which one new admin asks and which another one approves."""
    asks, approves = (make_key(session, name="admin", scopes=["admin"], now=now)[0].id for _ in range(2))
    facts = {"epsilon": epsilon, "reason": "a second study", "requested_with": asks, "now": now}
    approve_raise(session, ledger.limits.request_raise(session, account_id=account_id, **facts).id, approves, now)
