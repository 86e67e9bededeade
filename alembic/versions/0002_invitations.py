"""Add invitations, the key to which a session returns, and the last status of a delivery.

Revision: 0002.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ID, TIME = sa.String(32), sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "invitations",
        sa.Column("id", ID, primary_key=True),
        sa.Column("secret_sha256", sa.String(64), nullable=False, unique=True),
        sa.Column("role", sa.String(64), nullable=False),
        sa.Column("project_id", ID, index=True),
        sa.Column("created_by", ID, sa.ForeignKey("api_keys.id"), nullable=False),
        *(sa.Column(name, TIME, nullable=False) for name in ("created_at", "expires_at")),
        *(sa.Column(name, TIME) for name in ("used_at", "revoked_at")),
        sa.Column("name", sa.String(200)),
        sa.Column("key_id", ID),
        sa.Column("key_hash", sa.String(64)),
        sa.CheckConstraint(
            "(used_at IS NULL) = (name IS NULL) AND (used_at IS NULL) = (key_id IS NULL)", name="used_names_key"
        ),
        sa.CheckConstraint("project_id IS NOT NULL OR role = 'admin'", name="of_a_project"),
    )
    op.add_column("sign_ins", sa.Column("return_key_id", ID))
    op.add_column("deliveries", sa.Column("status", sa.Integer()))


def downgrade() -> None:
    op.drop_column("deliveries", "status")
    op.drop_column("sign_ins", "return_key_id")
    op.drop_table("invitations")
