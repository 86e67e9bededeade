"""Previews: trainings rehearsed on public stand-ins, by jobs that cost nothing.

Revision: 0007, after 0006.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

KINDS_BEFORE = ("train", "sample", "evaluate")
CODES_BEFORE = (
    "training_failed",
    "evaluation_failed",
    "sampling_failed",
    "dataset_unavailable",
    "release_unavailable",
    "hold_exhausted",
    "out_of_memory",
    "out_of_disk",
    "time_limit",
    "worker_lost",
    "ledger_unavailable",
    "internal",
)
CHECKS = (
    ("kind", KINDS_BEFORE, (*KINDS_BEFORE, "preview")),
    ("failure_code", CODES_BEFORE, (*CODES_BEFORE, "preview_failed")),
)


def upgrade() -> None:
    for column, before, after in CHECKS:
        _replace(column, before, after)
    op.create_table(
        "previews",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("results", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("grid", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(results IS NULL) = (finished_at IS NULL)", name=op.f("ck_previews_results_have_time")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_previews_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_previews")),
        sa.UniqueConstraint("job_id", name=op.f("uq_previews_job_id")),
    )


def downgrade() -> None:
    op.drop_table("previews")
    op.execute("DELETE FROM jobs WHERE kind = 'preview'")
    for column, before, after in CHECKS:
        _replace(column, after, before)


def _replace(column: str, before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """Replace the closed set of a column of jobs; see 0002 for how SQLite is told."""
    bind, rules = op.get_bind(), [f"{column} IN ({', '.join(map(repr, words))})" for words in (before, after)]
    if bind.dialect.name != "sqlite":
        op.drop_constraint(op.f(f"ck_jobs_{column}"), "jobs", type_="check")
        op.create_check_constraint(op.f(f"ck_jobs_{column}"), "jobs", sa.text(rules[1]))
        return
    version = bind.exec_driver_sql("PRAGMA schema_version").scalar_one()
    bind.exec_driver_sql("PRAGMA writable_schema=ON")
    changed = bind.exec_driver_sql(
        "UPDATE sqlite_master SET sql = replace(sql, ?, ?) "
        "WHERE type = 'table' AND name = 'jobs' AND instr(sql, ?) > 0",
        (*rules, rules[0]),
    )
    assert changed.rowcount == 1, column
    bind.exec_driver_sql(f"PRAGMA schema_version={version + 1}")
    bind.exec_driver_sql("PRAGMA writable_schema=OFF")
