"""A noisy count of records may be paid for: a kind of entry that spends at once, without a hold.

Revision: 0012, after 0011.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

BEFORE = "kind IN ('open', 'hold', 'arm', 'charge', 'capture', 'release', 'sample', 'limit', 'freeze', 'fact')"
AFTER = BEFORE.replace("'fact')", "'fact', 'count')")


def upgrade() -> None:
    _replace(BEFORE, AFTER)


def downgrade() -> None:
    """Go back, unless a count was paid for: what was spent stays in the log, which nothing changes."""
    paid = op.get_bind().execute(sa.text("SELECT count(*) FROM entries WHERE kind = 'count'")).scalar_one()
    if paid:
        raise RuntimeError(f"{paid} counts of records stand in the ledger, which this older version cannot read.")
    _replace(AFTER, BEFORE)


def _replace(before: str, after: str) -> None:
    """Replace the closed set of kinds; see 0002 for how SQLite is told."""
    bind = op.get_bind()
    if bind.dialect.name != "sqlite":
        op.drop_constraint(op.f("ck_entries_kind"), "entries", type_="check")
        op.create_check_constraint(op.f("ck_entries_kind"), "entries", sa.text(after))
        return
    version = bind.exec_driver_sql("PRAGMA schema_version").scalar_one()
    bind.exec_driver_sql("PRAGMA writable_schema=ON")
    changed = bind.exec_driver_sql(
        "UPDATE sqlite_master SET sql = replace(sql, ?, ?) "
        "WHERE type = 'table' AND name = 'entries' AND instr(sql, ?) > 0",
        (before, after, before),
    )
    assert changed.rowcount == 1
    bind.exec_driver_sql(f"PRAGMA schema_version={version + 1}")
    bind.exec_driver_sql("PRAGMA writable_schema=OFF")
