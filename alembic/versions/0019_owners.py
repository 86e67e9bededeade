"""Owners: people who decide in one project alone. What two people decide about a project says which one.

Revision: 0019, after 0018.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import ID, index_where, optional

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

ALONE = "uq_admins_alone"


def upgrade() -> None:
    op.add_column("admins", *optional(ID, "project_id"))
    op.add_column("decisions", *optional(ID, "project_id"))
    for table, named in (("accounts", "account_id"), ("api_keys", "key_id")):
        op.execute(
            f"UPDATE decisions SET project_id = (SELECT project_id FROM {table} WHERE {table}.id = decisions.{named}) "
            f"WHERE project_id IS NULL AND {named} IS NOT NULL AND action IN ('raise', 'revoke')"
        )
    op.create_index("ix_decisions_project_id", "decisions", ["project_id"])
    op.drop_index(ALONE, "admins")
    index_where(ALONE, "admins", "admission", "admission = 'alone' AND project_id IS NULL", unique=True)


def downgrade() -> None:
    """Go back, unless there are owners: an older version would take them for admins of the whole installation."""
    owners = op.get_bind().execute(sa.text("SELECT count(*) FROM admins WHERE project_id IS NOT NULL")).scalar_one()
    if owners:
        raise RuntimeError(f"{owners} owners of projects would be admins of the installation in this older version.")
    op.drop_index(ALONE, "admins")
    index_where(ALONE, "admins", "admission", "admission = 'alone'", unique=True)
    op.drop_index("ix_decisions_project_id", "decisions")
    op.drop_column("decisions", "project_id")
    op.drop_column("admins", "project_id")
