"""What an operator says about a clock that was ahead when entries of the ledger were written.

Revision: 0029, after 0028.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

_COLUMNS = ("clock_accepted_at", "clock_ahead_until")


def upgrade() -> None:
    for name in _COLUMNS:
        op.add_column("installation", sa.Column(name, sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Go back: an operator has to say again that the clock was ahead."""
    with op.batch_alter_table("installation") as table:
        for name in _COLUMNS:
            table.drop_column(name)
