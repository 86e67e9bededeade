"""Indexes for what lists are narrowed to: jobs by state and recipe, datasets by state and account, newest first.

Revision: 0008, after 0007.
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

NARROWED = (("jobs", "state"), ("jobs", "recipe"), ("datasets", "state"), ("datasets", "account_id"))


def upgrade() -> None:
    """Create them. One replaces an index on the account alone, which it begins with."""
    for table, column in NARROWED:
        op.create_index(f"ix_{table}_{column}_created_at", table, [column, "created_at"])
    op.drop_index("ix_datasets_account_id", table_name="datasets")


def downgrade() -> None:
    """Go back to the indexes of 0007."""
    op.create_index("ix_datasets_account_id", "datasets", ["account_id"])
    for table, column in NARROWED:
        op.drop_index(f"ix_{table}_{column}_created_at", table_name=table)
