"""All engines of a test process know what one of them has compiled.

SQLAlchemy keeps compiled statements by engine, for a process has one. Tests open thousands, each of which would compile
everything again: a fifth of the time of those that start a service.
"""

from typing import Any

from sqlalchemy import Dialect, Engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

_STATEMENTS_MAX = 5000  # of both kinds of databases


def compile_once() -> None:
    compiled: LRUCache[Any, Any] = LRUCache(_STATEMENTS_MAX)
    Engine._compiled_cache = property(lambda _: compiled, lambda _engine, _own: None)  # type: ignore[assignment]
    for kind in (SQLiteDialect_pysqlite, PGDialect_psycopg):  # by which SQLAlchemy looks up what is compiled
        kind.__eq__ = lambda self, other: _same(self, other)  # type: ignore[assignment,method-assign,misc]
        kind.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign,misc]


def _same(one: Dialect, other: object) -> bool:
    versions = [getattr(each, "server_version_info", None) for each in (one, other)]  # none before the first connection
    return type(one) is type(other) and versions[0] == versions[1]
