"""Samples may be drawn in stated proportions of the classes.

Revision: 0015, after 0014.
"""

from __future__ import annotations

from alembic import op
from service.db.revisions import JSON, optional

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("samples", *optional(JSON, "proportions"))


def downgrade() -> None:
    """Go back; samples in proportions are forgotten, and can be drawn again by naming classes."""
    op.execute("DELETE FROM samples WHERE proportions IS NOT NULL")
    op.drop_column("samples", "proportions")
