"""An index of when a project's jobs ran, from which its hours are counted.

Revision: 0028, after 0027.
"""

from __future__ import annotations

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_jobs_project_id_finished_at_started_at", "jobs", ["project_id", "finished_at", "started_at"])


def downgrade() -> None:
    """Go back: nothing is lost."""
    op.drop_index("ix_jobs_project_id_finished_at_started_at", "jobs")
