"""What two admins decide stands in one table: requests for higher limits, and requests about admins and their keys.

Revision: 0014, after 0013.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from alembic import op

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
HOMES = {"account_id": "accounts", "asked_with": "api_keys", "decided_with": "api_keys", "requested_by": "api_keys"}
HOMES |= dict.fromkeys(("admin_id", "asked_by", "decided_by", "requested_by_admin", "decided_by_admin"), "admins")
LENGTHS = {"name": 200, "key_hash": 64, "reason": 500}


def upgrade() -> None:
    _create(
        "decisions",
        "id reason asked_by",
        "account_id name admin_id key_id key_hash asked_with decided_by decided_with",
        sa.Column("epsilon_before", sa.Double(), nullable=True),
        sa.Column("epsilon", sa.Double(), nullable=True),
        sa.Column("keys_revoked", sa.Integer(), nullable=True),
        _choice("action", "raise", "admit", "remove", "revoke"),
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
    op.create_index(op.f("ix_decisions_account_id"), "decisions", ["account_id"])
    op.execute(f"INSERT INTO decisions (action, {OF_RAISES}) SELECT 'raise', {OF_LIMITS} FROM limit_requests")
    op.execute(f"INSERT INTO decisions ({OF_ADMINS}) SELECT {OF_ADMINS} FROM admin_requests")
    op.drop_table("limit_requests")
    op.drop_table("admin_requests")


def downgrade() -> None:
    """Go back to two tables. With which keys people decided about admins is forgotten."""
    _create(
        "limit_requests",
        "id account_id reason requested_by requested_by_admin",
        "decided_by decided_by_admin",
        sa.Column("epsilon_before", sa.Double(), nullable=False),
        sa.Column("epsilon", sa.Double(), nullable=False),
        epsilon_is_raised="epsilon_before > 0 AND epsilon > epsilon_before",
        decided_by_somebody=DECIDED,
        two_keys="state != 'approved' OR decided_by != requested_by",
        two_people="state != 'approved' OR decided_by_admin IS NULL OR decided_by_admin != requested_by_admin",
    )
    op.create_index(op.f("ix_limit_requests_account_id"), "limit_requests", ["account_id"])
    _create(
        "admin_requests",
        "id name reason asked_by",
        "admin_id key_id key_hash decided_by",
        sa.Column("keys_revoked", sa.Integer(), nullable=True),
        _choice("action", "admit", "remove", "revoke"),
        names_key="(action = 'admit') = (key_hash IS NOT NULL) AND (action = 'remove') = (key_id IS NULL)",
        concerns_one="action = 'admit' OR admin_id IS NOT NULL",
        decided_by_somebody=DECIDED,
        two_people="state != 'approved' OR decided_by != asked_by",
    )
    op.execute(f"INSERT INTO limit_requests ({OF_LIMITS}) SELECT {OF_RAISES} FROM decisions WHERE action = 'raise'")
    op.execute(f"INSERT INTO admin_requests ({OF_ADMINS}) SELECT {OF_ADMINS} FROM decisions WHERE action != 'raise'")
    op.drop_table("decisions")


def _create(table: str, needed: str, optional: str, *columns: sa.Column[Any], **rules: str) -> None:
    """Create a table of requests from the names of its texts, what only it has, and its rules."""
    of_limits = table == "limit_requests"
    homes = HOMES | ({"decided_by": "api_keys"} if of_limits else {})
    texts = dict.fromkeys(needed.split(), False) | dict.fromkeys(optional.split(), True)
    op.create_table(
        table,
        *(sa.Column(name, sa.String(LENGTHS.get(name, 32)), nullable=nullable) for name, nullable in texts.items()),
        *columns,
        _choice("state", "pending", "approved", "declined"),
        sa.Column("requested_at" if of_limits else "asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}")),
        *(sa.CheckConstraint(rule, name=op.f(f"ck_{table}_{name}")) for name, rule in rules.items()),
        *(
            sa.ForeignKeyConstraint([name], [f"{homes[name]}.id"], name=op.f(f"fk_{table}_{name}"))
            for name in texts
            if name in homes
        ),
    )


def _choice(name: str, *values: str) -> sa.Column[str]:
    kind = sa.Enum(*values, name=name, native_enum=False, create_constraint=True, length=32)
    return sa.Column(name, kind, nullable=False)
