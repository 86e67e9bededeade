"""Kinds of jobs are listed in service.jobs.kinds alone: the database takes any word.

Revision: 0013, after 0012.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

CLOSED, ANY = "kind IN ('train', 'sample', 'evaluate', 'preview')", "kind <> ''"


def upgrade() -> None:
    _replace(CLOSED, ANY)


def downgrade() -> None:
    """Go back, unless there are jobs of which this older version knows nothing."""
    unknown = op.get_bind().execute(sa.text(f"SELECT count(*) FROM jobs WHERE NOT ({CLOSED})")).scalar_one()
    if unknown:
        raise RuntimeError(f"{unknown} jobs are of kinds that this older version does not know.")
    _replace(ANY, CLOSED)


def _replace(before: str, after: str) -> None:
    """Replace the rule for a job's kind; see 0002 for how SQLite is told."""
    bind = op.get_bind()
    if bind.dialect.name != "sqlite":
        op.drop_constraint(op.f("ck_jobs_kind"), "jobs", type_="check")
        op.create_check_constraint(op.f("ck_jobs_kind"), "jobs", sa.text(after))
        return
    version = bind.exec_driver_sql("PRAGMA schema_version").scalar_one()
    bind.exec_driver_sql("PRAGMA writable_schema=ON")
    changed = bind.exec_driver_sql(
        "UPDATE sqlite_master SET sql = replace(sql, ?, ?) "
        "WHERE type = 'table' AND name = 'jobs' AND instr(sql, ?) > 0",
        (before, after, before),
    )
    assert changed.rowcount == 1
    bind.exec_driver_sql(f"PRAGMA schema_version={version + 1}")
    bind.exec_driver_sql("PRAGMA writable_schema=OFF")
