"""Steps on a database, each in a transaction of its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, event, text

from service.audit.findings import Finding
from service.audit.verify import verify
from service.db.session import SessionFactory, transaction
from tests.conftest import APPEND_ONLY


class Steps:
    """The base of the ledgers and job shops that tests work with.

    Attributes:
        now: the time of the next step.
    """

    factory: SessionFactory
    now: datetime

    @property
    def sqlite(self) -> bool:
        return str(self.factory.kw["bind"].dialect.name) == "sqlite"

    def do(self, step: Callable[..., Any], *arguments: Any, **facts: Any) -> Any:
        with transaction(self.factory) as session:
            return step(session, *arguments, **{"now": self.now, **facts})

    def read(self, look: Callable[..., Any], *arguments: Any, **facts: Any) -> Any:
        with transaction(self.factory, read_only=True) as session:
            return look(session, *arguments, **facts)

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
