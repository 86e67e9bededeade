"""Statements of the ledger's hot path: compiled by SQLAlchemy once, then run on the driver's own cursor.

SQLAlchemy's machinery for one execution costs more than the database does. What is kept of it are the SQL of each
dialect, the conversions of the column types, and the session's transaction, in which all this runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import ClauseElement, Connection, Dialect, Select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

Convert = Callable[[Any], Any]


class Prepared:
    """One statement with named parameters.

    Args:
        statement: in which every parameter has a type and occurs by a name of its own.
    """

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        self._compiled: dict[str, _Compiled] = {}  # by the dialect's name

    def row(self, session: Session, parameters: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Return the first row, or None where nothing was found.

        Raises:
            DBAPIError: as SQLAlchemy's own execution does.
        """
        return self._run(session.connection(), parameters)[0]

    def touched(self, session: Session, parameters: Mapping[str, Any]) -> int:
        """Return how many rows a write has touched.

        Raises:
            DBAPIError: as SQLAlchemy's own execution does.
        """
        return self._run(session.connection(), parameters)[1]

    def _run(self, connection: Connection, parameters: Mapping[str, Any]) -> tuple[tuple[Any, ...] | None, int]:
        dialect = connection.dialect
        compiled = self._compiled.get(dialect.name)
        if compiled is None:
            compiled = self._compiled[dialect.name] = _Compiled(self._statement, dialect)
        cursor = connection.connection.cursor()
        try:
            cursor.execute(compiled.sql, compiled.bound(parameters))
            row = cursor.fetchone() if compiled.columns else None
            return (None if row is None else compiled.read(row, cursor)), cursor.rowcount
        except dialect.loaded_dbapi.Error as error:
            # Without the values: they would stand in logs.
            raise DBAPIError.instance(compiled.sql, None, error, dialect.loaded_dbapi.Error, dialect=dialect) from error
        finally:
            cursor.close()


class _Compiled:
    """A statement in one dialect."""

    def __init__(self, statement: ClauseElement, dialect: Dialect) -> None:
        compiled: Any = statement.compile(dialect=dialect)
        self.sql = str(compiled)
        self._dialect = dialect
        self._places: list[str] | None = compiled.positiontup  # of dialects that number their parameters
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}
        types = {name: bind.type.dialect_impl(dialect) for bind, name in compiled.bind_names.items()}
        self._to_driver: dict[str, Convert | None] = {name: it.bind_processor(dialect) for name, it in types.items()}
        self.columns = [column.type for column in statement.selected_columns] if isinstance(statement, Select) else []
        self._from_driver: list[Convert | None] | None = None  # the driver's type codes come with the first row

    def bound(self, parameters: Mapping[str, Any]) -> Any:
        """Return the parameters as the driver takes them."""
        values = {**self._constants, **parameters}
        for name, convert in self._to_driver.items():
            if convert is not None:
                values[name] = convert(values[name])
        return values if self._places is None else [values[name] for name in self._places]

    def read(self, row: tuple[Any, ...], cursor: Any) -> tuple[Any, ...]:
        """Return a row with the values that the columns' types stand for."""
        if self._from_driver is None:
            self._from_driver = [
                kind.dialect_impl(self._dialect).result_processor(self._dialect, described[1])
                for kind, described in zip(self.columns, cursor.description, strict=True)
            ]
        return tuple(
            value if convert is None else convert(value) for value, convert in zip(row, self._from_driver, strict=True)
        )
