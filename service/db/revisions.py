"""The words that the revisions of the schema are written in. What they make must never change: it was made before.

Constraints and indexes get their names from the convention of `service.db.base`.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from alembic import op

ID, WORD, HASH, NAME = sa.String(32), sa.String(64), sa.String(64), sa.String(200)
INTEGER, BIG, FLAG, JSON = sa.Integer(), sa.BigInteger(), sa.Boolean(), sa.JSON()
REAL: sa.Double[float] = sa.Double()
MOMENT = sa.DateTime(timezone=True)


def needed(kind: Any, *names: str) -> list[sa.Column[Any]]:
    """Columns of a type that are never null."""
    return [sa.Column(name, kind, nullable=False) for name in names]


def optional(kind: Any, *names: str) -> list[sa.Column[Any]]:
    """Columns of a type that may be null."""
    return [sa.Column(name, kind, nullable=True) for name in names]


def choice(name: str, *words: str, nullable: bool = False) -> sa.Column[str]:
    """A column that holds one of some words."""
    kind = sa.Enum(*words, name=name, native_enum=False, create_constraint=True, length=32)
    return sa.Column(name, kind, nullable=nullable)


def reference(name: str, table: str, *, nullable: bool = False, **more: Any) -> sa.Column[str]:
    """A column that holds the id of another row."""
    return sa.Column(name, ID, sa.ForeignKey(f"{table}.id"), nullable=nullable, **more)


def create(name: str, *columns: sa.Column[Any], key: tuple[str, ...] = ("id",), **rules: str) -> None:
    """Create a table, whose rules are CHECK constraints by name."""
    checks = [sa.CheckConstraint(rule, name=rule_name) for rule_name, rule in rules.items()]
    op.create_table(name, *columns, sa.PrimaryKeyConstraint(*key), *checks)


def index_where(name: str, table: str, column: str, rule: str, *, unique: bool = False) -> None:
    """Index the rows for which a rule holds."""
    where = sa.text(rule)
    op.create_index(name, table, [column], unique=unique, sqlite_where=where, postgresql_where=where)


def replace_rule(table: str, column: str, before: str, after: str) -> None:
    """Replace the rule for what a column may hold, which no stored row breaks."""
    name = op.f(f"ck_{table}_{column}")
    if op.get_bind().dialect.name == "sqlite":
        write_schema(table, before, after)
    else:
        op.drop_constraint(name, table, type_="check")
        op.create_check_constraint(name, table, sa.text(after))


def replace_unique(table: str, before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """Let other columns of a table be unique together, which they are in all stored rows."""
    both = before, after
    named = [op.f(f"uq_{table}_{'_'.join(columns)}") for columns in both]
    if op.get_bind().dialect.name != "sqlite":
        op.drop_constraint(named[0], table, type_="unique")
        op.create_unique_constraint(named[1], table, list(after))
        return
    texts = [f"CONSTRAINT {name} UNIQUE ({', '.join(columns)})" for name, columns in zip(named, both, strict=True)]
    write_schema(table, *texts)
    bind = op.get_bind()
    bind.exec_driver_sql("PRAGMA writable_schema=RESET")  # this connection reads the schema again
    bind.exec_driver_sql(f"REINDEX {table}")


def write_schema(table: str, before: str, after: str) -> None:
    """Replace part of the text of a table's schema on SQLite, which cannot alter a constraint.

    A table cannot be copied to a new one while others refer to it. This is the documented way for a constraint that no
    stored row breaks (sqlite.org/lang_altertable.html).
    """
    bind = op.get_bind()
    version = bind.exec_driver_sql("PRAGMA schema_version").scalar_one()
    bind.exec_driver_sql("PRAGMA writable_schema=ON")
    changed = bind.exec_driver_sql(
        "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE type = 'table' AND name = ? AND instr(sql, ?) > 0",
        (before, after, table, before),
    )
    assert changed.rowcount == 1, before
    bind.exec_driver_sql(f"PRAGMA schema_version={version + 1}")
    bind.exec_driver_sql("PRAGMA writable_schema=OFF")
