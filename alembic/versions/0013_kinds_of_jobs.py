"""Kinds of jobs are listed in service.jobs.kinds alone: the database takes any word.

Revision: 0013, after 0012.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import replace_rule

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

CLOSED, ANY = "kind IN ('train', 'sample', 'evaluate', 'preview')", "kind <> ''"


def upgrade() -> None:
    replace_rule("jobs", "kind", CLOSED, ANY)


def downgrade() -> None:
    """Go back, unless there are jobs of which this older version knows nothing."""
    unknown = op.get_bind().execute(sa.text(f"SELECT count(*) FROM jobs WHERE NOT ({CLOSED})")).scalar_one()
    if unknown:
        raise RuntimeError(f"{unknown} jobs are of kinds that this older version does not know.")
    replace_rule("jobs", "kind", ANY, CLOSED)
