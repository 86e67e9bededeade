"""When a sample's files were removed.

Revision: 0023, after 0022.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import MOMENT

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("samples", sa.Column("removed_at", MOMENT, nullable=True))


def downgrade() -> None:
    """Go back: what was removed is missing, and is said to be there."""
    op.drop_column("samples", "removed_at")
