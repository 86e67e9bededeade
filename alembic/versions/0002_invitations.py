"""Add invitations, the key to which a session returns, and the last status of a delivery.

Revision: 0002.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision, down_revision, branch_labels, depends_on = "0002", "0001", None, None
ID, TIME, NOT_NULL = sa.String(32), sa.DateTime(timezone=True), ("secret_sha256", "role", "created_at", "expires_at")
COLUMNS = {"secret_sha256": sa.String(64), "role": sa.String(64), "name": sa.String(200), "key_id": ID}
COLUMNS |= {"key_hash": sa.String(64)} | dict.fromkeys(("created_at", "expires_at", "used_at", "revoked_at"), TIME)
USED = "(used_at IS NULL) = (name IS NULL) AND (used_at IS NULL) = (key_id IS NULL)"


def upgrade() -> None:
    op.create_table(
        "invitations",
        sa.Column("id", ID, primary_key=True),
        sa.Column("project_id", ID, index=True),
        sa.Column("created_by", ID, sa.ForeignKey("api_keys.id"), nullable=False),
        *(sa.Column(name, kind, nullable=name not in NOT_NULL) for name, kind in COLUMNS.items()),
        sa.UniqueConstraint("secret_sha256"),
        sa.CheckConstraint(USED, name="used_names_key"),
        sa.CheckConstraint("project_id IS NOT NULL OR role = 'admin'", name="of_a_project"),
    )
    op.add_column("sign_ins", sa.Column("return_key_id", ID))
    op.add_column("deliveries", sa.Column("status", sa.Integer()))


def downgrade() -> None:
    op.drop_column("deliveries", "status")
    op.drop_column("sign_ins", "return_key_id")
    op.drop_table("invitations")
