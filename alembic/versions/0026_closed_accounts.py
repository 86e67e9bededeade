"""Accounts can be closed to new data.

Revision: 0026, after 0025.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import FLAG

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("accounts", sa.Column("closed", FLAG, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Go back, unless an account is closed: this older version would take new data there."""
    closed = op.get_bind().execute(sa.text("SELECT count(*) FROM accounts WHERE closed")).scalar_one()
    if closed:
        raise RuntimeError(f"{closed} accounts are closed to new data, which this older version does not know.")
    op.drop_column("accounts", "closed")
