"""Entries about facts beside the log, admins who are people, sessions that can be ended, and the ids of datasets' keys.

Keys of admins that were made before cannot be told apart by the person who holds them: they all become keys of one
identity, so that no two of them can approve what the other has asked for.

Revision: 0005, after 0004.
"""

from __future__ import annotations

import base64
import secrets
from datetime import UTC, datetime

import sqlalchemy as sa

from alembic import op
from service.db.revisions import (
    HASH,
    ID,
    MOMENT,
    NAME,
    choice,
    create,
    index_where,
    needed,
    optional,
    reference,
    replace_rule,
)

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

KINDS = "kind IN ('open', 'hold', 'arm', 'charge', 'capture', 'release', 'sample', 'limit', 'freeze')"
NEW_KINDS = KINDS.replace("'freeze')", "'freeze', 'fact')")
ADMIN_KEY = "CAST(scopes AS TEXT) LIKE '%\"admin\"%'"


def upgrade() -> None:
    replace_rule("entries", "kind", KINDS, NEW_KINDS)
    op.add_column("datasets", sa.Column("vault_key_id", sa.String(length=64), nullable=True))
    _create_tables()
    _name_legacy_admins()
    _set_people()


def downgrade() -> None:
    op.drop_table("sign_ins")
    _forget_people()
    op.drop_table("admin_requests")
    op.drop_table("admins")
    op.drop_column("datasets", "vault_key_id")
    replace_rule("entries", "kind", NEW_KINDS, KINDS)


def _create_tables() -> None:
    create(
        "admins",
        *needed(ID, "id"),
        sa.Column("name", NAME, nullable=False, unique=True),
        choice("admission", "machine", "alone", "approved"),
        reference("asked_by", "admins", nullable=True),
        reference("approved_by", "admins", nullable=True),
        *needed(MOMENT, "admitted_at"),
        *optional(MOMENT, "removed_at"),
        asked_by_somebody="(admission = 'machine') = (asked_by IS NULL)",
        approved_by_somebody="(admission = 'approved') = (approved_by IS NOT NULL)",
        two_people="approved_by IS NULL OR approved_by != asked_by",
    )
    index_where("uq_admins_alone", "admins", "admission", "admission = 'alone'", unique=True)
    create(
        "admin_requests",
        *needed(ID, "id"),
        choice("action", "admit", "remove"),
        *needed(NAME, "name"),
        reference("admin_id", "admins", nullable=True),
        *optional(ID, "key_id"),
        *optional(HASH, "key_hash"),
        *needed(sa.String(500), "reason"),
        choice("state", "pending", "approved", "declined"),
        reference("asked_by", "admins"),
        *needed(MOMENT, "asked_at"),
        reference("decided_by", "admins", nullable=True),
        *optional(MOMENT, "decided_at"),
        admission_has_key="(action = 'admit') = (key_id IS NOT NULL) AND (key_id IS NULL) = (key_hash IS NULL)",
        removes_one="action != 'remove' OR admin_id IS NOT NULL",
        decided_by_somebody="(state = 'pending') = (decided_by IS NULL) "
        "AND (decided_by IS NULL) = (decided_at IS NULL)",
        two_people="state != 'approved' OR decided_by != asked_by",
    )
    create(
        "sign_ins",
        *needed(HASH, "token_sha256"),
        sa.Column("key_id", ID, nullable=False, index=True),
        *needed(MOMENT, "created_at", "expires_at"),
        key=("token_sha256",),
    )


def _name_legacy_admins() -> None:
    """One identity for all who hold keys of admins already."""
    connection = op.get_bind()
    first = connection.execute(
        sa.text(f"SELECT count(*) FROM api_keys WHERE {ADMIN_KEY} OR id IN (SELECT requested_by FROM limit_requests)")
    ).scalar()
    if first:
        admins = sa.table(
            "admins",
            sa.column("id", sa.String),
            sa.column("name", sa.String),
            sa.column("admission", sa.String),
            sa.column("admitted_at", sa.DateTime(timezone=True)),
        )
        now = datetime.now(UTC)
        connection.execute(
            admins.insert().values(
                id=f"adm_{base64.b32encode(secrets.token_bytes(13)).decode('ascii').lower()[:20]}",
                name="first admin",
                admission="machine",
                admitted_at=now.replace(tzinfo=None) if connection.dialect.name == "sqlite" else now,
            )
        )


def _set_people() -> None:
    """Give every admin's key, and every request to raise a limit, the identity behind it."""
    the_one = "(SELECT id FROM admins)"
    with _requests_set_aside():
        with op.batch_alter_table("api_keys") as keys:
            keys.add_column(sa.Column("admin_id", sa.String(length=32), nullable=True))
            keys.create_foreign_key(op.f("fk_api_keys_admin_id"), "admins", ["admin_id"], ["id"])
        op.execute(f"UPDATE api_keys SET admin_id = {the_one} WHERE {ADMIN_KEY}")
        with op.batch_alter_table("api_keys") as keys:
            keys.create_check_constraint(
                op.f("ck_api_keys_admin_is_somebody"), f"({ADMIN_KEY}) = (admin_id IS NOT NULL)"
            )
            keys.create_index(op.f("ix_api_keys_admin_id"), ["admin_id"])
    with op.batch_alter_table("limit_requests") as requests:
        requests.add_column(sa.Column("requested_by_admin", sa.String(length=32), nullable=True))
        requests.add_column(sa.Column("decided_by_admin", sa.String(length=32), nullable=True))
        requests.create_foreign_key(
            op.f("fk_limit_requests_requested_by_admin"), "admins", ["requested_by_admin"], ["id"]
        )
        requests.create_foreign_key(op.f("fk_limit_requests_decided_by_admin"), "admins", ["decided_by_admin"], ["id"])
        requests.create_check_constraint(
            op.f("ck_limit_requests_two_people"),
            "state != 'approved' OR decided_by_admin IS NULL OR decided_by_admin != requested_by_admin",
        )
    op.execute(f"UPDATE limit_requests SET requested_by_admin = {the_one}")
    with op.batch_alter_table("limit_requests") as requests:
        requests.alter_column("requested_by_admin", existing_type=sa.String(length=32), nullable=False)


def _forget_people() -> None:
    with op.batch_alter_table("limit_requests") as requests:
        requests.drop_constraint(op.f("ck_limit_requests_two_people"), type_="check")
        for column in ("decided_by_admin", "requested_by_admin"):
            requests.drop_constraint(op.f(f"fk_limit_requests_{column}"), type_="foreignkey")
            requests.drop_column(column)
    with _requests_set_aside(), op.batch_alter_table("api_keys") as keys:
        keys.drop_index(op.f("ix_api_keys_admin_id"))
        keys.drop_constraint(op.f("ck_api_keys_admin_is_somebody"), type_="check")
        keys.drop_constraint(op.f("fk_api_keys_admin_id"), type_="foreignkey")
        keys.drop_column("admin_id")


class _requests_set_aside:
    """On SQLite a table that others refer to is written anew only while none of their rows does."""

    def __enter__(self) -> None:
        if _on_sqlite():
            op.execute("CREATE TEMP TABLE requests_aside AS SELECT * FROM limit_requests")
            op.execute("DELETE FROM limit_requests")

    def __exit__(self, *_: object) -> None:
        if _on_sqlite():
            op.execute("INSERT INTO limit_requests SELECT * FROM requests_aside")
            op.execute("DROP TABLE requests_aside")


def _on_sqlite() -> bool:
    return bool(op.get_bind().dialect.name == "sqlite")
