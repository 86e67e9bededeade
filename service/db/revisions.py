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
    """Replace the rule for what a column may hold, which no stored row breaks.

    SQLite cannot alter a constraint, nor can a table be copied to a new one while others refer to it. There the text of
    the schema is changed, in the documented way (sqlite.org/lang_altertable.html).
    """
    bind = op.get_bind()
    if bind.dialect.name != "sqlite":
        op.drop_constraint(op.f(f"ck_{table}_{column}"), table, type_="check")
        op.create_check_constraint(op.f(f"ck_{table}_{column}"), table, sa.text(after))
        return
    version = bind.exec_driver_sql("PRAGMA schema_version").scalar_one()
    bind.exec_driver_sql("PRAGMA writable_schema=ON")
    changed = bind.exec_driver_sql(
        "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE type = 'table' AND name = ? AND instr(sql, ?) > 0",
        (before, after, table, before),
    )
    assert changed.rowcount == 1, before
    bind.exec_driver_sql(f"PRAGMA schema_version={version + 1}")
    bind.exec_driver_sql("PRAGMA writable_schema=OFF")


def create_requests() -> None:
    """Create the two tables that came before `decisions`: requests for higher limits, and requests about admins."""
    reason = sa.String(500)
    decided = "(state = 'pending') = (decided_by IS NULL) AND (decided_by IS NULL) = (decided_at IS NULL)"
    create(
        "limit_requests",
        *needed(ID, "id"),
        reference("account_id", "accounts", index=True),
        *needed(REAL, "epsilon_before", "epsilon"),
        *needed(reason, "reason"),
        choice("state", "pending", "approved", "declined"),
        reference("requested_by", "api_keys"),
        *needed(MOMENT, "requested_at"),
        reference("decided_by", "api_keys", nullable=True),
        *optional(MOMENT, "decided_at"),
        reference("requested_by_admin", "admins"),
        reference("decided_by_admin", "admins", nullable=True),
        epsilon_is_raised="epsilon_before > 0 AND epsilon > epsilon_before",
        decided_by_somebody=decided,
        two_keys="state != 'approved' OR decided_by != requested_by",
        two_people="state != 'approved' OR decided_by_admin IS NULL OR decided_by_admin != requested_by_admin",
    )
    create(
        "admin_requests",
        *needed(ID, "id"),
        choice("action", "admit", "remove", "revoke"),
        *needed(NAME, "name"),
        reference("admin_id", "admins", nullable=True),
        *optional(ID, "key_id"),
        *optional(HASH, "key_hash"),
        *needed(reason, "reason"),
        choice("state", "pending", "approved", "declined"),
        reference("asked_by", "admins"),
        *needed(MOMENT, "asked_at"),
        reference("decided_by", "admins", nullable=True),
        *optional(MOMENT, "decided_at"),
        *optional(INTEGER, "keys_revoked"),
        names_key="(action = 'admit') = (key_hash IS NOT NULL) AND (action = 'remove') = (key_id IS NULL)",
        concerns_one="action = 'admit' OR admin_id IS NOT NULL",
        decided_by_somebody=decided,
        two_people="state != 'approved' OR decided_by != asked_by",
    )
