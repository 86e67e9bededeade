"""Projects: accounts, datasets and keys belong to one, and all that there is to the first.

Revision: 0017, after 0016.
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa

from alembic import op
from service.db.revisions import ID, MOMENT, NAME, create, needed, write_schema

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

FIRST = "prj_default"
OWNED = ("accounts", "datasets")
RULE = "ck_api_keys_of_a_project"
BELONGS = "admin_id IS NOT NULL OR project_id IS NOT NULL"


def upgrade() -> None:
    create("projects", *needed(ID, "id"), *needed(NAME, "name"), *needed(MOMENT, "created_at"))
    with op.batch_alter_table("projects") as projects:
        projects.create_unique_constraint(op.f("uq_projects_name"), ["name"])
    made = sa.table(
        "projects", sa.column("id", sa.String), sa.column("name", sa.String), sa.column("created_at", MOMENT)
    )
    op.execute(made.insert().values(id=FIRST, name="default", created_at=datetime.now(UTC)))
    for table in OWNED:
        op.add_column(table, sa.Column("project_id", ID, nullable=False, server_default=FIRST))
    op.add_column("api_keys", sa.Column("project_id", ID, nullable=True))
    op.execute(f"UPDATE api_keys SET project_id = '{FIRST}' WHERE admin_id IS NULL")
    if op.get_bind().dialect.name == "sqlite":
        write_schema("api_keys", *_texts())
    else:
        op.create_check_constraint(op.f(RULE), "api_keys", sa.text(BELONGS))


def downgrade() -> None:
    """Go back, unless there are departments: without projects each would see what the others have."""
    others = op.get_bind().execute(sa.text(f"SELECT count(*) FROM projects WHERE id != '{FIRST}'")).scalar_one()
    if others:
        raise RuntimeError(f"{others} projects besides the first would be seen by everybody in this older version.")
    if op.get_bind().dialect.name == "sqlite":
        write_schema("api_keys", *reversed(_texts()))
    else:
        op.drop_constraint(op.f(RULE), "api_keys", type_="check")
    for table in (*OWNED, "api_keys"):
        op.drop_column(table, "project_id")
    op.drop_table("projects")


def _texts() -> tuple[str, str]:
    """The column in the text of SQLite's schema, without its rule and with it."""
    return "project_id VARCHAR(32)", f"project_id VARCHAR(32) CONSTRAINT {RULE} CHECK ({BELONGS})"
