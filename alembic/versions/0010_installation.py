"""A database knows the data folder that it belongs to by an id that both hold. The first start writes it.

Revision: 0010, after 0009.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make room for one id."""
    op.create_table(
        "installation",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("number = 1", name=op.f("ck_installation_only_one")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_installation")),
    )


def downgrade() -> None:
    """Forget it; move the file `installation` out of the data folder, so that a later upgrade makes a new one."""
    op.drop_table("installation")
