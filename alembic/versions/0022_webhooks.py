"""Webhooks, and what is still to be told to them.

Revision: 0022, after 0021.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import ID, INTEGER, JSON, MOMENT, create, index_where, needed, optional, reference

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

SECRET = sa.String(80)


def upgrade() -> None:
    create(
        "webhooks",
        *needed(ID, "id"),
        *optional(ID, "project_id"),
        *needed(sa.String(500), "url"),
        *needed(JSON, "events"),
        *needed(SECRET, "secret"),
        *optional(SECRET, "former_secret"),
        *optional(MOMENT, "overlap_until"),
        *needed(ID, "made_by"),
        *needed(MOMENT, "created_at"),
        *optional(MOMENT, "failing_since", "disabled_at"),
        overlap_ends="(former_secret IS NULL) = (overlap_until IS NULL)",
    )
    op.create_index("ix_webhooks_project_id", "webhooks", ["project_id"])
    create(
        "deliveries",
        *needed(ID, "id"),
        reference("webhook_id", "webhooks"),
        *needed(sa.Text(), "body"),
        *needed(INTEGER, "attempts"),
        *needed(MOMENT, "created_at"),
        *optional(MOMENT, "next_at", "delivered_at"),
        attempts_not_negative="attempts >= 0",
        delivered_is_over="delivered_at IS NULL OR next_at IS NULL",
    )
    op.create_index("ix_deliveries_webhook_id", "deliveries", ["webhook_id"])
    op.create_index("ix_deliveries_created_at", "deliveries", ["created_at"])
    index_where("ix_deliveries_due", "deliveries", "next_at", "next_at IS NOT NULL")


def downgrade() -> None:
    """Go back: nobody is told anything any more."""
    op.drop_table("deliveries")
    op.drop_table("webhooks")
