"""Quotas of projects, and when a worker last took a job of theirs.

Revision: 0021, after 0020.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import BIG, MOMENT

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

ADDED = {"disk_bytes_max": BIG, "jobs_max": BIG, "worker_hours_max": BIG, "turn_at": MOMENT}


def upgrade() -> None:
    for name, kind in ADDED.items():
        op.add_column("projects", sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    """Go back: without quotas everybody may take as much as there is."""
    for name in reversed(ADDED):
        op.drop_column("projects", name)
