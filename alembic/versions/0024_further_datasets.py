"""Trainings on several datasets: a job may have a hold on each of several accounts. Subjects may be known again.

Revision: 0024, after 0023.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import FLAG, INTEGER, JSON, create, needed, optional, reference, replace_unique

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    replace_unique("holds", ("job_id",), ("job_id", "account_id"))
    create(
        "further_datasets",
        reference("job_id", "jobs"),
        *needed(INTEGER, "position"),
        reference("dataset_id", "datasets", index=True),
        reference("account_id", "accounts", index=True),
        *optional(JSON, "receipt"),
        key=("job_id", "position"),
        position_after_first="position >= 2",
    )
    op.add_column("datasets", sa.Column("subjects_recognised", FLAG, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Go back, unless a training read several datasets: this older version would count one of its holds alone."""
    further = op.get_bind().execute(sa.text("SELECT count(*) FROM further_datasets")).scalar_one()
    if further:
        raise RuntimeError(f"{further} datasets were read with others, which this older version does not know.")
    op.drop_column("datasets", "subjects_recognised")
    op.drop_table("further_datasets")
    replace_unique("holds", ("job_id", "account_id"), ("job_id",))
