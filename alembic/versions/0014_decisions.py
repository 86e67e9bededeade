"""What two admins decide stands in one table: requests for higher limits, and requests about admins and their keys.

Revision: 0014, after 0013.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import HASH, ID, INTEGER, MOMENT, NAME, REAL, choice, create, needed, optional, reference

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# The columns of each old table, and of the new one in the same order.
OF_LIMITS = (
    "id, account_id, epsilon_before, epsilon, reason, state, requested_by, requested_by_admin, requested_at, "
    "decided_by, decided_by_admin, decided_at"
)
OF_RAISES = (
    "id, account_id, epsilon_before, epsilon, reason, state, asked_with, asked_by, asked_at, "
    "decided_with, decided_by, decided_at"
)
OF_ADMINS = (
    "id, action, name, admin_id, key_id, key_hash, reason, state, asked_by, asked_at, decided_by, decided_at, "
    "keys_revoked"
)
DECIDED = "(state = 'pending') = (decided_by IS NULL) AND (decided_by IS NULL) = (decided_at IS NULL)"
REASON = sa.String(500)


def upgrade() -> None:
    create(
        "decisions",
        *needed(ID, "id"),
        choice("action", "raise", "admit", "remove", "revoke"),
        reference("account_id", "accounts", nullable=True, index=True),
        *optional(REAL, "epsilon_before", "epsilon"),
        *optional(NAME, "name"),
        reference("admin_id", "admins", nullable=True),
        *optional(ID, "key_id"),
        *optional(HASH, "key_hash"),
        *optional(INTEGER, "keys_revoked"),
        *needed(REASON, "reason"),
        choice("state", "pending", "approved", "declined"),
        reference("asked_by", "admins"),
        reference("asked_with", "api_keys", nullable=True),
        *needed(MOMENT, "asked_at"),
        reference("decided_by", "admins", nullable=True),
        reference("decided_with", "api_keys", nullable=True),
        *optional(MOMENT, "decided_at"),
        concerns_account="(action = 'raise') = (account_id IS NOT NULL) AND (account_id IS NULL) = (epsilon IS NULL) "
        "AND (epsilon IS NULL) = (epsilon_before IS NULL) AND (epsilon IS NULL) = (name IS NOT NULL)",
        epsilon_is_raised="epsilon_before > 0 AND epsilon > epsilon_before",
        names_key="(action = 'admit') = (key_hash IS NOT NULL) "
        "AND (action IN ('admit', 'revoke')) = (key_id IS NOT NULL)",
        concerns_one="action IN ('raise', 'admit') OR admin_id IS NOT NULL",
        decided_by_somebody="(state = 'pending') = (decided_at IS NULL) "
        "AND (decided_at IS NULL) = (decided_by IS NULL AND decided_with IS NULL)",
        names_keys_or_people="CASE action WHEN 'raise' THEN asked_with IS NOT NULL AND "
        "(state = 'pending' OR decided_with IS NOT NULL) ELSE state = 'pending' OR decided_by IS NOT NULL END",
        two_people="state != 'approved' OR decided_by != asked_by",
        two_keys="state != 'approved' OR decided_with != asked_with",
    )
    op.execute(f"INSERT INTO decisions (action, {OF_RAISES}) SELECT 'raise', {OF_LIMITS} FROM limit_requests")
    op.execute(f"INSERT INTO decisions ({OF_ADMINS}) SELECT {OF_ADMINS} FROM admin_requests")
    op.drop_table("limit_requests")
    op.drop_table("admin_requests")


def downgrade() -> None:
    """Go back to two tables. With which keys people decided about admins is forgotten."""
    create(
        "limit_requests",
        *needed(ID, "id"),
        reference("account_id", "accounts", index=True),
        *needed(REAL, "epsilon_before", "epsilon"),
        *needed(REASON, "reason"),
        choice("state", "pending", "approved", "declined"),
        reference("requested_by", "api_keys"),
        *needed(MOMENT, "requested_at"),
        reference("decided_by", "api_keys", nullable=True),
        *optional(MOMENT, "decided_at"),
        reference("requested_by_admin", "admins"),
        reference("decided_by_admin", "admins", nullable=True),
        epsilon_is_raised="epsilon_before > 0 AND epsilon > epsilon_before",
        decided_by_somebody=DECIDED,
        two_keys="state != 'approved' OR decided_by != requested_by",
        two_people="state != 'approved' OR decided_by_admin IS NULL OR decided_by_admin != requested_by_admin",
    )
    create(
        "admin_requests",
        *needed(ID, "id"),
        choice("action", "admit", "remove", "revoke"),
        *needed(NAME, "name"),
        reference("admin_id", "admins", nullable=True),
        *optional(ID, "key_id"),
        *optional(HASH, "key_hash"),
        *needed(REASON, "reason"),
        choice("state", "pending", "approved", "declined"),
        reference("asked_by", "admins"),
        *needed(MOMENT, "asked_at"),
        reference("decided_by", "admins", nullable=True),
        *optional(MOMENT, "decided_at"),
        *optional(INTEGER, "keys_revoked"),
        names_key="(action = 'admit') = (key_hash IS NOT NULL) AND (action = 'remove') = (key_id IS NULL)",
        concerns_one="action = 'admit' OR admin_id IS NOT NULL",
        decided_by_somebody=DECIDED,
        two_people="state != 'approved' OR decided_by != asked_by",
    )
    op.execute(f"INSERT INTO limit_requests ({OF_LIMITS}) SELECT {OF_RAISES} FROM decisions WHERE action = 'raise'")
    op.execute(f"INSERT INTO admin_requests ({OF_ADMINS}) SELECT {OF_ADMINS} FROM decisions WHERE action != 'raise'")
    op.drop_table("decisions")
