"""Datasets on which nothing was ever trained are erased when they are deleted: names, and all that was declared.

Revision: 0016, after 0015.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("datasets", sa.Column("erased_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Go back. What was erased stays erased, and is listed again, without its names."""
    op.drop_column("datasets", "erased_at")
