"""Create every table, and the triggers that make the ledger's entries and checkpoints append-only.

Revision: 0001, the first.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import (
    BIG,
    FLAG,
    HASH,
    ID,
    INTEGER,
    JSON,
    MOMENT,
    NAME,
    REAL,
    WORD,
    choice,
    create,
    index_where,
    needed,
    optional,
    reference,
)  # fmt: skip

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

FAILURE_CODES = (
    "training_failed", "evaluation_failed", "sampling_failed", "dataset_unavailable", "release_unavailable",
    "hold_exhausted", "out_of_memory", "out_of_disk", "time_limit", "worker_lost", "ledger_unavailable", "internal",
)  # fmt: skip
TABLES = (
    "accounts", "api_keys", "idempotency", "outbox", "datasets", "fingerprints", "entries", "holds", "checkpoints",
    "arming_stops", "verifications", "limit_requests", "sweeps", "jobs", "releases", "samples",
)  # fmt: skip

APPEND_ONLY = {
    "entries": "account_id = NEW.account_id AND sequence = NEW.sequence",
    "checkpoints": "sequence = NEW.sequence",
}


def append_only_sqlite(table: str, same_place: str) -> tuple[str, ...]:
    """Return the triggers that refuse to change, delete or replace a row."""
    refuse = f"BEGIN SELECT RAISE(ABORT, '{table} are append-only'); END"
    return (
        f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} {refuse}",
        f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {refuse}",
        # INSERT OR REPLACE deletes without firing a delete trigger, so a second row in the same place is refused first.
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "
        f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {same_place}) {refuse}",
    )


def append_only_postgresql(table: str) -> tuple[str, ...]:
    """Return the function and the triggers that refuse to change or delete a row."""
    return (
        f"CREATE FUNCTION {table}_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"RAISE EXCEPTION '{table} are append-only' USING ERRCODE = 'integrity_constraint_violation'; END $$",
        f"CREATE TRIGGER {table}_no_update_delete BEFORE UPDATE OR DELETE ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION {table}_append_only()",
        f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_append_only()",
    )


def upgrade() -> None:
    create(
        "accounts",
        *needed(ID, "id"),
        sa.Column("name", NAME, nullable=False, unique=True),
        *needed(NAME, "owner"),
        *needed(REAL, "epsilon", "delta"),
        choice("unit", "record", "subject"),
        choice("adjacency", "add_remove"),
        choice("filter", "gdp", "rdp"),
        *optional(REAL, "filter_order"),
        *needed(BIG, "capacity_nano", "spent_nano", "held_nano"),
        *needed(FLAG, "frozen"),
        *needed(BIG, "head_sequence"),
        *needed(HASH, "head_hash"),
        sa.Column("created_at", MOMENT, nullable=False, index=True),
        capacity_positive="capacity_nano > 0",
        delta_open_unit="delta > 0 AND delta < 1",
        epsilon_positive="epsilon > 0",
        within_capacity="frozen OR spent_nano + held_nano <= capacity_nano",
        head_sequence_positive="head_sequence >= 1",
        held_not_negative="held_nano >= 0",
        spent_not_negative="spent_nano >= 0",
    )
    create(
        "api_keys",
        *needed(ID, "id"),
        *needed(NAME, "name"),
        *needed(HASH, "hash"),
        *needed(JSON, "scopes"),
        reference("created_by", "api_keys", nullable=True),
        *needed(MOMENT, "created_at"),
        *optional(MOMENT, "revoked_at"),
    )
    create(
        "idempotency",
        *needed(NAME, "principal", "key"),
        *needed(HASH, "body_hash"),
        *needed(ID, "resource_id"),
        *needed(MOMENT, "created_at"),
        key=("principal", "key"),
    )
    create(
        "outbox",
        sa.Column("id", INTEGER, autoincrement=True, nullable=False),
        *needed(WORD, "task"),
        *needed(JSON, "args"),
        *needed(MOMENT, "created_at"),
        *optional(MOMENT, "sent_at"),
    )
    index_where("ix_outbox_unsent", "outbox", "id", "sent_at IS NULL")
    create(
        "datasets",
        *needed(ID, "id"),
        reference("account_id", "accounts", nullable=True, index=True),
        *needed(NAME, "name"),
        choice("visibility", "private", "public"),
        *needed(JSON, "classes"),
        *needed(INTEGER, "height", "width", "channels", "records_declared"),
        *optional(INTEGER, "subjects_declared"),
        choice("state", "declared", "receiving", "ready", "deleting", "failed", "deleted"),
        *optional(WORD, "format"),
        *needed(FLAG, "joined"),
        *optional(HASH, "content_sha256"),
        *optional(BIG, "content_bytes"),
        *optional(WORD, "failure_code"),
        sa.Column("created_at", MOMENT, nullable=False, index=True),
        *optional(MOMENT, "ready_at"),
        private_has_account="(visibility = 'private') = (account_id IS NOT NULL)",
        ready_is_complete="state != 'ready' OR (content_sha256 IS NOT NULL AND ready_at IS NOT NULL)",
        image_shape="height > 0 AND width > 0 AND channels IN (1, 3)",
        records_positive="records_declared > 0",
        subjects_within_records="subjects_declared IS NULL "
        "OR (subjects_declared > 0 AND subjects_declared <= records_declared)",
    )
    create(
        "fingerprints",
        *needed(sa.LargeBinary(16), "digest"),
        reference("account_id", "accounts"),
        key=("digest", "account_id"),
        digest_length="length(digest) = 16",
    )
    create(
        "entries",
        reference("account_id", "accounts"),
        sa.Column("sequence", BIG, autoincrement=False, nullable=False),
        choice("kind", "open", "hold", "arm", "charge", "capture", "release", "sample", "limit", "freeze"),
        *optional(ID, "hold_id"),
        sa.Column("job_id", ID, nullable=True, index=True),
        *needed(BIG, "amount_nano", "capacity_nano", "spent_nano", "held_nano"),
        *needed(JSON, "details"),
        *needed(HASH, "previous_hash", "hash"),
        *needed(MOMENT, "created_at"),
        key=("account_id", "sequence"),
        amount_not_negative="amount_nano >= 0",
        sequence_positive="sequence >= 1",
    )
    index_where("uq_entries_one_hold", "entries", "hold_id", "kind = 'hold'", unique=True)
    index_where("uq_entries_one_terminal", "entries", "hold_id", "kind IN ('capture', 'release')", unique=True)
    create(
        "holds",
        *needed(ID, "id"),
        reference("account_id", "accounts", index=True),
        sa.Column("job_id", ID, nullable=False, unique=True),
        choice("state", "held", "armed", "captured", "released"),
        *needed(BIG, "amount_nano", "charged_nano", "captured_nano"),
        *needed(INTEGER, "attempt", "armed_attempt"),
        *needed(BIG, "last_sequence"),
        *needed(MOMENT, "created_at", "updated_at"),
        captured_only_when_captured="captured_nano = 0 OR state = 'captured'",
        charged_only_when_armed="charged_nano = 0 OR state IN ('armed', 'captured')",
        amount_positive="amount_nano > 0",
        attempts_in_order="attempt >= 0 AND armed_attempt >= 0 AND armed_attempt <= attempt",
        last_sequence_after_opening="last_sequence >= 2",
        captured_within_hold="captured_nano >= 0 AND captured_nano <= amount_nano",
        charged_within_hold="charged_nano >= 0 AND charged_nano <= amount_nano",
    )
    create(
        "checkpoints",
        sa.Column("sequence", BIG, autoincrement=False, nullable=False),
        *needed(JSON, "heads"),
        *needed(HASH, "previous_hash", "hash", "key_id"),
        *needed(sa.String(128), "signature"),
        *needed(MOMENT, "created_at"),
        key=("sequence",),
        sequence_positive="sequence >= 1",
    )
    create(
        "arming_stops",
        *needed(ID, "scope"),
        *needed(WORD, "code"),
        *optional(BIG, "sequence"),
        *needed(MOMENT, "found_at"),
        key=("scope",),
    )
    create(
        "verifications",
        choice("kind", "full", "recent"),
        *needed(BIG, "entries"),
        *needed(INTEGER, "findings"),
        *needed(MOMENT, "verified_at"),
        key=("kind",),
    )
    create(
        "limit_requests",
        *needed(ID, "id"),
        reference("account_id", "accounts", index=True),
        *needed(REAL, "epsilon_before", "epsilon"),
        *needed(sa.String(500), "reason"),
        choice("state", "pending", "approved", "declined"),
        reference("requested_by", "api_keys"),
        *needed(MOMENT, "requested_at"),
        reference("decided_by", "api_keys", nullable=True),
        *optional(MOMENT, "decided_at"),
        epsilon_is_raised="epsilon_before > 0 AND epsilon > epsilon_before",
        decided_by_somebody="(state = 'pending') = (decided_by IS NULL) "
        "AND (decided_by IS NULL) = (decided_at IS NULL)",
        two_keys="state != 'approved' OR decided_by != requested_by",
    )
    create(
        "sweeps",
        *needed(ID, "id"),
        reference("account_id", "accounts", index=True),
        reference("dataset_id", "datasets"),
        *needed(NAME, "name"),
        *needed(WORD, "recipe"),
        *needed(BIG, "price_nano"),
        sa.Column("created_at", MOMENT, nullable=False, index=True),
        price_positive="price_nano > 0",
    )
    create(
        "jobs",
        *needed(ID, "id"),
        choice("kind", "train", "sample"),
        reference("account_id", "accounts", nullable=True, index=True),
        reference("dataset_id", "datasets", nullable=True, index=True),
        reference("evaluation_dataset_id", "datasets", nullable=True),
        sa.Column("release_id", ID, nullable=True, index=True),
        *needed(WORD, "recipe"),
        *optional(REAL, "epsilon"),
        *needed(JSON, "options", "plan"),
        choice("state", "queued", "running", "succeeded", "failed", "cancelled"),
        *needed(INTEGER, "attempt", "attempts_lost"),
        *optional(NAME, "lease_owner"),
        *optional(MOMENT, "lease_until"),
        *needed(FLAG, "cancel_requested"),
        *needed(JSON, "progress"),
        *needed(INTEGER, "progress_version"),
        choice("failure_code", *FAILURE_CODES, nullable=True),
        reference("hold_id", "holds", nullable=True),
        reference("sweep_id", "sweeps", nullable=True, index=True),
        *needed(HASH, "secret"),
        sa.Column("created_at", MOMENT, nullable=False, index=True),
        *optional(MOMENT, "started_at", "finished_at"),
        training_has_hold="(kind = 'train') = (hold_id IS NOT NULL)",
        failed_has_code="(state = 'failed') = (failure_code IS NOT NULL)",
        running_has_lease="(state = 'running') = (lease_until IS NOT NULL)",
        ended_has_time="(state IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL)",
        attempt_not_negative="attempt >= 0",
        lost_were_attempts="attempts_lost >= 0 AND attempts_lost <= attempt",
        epsilon_positive="epsilon IS NULL OR epsilon > 0",
    )
    index_where("ix_jobs_open", "jobs", "created_at", "state IN ('queued', 'running')")
    create(
        "releases",
        *needed(ID, "id"),
        reference("job_id", "jobs", unique=True),
        reference("account_id", "accounts", index=True),
        reference("dataset_id", "datasets", index=True),
        *needed(NAME, "name"),
        choice("kind", "generator", "histogram", "classifier"),
        *needed(HASH, "artifact_sha256"),
        *needed(sa.String(), "artifact_dir"),
        *needed(JSON, "card", "summary", "receipt"),
        sa.Column("created_at", MOMENT, nullable=False, index=True),
    )
    create(
        "samples",
        *needed(ID, "id"),
        reference("job_id", "jobs", unique=True),
        reference("release_id", "releases", index=True),
        *needed(INTEGER, "count"),
        *optional(JSON, "classes"),
        *needed(BIG, "seed"),
        choice("format", "imagefolder", "npz"),
        *optional(sa.String(), "path"),
        *optional(HASH, "sha256"),
        *optional(BIG, "bytes"),
        sa.Column("created_at", MOMENT, nullable=False, index=True),
        count_positive="count > 0",
        seed_not_negative="seed >= 0",
    )

    on_sqlite = op.get_bind().dialect.name == "sqlite"
    for table, same_place in APPEND_ONLY.items():
        for statement in append_only_sqlite(table, same_place) if on_sqlite else append_only_postgresql(table):
            op.execute(statement)


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)
    if op.get_bind().dialect.name != "sqlite":
        for table in APPEND_ONLY:
            op.execute(f"DROP FUNCTION {table}_append_only()")
