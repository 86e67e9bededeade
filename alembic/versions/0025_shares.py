"""Releases are shared with other projects, which two people decide. A job says whose it is.

Revision: 0025, after 0024.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import ID, MOMENT, create, needed, optional, reference, replace_rule, write_schema

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

FIRST = "prj_default"
ACTIONS = ("'raise', 'admit', 'remove', 'revoke'", "'raise', 'admit', 'remove', 'revoke', 'share'")
ONE = tuple(
    f"action IN ({actions}) OR admin_id IS NOT NULL" for actions in ("'raise', 'admit'", "'raise', 'admit', 'share'")
)
RULE = "ck_decisions_concerns_release"
CONCERNS = "(action = 'share') = (release_id IS NOT NULL) AND (release_id IS NULL) = (shared_with IS NULL)"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("project_id", ID, nullable=False, server_default=FIRST))
    op.execute(
        "UPDATE jobs SET project_id = (SELECT project_id FROM accounts WHERE accounts.id = jobs.account_id) "
        f"WHERE account_id IN (SELECT id FROM accounts WHERE project_id != '{FIRST}')"
    )
    op.create_index("ix_jobs_project_id_created_at", "jobs", ["project_id", "created_at"])
    op.add_column("decisions", *optional(ID, "release_id"))
    op.add_column("decisions", *optional(ID, "shared_with"))
    replace_rule("decisions", "action", *(f"action IN ({actions})" for actions in ACTIONS))
    replace_rule("decisions", "concerns_one", *ONE)
    if op.get_bind().dialect.name == "sqlite":
        write_schema("decisions", *_texts())
    else:
        op.create_check_constraint(op.f(RULE), "decisions", sa.text(CONCERNS))
    create(
        "shares",
        *needed(ID, "id"),
        reference("release_id", "releases"),
        *needed(ID, "project_id"),
        reference("decision_id", "decisions"),
        *needed(MOMENT, "created_at"),
        *optional(MOMENT, "ended_at"),
    )
    still = sa.text("ended_at IS NULL")
    op.create_index(
        "uq_shares_open",
        "shares",
        ["release_id", "project_id"],
        unique=True,
        sqlite_where=still,
        postgresql_where=still,
    )


def downgrade() -> None:
    """Go back: nothing is shared any more. What another project has drawn would be seen by nobody, and stops this."""
    foreign = "SELECT count(*) FROM jobs WHERE account_id IS NULL AND release_id IS NOT NULL"
    drawn = op.get_bind().execute(sa.text(foreign)).scalar_one()
    if drawn:
        raise RuntimeError(f"{drawn} jobs on shared releases belong to nobody in this older version.")
    op.drop_table("shares")
    op.execute("DELETE FROM decisions WHERE action = 'share'")
    if op.get_bind().dialect.name == "sqlite":
        write_schema("decisions", *reversed(_texts()))
    else:
        op.drop_constraint(op.f(RULE), "decisions", type_="check")
    replace_rule("decisions", "concerns_one", *reversed(ONE))
    replace_rule("decisions", "action", *(f"action IN ({actions})" for actions in reversed(ACTIONS)))
    for column in ("shared_with", "release_id"):
        op.drop_column("decisions", column)
    op.drop_index("ix_jobs_project_id_created_at", "jobs")
    op.drop_column("jobs", "project_id")


def _texts() -> tuple[str, str]:
    """The column in the text of SQLite's schema, without its rule and with it."""
    return "shared_with VARCHAR(32)", f"shared_with VARCHAR(32) CONSTRAINT {RULE} CHECK ({CONCERNS})"
