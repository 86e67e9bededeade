"""The check value of the key under which an account's subjects are recognised.

Revision: 0030, after 0029.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("accounts", sa.Column("subjects_key_check", sa.String(16), nullable=True))


def downgrade() -> None:
    """Go back: a withdrawal under another key is no longer noticed."""
    op.drop_column("accounts", "subjects_key_check")
