"""People as a sign-in provider knows them: who made a key, and which admin is which person.

Revision: 0020, after 0019.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import ID, MOMENT, NAME, create, needed, optional, replace_rule

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

RULES = {
    "admission": (
        "admission IN ('machine', 'alone', 'approved')",
        "admission IN ('machine', 'alone', 'approved', 'provider')",
    ),
    "asked_by_somebody": (
        "(admission = 'machine') = (asked_by IS NULL)",
        "(admission IN ('machine', 'provider')) = (asked_by IS NULL)",
    ),
}


def upgrade() -> None:
    create(
        "people",
        *needed(ID, "id"),
        *needed(sa.String(500), "issuer"),
        *needed(sa.String(255), "subject"),
        *needed(NAME, "name"),
        *optional(sa.String(320), "email"),
        *needed(MOMENT, "created_at", "confirmed_at", "keys_until"),
        *optional(MOMENT, "lapsed_at"),
        *optional(sa.Text(), "refresh_token"),
        *optional(MOMENT, "asked_until"),
    )
    with op.batch_alter_table("people") as people:
        people.create_unique_constraint(op.f("uq_people_issuer_subject"), ["issuer", "subject"])
    for table in ("admins", "api_keys"):
        op.add_column(table, sa.Column("person_id", ID, nullable=True))
        op.create_index(f"ix_{table}_person_id", table, ["person_id"])
    for name, (before, after) in RULES.items():
        replace_rule("admins", name, before, after)


def downgrade() -> None:
    """Go back, unless people have signed in, of whose keys this older version would ask nobody."""
    known = op.get_bind().execute(sa.text("SELECT count(*) FROM people")).scalar_one()
    if known:
        raise RuntimeError(f"{known} people have signed in, whose keys this older version would never let go.")
    for name, (before, after) in RULES.items():
        replace_rule("admins", name, after, before)
    for table in ("admins", "api_keys"):
        op.drop_index(f"ix_{table}_person_id", table)
        op.drop_column(table, "person_id")
    op.drop_table("people")
