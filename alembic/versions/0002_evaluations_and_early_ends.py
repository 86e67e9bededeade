"""Evaluations are jobs of their own, and a training that ends early publishes what it has.

Revision: 0002, after 0001.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import BIG, ID, INTEGER, JSON, MOMENT, create, needed, optional, reference, replace_rule

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_EARLY_ENDS = "'cancelled', 'discarded', 'time_limit', 'worker_lost', 'training_failed', 'out_of_memory', 'out_of_disk'"
_KINDS, _KINDS_BEFORE = "kind IN ('train', 'sample', 'evaluate')", "kind IN ('train', 'sample')"


def upgrade() -> None:
    replace_rule("jobs", "kind", _KINDS_BEFORE, _KINDS)
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
    create(
        "evaluations",
        *needed(ID, "id"),
        reference("job_id", "jobs", unique=True),
        reference("release_id", "releases", index=True),
        reference("dataset_id", "datasets", index=True),
        *optional(INTEGER, "samples"),
        *needed(BIG, "seed"),
        *optional(JSON, "results", "confusion"),
        sa.Column("created_at", MOMENT, nullable=False, index=True),
        *optional(MOMENT, "finished_at"),
        samples_positive="samples IS NULL OR samples > 0",
        seed_not_negative="seed >= 0",
        results_have_time="(results IS NULL) = (finished_at IS NULL)",
    )


def downgrade() -> None:
    op.drop_table("evaluations")
    op.execute("DELETE FROM jobs WHERE kind = 'evaluate'")
    op.execute("ALTER TABLE releases DROP COLUMN incomplete")
    op.execute("ALTER TABLE jobs DROP COLUMN salvage_attempt")
    op.execute("ALTER TABLE jobs DROP COLUMN ended_early")
    replace_rule("jobs", "kind", _KINDS, _KINDS_BEFORE)
