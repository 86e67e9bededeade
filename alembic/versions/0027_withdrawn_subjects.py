"""Subjects withdraw from their account: its datasets are written anew without them.

Revision: 0027, after 0026.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import BIG, HASH, ID, create, needed, optional, reference, replace_rule

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

STATES = tuple(
    f"state IN ({states})"
    for states in (
        "'declared', 'receiving', 'ready', 'deleting', 'failed', 'deleted'",
        "'declared', 'receiving', 'ready', 'withdrawing', 'deleting', 'failed', 'deleted'",
    )
)


def upgrade() -> None:
    op.add_column("datasets", *optional(ID, "content_name"))
    op.add_column("datasets", *optional(HASH, "content_key_id"))
    replace_rule("datasets", "state", *STATES)
    create(
        "withdrawn_subjects",
        reference("account_id", "accounts"),
        *needed(BIG, "number"),
        key=("account_id", "number"),
    )


def downgrade() -> None:
    """Go back, unless somebody has withdrawn: this older version would take their images again, and find no others."""
    withdrawn = op.get_bind().execute(sa.text("SELECT count(*) FROM withdrawn_subjects")).scalar_one()
    if withdrawn:
        raise RuntimeError("Subjects have withdrawn, of whom this older version does not know.")
    op.drop_table("withdrawn_subjects")
    replace_rule("datasets", "state", *reversed(STATES))
    for column in ("content_key_id", "content_name"):
        op.drop_column("datasets", column)
