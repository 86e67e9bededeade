"""Evaluations are jobs of their own, and a training that ends early publishes what it has.

Revision: 0002, after 0001.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_EARLY_ENDS = "'cancelled', 'discarded', 'time_limit', 'worker_lost', 'training_failed', 'out_of_memory', 'out_of_disk'"
_KINDS, _KINDS_BEFORE = "kind IN ('train', 'sample', 'evaluate')", "kind IN ('train', 'sample')"


def upgrade() -> None:
    _replace_kinds(_KINDS_BEFORE, _KINDS)
    # Each CHECK stands with the last of its columns: so both databases can add it to a table that has rows.
    op.execute(
        "ALTER TABLE jobs ADD COLUMN ended_early VARCHAR(32)\n"
        f"CONSTRAINT ck_jobs_ended_early CHECK (ended_early IN ({_EARLY_ENDS}))\n"
        "CONSTRAINT ck_jobs_training_ends_early CHECK (ended_early IS NULL OR kind = 'train')\n"
    )
    op.execute(
        "ALTER TABLE jobs ADD COLUMN salvage_attempt INTEGER\n"
        "CONSTRAINT ck_jobs_salvage_ended_early CHECK (salvage_attempt IS NULL OR ended_early IS NOT NULL)\n"
    )
    op.execute("ALTER TABLE releases ADD COLUMN incomplete JSON")
    op.create_table(
        "evaluations",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("release_id", sa.String(length=32), nullable=False),
        sa.Column("dataset_id", sa.String(length=32), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("results", sa.JSON(), nullable=True),
        sa.Column("confusion", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("samples IS NULL OR samples > 0", name=op.f("ck_evaluations_samples_positive")),
        sa.CheckConstraint("seed >= 0", name=op.f("ck_evaluations_seed_not_negative")),
        sa.CheckConstraint("(results IS NULL) = (finished_at IS NULL)", name=op.f("ck_evaluations_results_have_time")),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_evaluations_dataset_id")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_evaluations_job_id")),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_evaluations_release_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluations")),
        sa.UniqueConstraint("job_id", name=op.f("uq_evaluations_job_id")),
    )
    for column in ("created_at", "dataset_id", "release_id"):
        op.create_index(op.f(f"ix_evaluations_{column}"), "evaluations", [column], unique=False)


def downgrade() -> None:
    op.drop_table("evaluations")
    op.execute("DELETE FROM jobs WHERE kind = 'evaluate'")
    op.execute("ALTER TABLE releases DROP COLUMN incomplete")
    op.execute("ALTER TABLE jobs DROP COLUMN salvage_attempt")
    op.execute("ALTER TABLE jobs DROP COLUMN ended_early")
    _replace_kinds(_KINDS, _KINDS_BEFORE)


def _replace_kinds(before: str, after: str) -> None:
    """Replace the CHECK on the kinds of jobs.

    SQLite cannot alter one, and jobs cannot be copied to a new table while others refer to them. Its documented way for
    a constraint that no stored row breaks is to write the new text of the schema (sqlite.org/lang_altertable.html).
    """
    bind = op.get_bind()
    if bind.dialect.name != "sqlite":
        op.drop_constraint(op.f("ck_jobs_kind"), "jobs", type_="check")
        op.create_check_constraint(op.f("ck_jobs_kind"), "jobs", sa.text(after))
        return
    version = bind.exec_driver_sql("PRAGMA schema_version").scalar_one()
    bind.exec_driver_sql("PRAGMA writable_schema=ON")
    bind.exec_driver_sql(
        "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE type = 'table' AND name = 'jobs'", (before, after)
    )
    bind.exec_driver_sql(f"PRAGMA schema_version={version + 1}")
    bind.exec_driver_sql("PRAGMA writable_schema=OFF")
