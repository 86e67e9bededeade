"""Uploads that reveal that their images are known are counted by key, project and day.

Revision: 0031, after 0030.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import ID, INTEGER, create, needed

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create(
        "known_uploads",
        *needed(ID, "project_id", "key_id"),
        *needed(sa.String(10), "day"),
        *needed(INTEGER, "count"),
        key=("project_id", "key_id", "day"),
        count_positive="count > 0",
    )


def downgrade() -> None:
    """Go back: the counts of this day are lost."""
    op.drop_table("known_uploads")
