"""Previews: trainings rehearsed on public stand-ins, by jobs that cost nothing.

Revision: 0007, after 0006.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import ID, JSON, MOMENT, create, needed, optional, replace_rule

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

KINDS_BEFORE = "'train', 'sample', 'evaluate'"
CODES_BEFORE = (
    "'training_failed', 'evaluation_failed', 'sampling_failed', 'dataset_unavailable', 'release_unavailable', "
    "'hold_exhausted', 'out_of_memory', 'out_of_disk', 'time_limit', 'worker_lost', 'ledger_unavailable', 'internal'"
)
RULES = {
    "kind": (f"kind IN ({KINDS_BEFORE})", f"kind IN ({KINDS_BEFORE}, 'preview')"),
    "failure_code": (f"failure_code IN ({CODES_BEFORE})", f"failure_code IN ({CODES_BEFORE}, 'preview_failed')"),
}


def upgrade() -> None:
    for column, (before, after) in RULES.items():
        replace_rule("jobs", column, before, after)
    job = sa.ForeignKey("jobs.id", name=op.f("fk_previews_job_id_jobs"))
    create(
        "previews",
        *needed(ID, "id"),
        sa.Column("job_id", ID, job, nullable=False, unique=True),
        *optional(JSON, "results"),
        *optional(sa.LargeBinary(), "grid"),
        *needed(MOMENT, "created_at"),
        *optional(MOMENT, "finished_at"),
        results_have_time="(results IS NULL) = (finished_at IS NULL)",
    )


def downgrade() -> None:
    op.drop_table("previews")
    op.execute("DELETE FROM jobs WHERE kind = 'preview'")
    for column, (before, after) in RULES.items():
        replace_rule("jobs", column, after, before)
