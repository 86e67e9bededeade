"""Samples may be packed as Parquet and as WebDataset.

Revision: 0009, after 0008.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

BEFORE = "format IN ('imagefolder', 'npz')"
AFTER = "format IN ('imagefolder', 'npz', 'parquet', 'webdataset')"


def upgrade() -> None:
    _replace(BEFORE, AFTER)


def downgrade() -> None:
    """Go back to the formats of 0001; samples of the others are forgotten, and can be drawn again for nothing."""
    op.execute("DELETE FROM samples WHERE format IN ('parquet', 'webdataset')")
    _replace(AFTER, BEFORE)


def _replace(before: str, after: str) -> None:
    """Replace the closed set of formats; see 0002 for how SQLite is told."""
    bind = op.get_bind()
    if bind.dialect.name != "sqlite":
        op.drop_constraint(op.f("ck_samples_format"), "samples", type_="check")
        op.create_check_constraint(op.f("ck_samples_format"), "samples", sa.text(after))
        return
    version = bind.exec_driver_sql("PRAGMA schema_version").scalar_one()
    bind.exec_driver_sql("PRAGMA writable_schema=ON")
    changed = bind.exec_driver_sql(
        "UPDATE sqlite_master SET sql = replace(sql, ?, ?) "
        "WHERE type = 'table' AND name = 'samples' AND instr(sql, ?) > 0",
        (before, after, before),
    )
    assert changed.rowcount == 1
    bind.exec_driver_sql(f"PRAGMA schema_version={version + 1}")
    bind.exec_driver_sql("PRAGMA writable_schema=OFF")
