"""Keys end and show when they were last used; two admins revoke a third's key; what was revoked with a decision.

Revision: 0011, after 0010.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

BEFORE = {
    "action": "action IN ('admit', 'remove')",
    "admission_has_key": "(action = 'admit') = (key_id IS NOT NULL) AND (key_id IS NULL) = (key_hash IS NULL)",
    "removes_one": "action != 'remove' OR admin_id IS NOT NULL",
}
AFTER = {
    "action": "action IN ('admit', 'remove', 'revoke')",
    "names_key": "(action = 'admit') = (key_hash IS NOT NULL) AND (action = 'remove') = (key_id IS NULL)",
    "concerns_one": "action = 'admit' OR admin_id IS NOT NULL",
}


def upgrade() -> None:
    for column in ("expires_at", "last_used_at"):
        op.add_column("api_keys", sa.Column(column, sa.DateTime(timezone=True), nullable=True))
    op.create_index(op.f("ix_api_keys_created_by"), "api_keys", ["created_by"])
    op.add_column("admin_requests", sa.Column("keys_revoked", sa.Integer(), nullable=True))
    _replace(BEFORE, AFTER)


def downgrade() -> None:
    """Go back to 0005's requests; those about keys are forgotten. Keys with an end are revoked: nothing ends them."""
    op.execute("DELETE FROM admin_requests WHERE action = 'revoke'")
    _replace(AFTER, BEFORE)
    op.drop_column("admin_requests", "keys_revoked")
    op.drop_index(op.f("ix_api_keys_created_by"), "api_keys")
    op.execute("UPDATE api_keys SET revoked_at = expires_at WHERE revoked_at IS NULL AND expires_at IS NOT NULL")
    for column in ("last_used_at", "expires_at"):
        op.drop_column("api_keys", column)


def _replace(before: dict[str, str], after: dict[str, str]) -> None:
    """Replace the rules of requests. No row refers to one, so SQLite may write the table anew."""
    with op.batch_alter_table("admin_requests") as requests:
        for name in before:
            requests.drop_constraint(op.f(f"ck_admin_requests_{name}"), type_="check")
        for name, rule in after.items():
            requests.create_check_constraint(op.f(f"ck_admin_requests_{name}"), rule)
