"""A noisy count of records may be paid for: a kind of entry that spends at once, without a hold.

Revision: 0012, after 0011.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import replace_rule

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

BEFORE = "kind IN ('open', 'hold', 'arm', 'charge', 'capture', 'release', 'sample', 'limit', 'freeze', 'fact')"
AFTER = BEFORE.replace("'fact')", "'fact', 'count')")


def upgrade() -> None:
    replace_rule("entries", "kind", BEFORE, AFTER)


def downgrade() -> None:
    """Go back, unless a count was paid for: what was spent stays in the log, which nothing changes."""
    paid = op.get_bind().execute(sa.text("SELECT count(*) FROM entries WHERE kind = 'count'")).scalar_one()
    if paid:
        raise RuntimeError(f"{paid} counts of records stand in the ledger, which this older version cannot read.")
    replace_rule("entries", "kind", AFTER, BEFORE)
