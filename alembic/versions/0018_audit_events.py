"""The audit log: append-only, but for what a signed removal covers.

Revision: 0018, after 0017.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import BIG, HASH, ID, INTEGER, choice, create, needed, optional

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(INTEGER, "sqlite")
MOMENT = sa.String(32)
COVERED = "OLD.sequence <= (SELECT coalesce(max(through), 0) FROM audit_removals)"


def upgrade() -> None:
    create(
        "audit_events",
        sa.Column("sequence", NUMBER, autoincrement=False, nullable=False),
        sa.Column("id", ID, nullable=False, unique=True),
        *needed(MOMENT, "at"),
        *needed(sa.String(128), "action"),
        *optional(ID, "object_id"),
        choice("outcome", "allowed", "refused", "missing", "failed"),
        *optional(ID, "key_id", "admin_id", "project_id"),
        *needed(HASH, "previous_hash", "hash"),
        key=("sequence",),
        sequence_positive="sequence >= 1",
    )
    op.create_index("ix_audit_events_project_id_sequence", "audit_events", ["project_id", "sequence"])
    create(
        "audit_removals",
        sa.Column("number", NUMBER, autoincrement=False, nullable=False),
        *needed(BIG, "through"),
        *needed(HASH, "hash", "previous_hash"),
        *needed(MOMENT, "removed_at"),
        *needed(HASH, "key_id"),
        *needed(sa.String(128), "signature"),
        key=("number",),
        positive="number >= 1 AND through >= number",
    )
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    for table, place in (("audit_events", "sequence"), ("audit_removals", "number")):
        kept = table == "audit_removals"
        for statement in _sqlite(table, place, kept=kept) if on_sqlite else _postgresql(table, kept=kept):
            op.execute(statement)


def downgrade() -> None:
    """Go back, unless something was logged, which nothing but a retention removes."""
    logged = op.get_bind().execute(sa.text("SELECT count(*) FROM audit_events")).scalar_one()
    if logged:
        raise RuntimeError(f"{logged} events stand in the audit log, which this older version would forget.")
    op.drop_table("audit_events")
    op.drop_table("audit_removals")
    if op.get_bind().dialect.name != "sqlite":
        for table in ("audit_events", "audit_removals"):
            op.execute(f"DROP FUNCTION {table}_append_only()")


def _sqlite(table: str, place: str, *, kept: bool) -> tuple[str, ...]:
    """Triggers that refuse to change, delete or replace a row; `kept` has no row that may be deleted."""
    refuse = f"BEGIN SELECT RAISE(ABORT, '{table} are append-only'); END"
    unless = "" if kept else f"WHEN NOT ({COVERED})"
    return (
        f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} {refuse}",
        f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {unless} {refuse}",
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "
        f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {place} = NEW.{place}) {refuse}",
    )


def _postgresql(table: str, *, kept: bool) -> tuple[str, ...]:
    """The same: PostgreSQL replaces a row by changing or deleting it."""
    unless = "" if kept else f"IF TG_OP = 'DELETE' THEN IF {COVERED} THEN RETURN OLD; END IF; END IF; "
    return (
        f"CREATE FUNCTION {table}_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {unless}"
        f"RAISE EXCEPTION '{table} are append-only' USING ERRCODE = 'integrity_constraint_violation'; END $$",
        f"CREATE TRIGGER {table}_no_update_delete BEFORE UPDATE OR DELETE ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION {table}_append_only()",
        f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_append_only()",
    )
