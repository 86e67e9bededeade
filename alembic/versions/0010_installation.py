"""A database knows the data folder that it belongs to by an id that both hold. The first start writes it.

Revision: 0010, after 0009.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import ID, MOMENT, create, needed

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make room for one id."""
    number = sa.Column("number", sa.Integer(), autoincrement=False, nullable=False)
    create(
        "installation", number, *needed(ID, "id"), *needed(MOMENT, "made_at"), key=("number",), only_one="number = 1"
    )


def downgrade() -> None:
    """Forget it; move the file `installation` out of the data folder, so that a later upgrade makes a new one."""
    op.drop_table("installation")
