"""When a sample's files were removed.

Revision: 0022, after 0021.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import MOMENT

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("samples", sa.Column("removed_at", MOMENT, nullable=True))


def downgrade() -> None:
    """Go back: what was removed is missing, and is said to be there."""
    op.drop_column("samples", "removed_at")
