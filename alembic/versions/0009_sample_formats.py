"""Samples may be packed as Parquet and as WebDataset.

Revision: 0009, after 0008.
"""

from __future__ import annotations

from alembic import op
from service.db.revisions import replace_rule

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

BEFORE = "format IN ('imagefolder', 'npz')"
AFTER = "format IN ('imagefolder', 'npz', 'parquet', 'webdataset')"


def upgrade() -> None:
    replace_rule("samples", "format", BEFORE, AFTER)


def downgrade() -> None:
    """Go back to the formats of 0001; samples of the others are forgotten, and can be drawn again for nothing."""
    op.execute("DELETE FROM samples WHERE format IN ('parquet', 'webdataset')")
    replace_rule("samples", "format", AFTER, BEFORE)
