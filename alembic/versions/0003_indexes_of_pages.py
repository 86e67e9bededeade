"""Indexes for what pages ask: the open holds of an account, and the jobs and releases of one, newest first.

Revision: 0003, after 0002.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

OPEN = sa.text("state IN ('held', 'armed')")


def upgrade() -> None:
    """Create them. Two replace an index on the account alone, which they begin with."""
    op.create_index("ix_holds_open", "holds", ["account_id", "created_at"], sqlite_where=OPEN, postgresql_where=OPEN)
    op.create_index("ix_jobs_evaluation_dataset_id", "jobs", ["evaluation_dataset_id"])
    for table in ("jobs", "releases"):
        op.create_index(f"ix_{table}_account_id_created_at", table, ["account_id", "created_at"])
        op.drop_index(f"ix_{table}_account_id", table_name=table)


def downgrade() -> None:
    """Go back to the indexes of 0001."""
    for table in ("jobs", "releases"):
        op.create_index(f"ix_{table}_account_id", table, ["account_id"])
        op.drop_index(f"ix_{table}_account_id_created_at", table_name=table)
    op.drop_index("ix_jobs_evaluation_dataset_id", table_name="jobs")
    op.drop_index("ix_holds_open", table_name="holds")
