"""Create every table, and the triggers that make the ledger's entries and checkpoints append-only.

Revision: 0001, the first.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    "accounts",
    "api_keys",
    "idempotency",
    "outbox",
    "datasets",
    "fingerprints",
    "entries",
    "holds",
    "checkpoints",
    "arming_stops",
    "verifications",
    "limit_requests",
    "sweeps",
    "jobs",
    "releases",
    "samples",
)

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
    op.create_table(
        "accounts",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("epsilon", sa.Double(), nullable=False),
        sa.Column("delta", sa.Double(), nullable=False),
        sa.Column(
            "unit",
            sa.Enum("record", "subject", name="unit", native_enum=False, create_constraint=True, length=32),
            nullable=False,
        ),
        sa.Column(
            "adjacency",
            sa.Enum("add_remove", name="adjacency", native_enum=False, create_constraint=True, length=32),
            nullable=False,
        ),
        sa.Column(
            "filter",
            sa.Enum("gdp", "rdp", name="filter", native_enum=False, create_constraint=True, length=32),
            nullable=False,
        ),
        sa.Column("filter_order", sa.Double(), nullable=True),
        sa.Column("capacity_nano", sa.BigInteger(), nullable=False),
        sa.Column("spent_nano", sa.BigInteger(), nullable=False),
        sa.Column("held_nano", sa.BigInteger(), nullable=False),
        sa.Column("frozen", sa.Boolean(), nullable=False),
        sa.Column("head_sequence", sa.BigInteger(), nullable=False),
        sa.Column("head_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("capacity_nano > 0", name=op.f("ck_accounts_capacity_positive")),
        sa.CheckConstraint("delta > 0 AND delta < 1", name=op.f("ck_accounts_delta_open_unit")),
        sa.CheckConstraint("epsilon > 0", name=op.f("ck_accounts_epsilon_positive")),
        sa.CheckConstraint(
            "frozen OR spent_nano + held_nano <= capacity_nano", name=op.f("ck_accounts_within_capacity")
        ),
        sa.CheckConstraint("head_sequence >= 1", name=op.f("ck_accounts_head_sequence_positive")),
        sa.CheckConstraint("held_nano >= 0", name=op.f("ck_accounts_held_not_negative")),
        sa.CheckConstraint("spent_nano >= 0", name=op.f("ck_accounts_spent_not_negative")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_accounts")),
        sa.UniqueConstraint("name", name=op.f("uq_accounts_name")),
    )
    op.create_index(op.f("ix_accounts_created_at"), "accounts", ["created_at"], unique=False)

    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_by", sa.String(length=32), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["created_by"], ["api_keys.id"], name=op.f("fk_api_keys_created_by")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_table(
        "idempotency",
        sa.Column("principal", sa.String(length=200), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("body_hash", sa.String(length=64), nullable=False),
        sa.Column("resource_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("principal", "key", name=op.f("pk_idempotency")),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("task", sa.String(length=64), nullable=False),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
    )
    op.create_index(
        "ix_outbox_unsent",
        "outbox",
        ["id"],
        unique=False,
        sqlite_where=sa.text("sent_at IS NULL"),
        postgresql_where=sa.text("sent_at IS NULL"),
    )

    op.create_table(
        "datasets",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("account_id", sa.String(length=32), nullable=True),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column(
            "visibility",
            sa.Enum("private", "public", name="visibility", native_enum=False, create_constraint=True, length=32),
            nullable=False,
        ),
        sa.Column("classes", sa.JSON(), nullable=False),
        sa.Column("height", sa.Integer(), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("channels", sa.Integer(), nullable=False),
        sa.Column("records_declared", sa.Integer(), nullable=False),
        sa.Column("subjects_declared", sa.Integer(), nullable=True),
        sa.Column(
            "state",
            sa.Enum(
                "declared",
                "receiving",
                "ready",
                "deleting",
                "failed",
                "deleted",
                name="state",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("format", sa.String(length=64), nullable=True),
        sa.Column("joined", sa.Boolean(), nullable=False),
        sa.Column("content_sha256", sa.String(length=64), nullable=True),
        sa.Column("content_bytes", sa.BigInteger(), nullable=True),
        sa.Column("failure_code", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ready_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(visibility = 'private') = (account_id IS NOT NULL)", name=op.f("ck_datasets_private_has_account")
        ),
        sa.CheckConstraint(
            "state != 'ready' OR (content_sha256 IS NOT NULL AND ready_at IS NOT NULL)",
            name=op.f("ck_datasets_ready_is_complete"),
        ),
        sa.CheckConstraint("height > 0 AND width > 0 AND channels IN (1, 3)", name=op.f("ck_datasets_image_shape")),
        sa.CheckConstraint("records_declared > 0", name=op.f("ck_datasets_records_positive")),
        sa.CheckConstraint(
            "subjects_declared IS NULL OR (subjects_declared > 0 AND subjects_declared <= records_declared)",
            name=op.f("ck_datasets_subjects_within_records"),
        ),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_datasets_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_datasets")),
    )
    op.create_index(op.f("ix_datasets_account_id"), "datasets", ["account_id"], unique=False)
    op.create_index(op.f("ix_datasets_created_at"), "datasets", ["created_at"], unique=False)

    op.create_table(
        "fingerprints",
        sa.Column("digest", sa.LargeBinary(length=16), nullable=False),
        sa.Column("account_id", sa.String(length=32), nullable=False),
        sa.CheckConstraint("length(digest) = 16", name=op.f("ck_fingerprints_digest_length")),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_fingerprints_account_id")),
        sa.PrimaryKeyConstraint("digest", "account_id", name=op.f("pk_fingerprints")),
    )

    op.create_table(
        "entries",
        sa.Column("account_id", sa.String(length=32), nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column(
            "kind",
            sa.Enum(
                "open",
                "hold",
                "arm",
                "charge",
                "capture",
                "release",
                "sample",
                "limit",
                "freeze",
                name="kind",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("hold_id", sa.String(length=32), nullable=True),
        sa.Column("job_id", sa.String(length=32), nullable=True),
        sa.Column("amount_nano", sa.BigInteger(), nullable=False),
        sa.Column("capacity_nano", sa.BigInteger(), nullable=False),
        sa.Column("spent_nano", sa.BigInteger(), nullable=False),
        sa.Column("held_nano", sa.BigInteger(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("previous_hash", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("amount_nano >= 0", name=op.f("ck_entries_amount_not_negative")),
        sa.CheckConstraint("sequence >= 1", name=op.f("ck_entries_sequence_positive")),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_entries_account_id")),
        sa.PrimaryKeyConstraint("account_id", "sequence", name=op.f("pk_entries")),
    )
    op.create_index(op.f("ix_entries_job_id"), "entries", ["job_id"], unique=False)
    op.create_index(
        "uq_entries_one_hold",
        "entries",
        ["hold_id"],
        unique=True,
        sqlite_where=sa.text("kind = 'hold'"),
        postgresql_where=sa.text("kind = 'hold'"),
    )
    op.create_index(
        "uq_entries_one_terminal",
        "entries",
        ["hold_id"],
        unique=True,
        sqlite_where=sa.text("kind IN ('capture', 'release')"),
        postgresql_where=sa.text("kind IN ('capture', 'release')"),
    )

    op.create_table(
        "holds",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("account_id", sa.String(length=32), nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column(
            "state",
            sa.Enum(
                "held",
                "armed",
                "captured",
                "released",
                name="state",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("amount_nano", sa.BigInteger(), nullable=False),
        sa.Column("charged_nano", sa.BigInteger(), nullable=False),
        sa.Column("captured_nano", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("armed_attempt", sa.Integer(), nullable=False),
        sa.Column("last_sequence", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "captured_nano = 0 OR state = 'captured'", name=op.f("ck_holds_captured_only_when_captured")
        ),
        sa.CheckConstraint(
            "charged_nano = 0 OR state IN ('armed', 'captured')", name=op.f("ck_holds_charged_only_when_armed")
        ),
        sa.CheckConstraint("amount_nano > 0", name=op.f("ck_holds_amount_positive")),
        sa.CheckConstraint(
            "attempt >= 0 AND armed_attempt >= 0 AND armed_attempt <= attempt", name=op.f("ck_holds_attempts_in_order")
        ),
        sa.CheckConstraint("last_sequence >= 2", name=op.f("ck_holds_last_sequence_after_opening")),
        sa.CheckConstraint(
            "captured_nano >= 0 AND captured_nano <= amount_nano", name=op.f("ck_holds_captured_within_hold")
        ),
        sa.CheckConstraint(
            "charged_nano >= 0 AND charged_nano <= amount_nano", name=op.f("ck_holds_charged_within_hold")
        ),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_holds_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_holds")),
        sa.UniqueConstraint("job_id", name=op.f("uq_holds_job_id")),
    )
    op.create_index(op.f("ix_holds_account_id"), "holds", ["account_id"], unique=False)

    op.create_table(
        "checkpoints",
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("heads", sa.JSON(), nullable=False),
        sa.Column("previous_hash", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("signature", sa.String(length=128), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("sequence >= 1", name=op.f("ck_checkpoints_sequence_positive")),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_checkpoints")),
    )
    op.create_table(
        "arming_stops",
        sa.Column("scope", sa.String(length=32), nullable=False),
        sa.Column("code", sa.String(length=64), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=True),
        sa.Column("found_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("scope", name=op.f("pk_arming_stops")),
    )
    op.create_table(
        "verifications",
        sa.Column(
            "kind",
            sa.Enum("full", "recent", name="kind", native_enum=False, create_constraint=True, length=32),
            nullable=False,
        ),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("findings", sa.Integer(), nullable=False),
        sa.Column("verified_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("kind", name=op.f("pk_verifications")),
    )
    op.create_table(
        "limit_requests",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("account_id", sa.String(length=32), nullable=False),
        sa.Column("epsilon_before", sa.Double(), nullable=False),
        sa.Column("epsilon", sa.Double(), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=False),
        sa.Column(
            "state",
            sa.Enum(
                "pending", "approved", "declined", name="state", native_enum=False, create_constraint=True, length=32
            ),
            nullable=False,
        ),
        sa.Column("requested_by", sa.String(length=32), nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("decided_by", sa.String(length=32), nullable=True),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "epsilon_before > 0 AND epsilon > epsilon_before", name=op.f("ck_limit_requests_epsilon_is_raised")
        ),
        sa.CheckConstraint(
            "(state = 'pending') = (decided_by IS NULL) AND (decided_by IS NULL) = (decided_at IS NULL)",
            name=op.f("ck_limit_requests_decided_by_somebody"),
        ),
        sa.CheckConstraint(
            "state != 'approved' OR decided_by != requested_by", name=op.f("ck_limit_requests_two_keys")
        ),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_limit_requests_account_id")),
        sa.ForeignKeyConstraint(["requested_by"], ["api_keys.id"], name=op.f("fk_limit_requests_requested_by")),
        sa.ForeignKeyConstraint(["decided_by"], ["api_keys.id"], name=op.f("fk_limit_requests_decided_by")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_limit_requests")),
    )
    op.create_index(op.f("ix_limit_requests_account_id"), "limit_requests", ["account_id"], unique=False)
    op.create_table(
        "sweeps",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("account_id", sa.String(length=32), nullable=False),
        sa.Column("dataset_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("recipe", sa.String(length=64), nullable=False),
        sa.Column("price_nano", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("price_nano > 0", name=op.f("ck_sweeps_price_positive")),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_sweeps_account_id")),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_sweeps_dataset_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sweeps")),
    )
    op.create_index(op.f("ix_sweeps_account_id"), "sweeps", ["account_id"], unique=False)
    op.create_index(op.f("ix_sweeps_created_at"), "sweeps", ["created_at"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column(
            "kind",
            sa.Enum("train", "sample", name="kind", native_enum=False, create_constraint=True, length=32),
            nullable=False,
        ),
        sa.Column("account_id", sa.String(length=32), nullable=True),
        sa.Column("dataset_id", sa.String(length=32), nullable=True),
        sa.Column("evaluation_dataset_id", sa.String(length=32), nullable=True),
        sa.Column("release_id", sa.String(length=32), nullable=True),
        sa.Column("recipe", sa.String(length=64), nullable=False),
        sa.Column("epsilon", sa.Double(), nullable=True),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column(
            "state",
            sa.Enum(
                "queued",
                "running",
                "succeeded",
                "failed",
                "cancelled",
                name="state",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("attempts_lost", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.String(length=200), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("progress_version", sa.Integer(), nullable=False),
        sa.Column(
            "failure_code",
            sa.Enum(
                "training_failed",
                "evaluation_failed",
                "sampling_failed",
                "dataset_unavailable",
                "release_unavailable",
                "hold_exhausted",
                "out_of_memory",
                "out_of_disk",
                "time_limit",
                "worker_lost",
                "ledger_unavailable",
                "internal",
                name="failure_code",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=True,
        ),
        sa.Column("hold_id", sa.String(length=32), nullable=True),
        sa.Column("sweep_id", sa.String(length=32), nullable=True),
        sa.Column("secret", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(kind = 'train') = (hold_id IS NOT NULL)", name=op.f("ck_jobs_training_has_hold")),
        sa.CheckConstraint("(state = 'failed') = (failure_code IS NOT NULL)", name=op.f("ck_jobs_failed_has_code")),
        sa.CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", name=op.f("ck_jobs_running_has_lease")),
        sa.CheckConstraint(
            "(state IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL)",
            name=op.f("ck_jobs_ended_has_time"),
        ),
        sa.CheckConstraint("attempt >= 0", name=op.f("ck_jobs_attempt_not_negative")),
        sa.CheckConstraint("attempts_lost >= 0 AND attempts_lost <= attempt", name=op.f("ck_jobs_lost_were_attempts")),
        sa.CheckConstraint("epsilon IS NULL OR epsilon > 0", name=op.f("ck_jobs_epsilon_positive")),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_jobs_account_id")),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_jobs_dataset_id")),
        sa.ForeignKeyConstraint(["evaluation_dataset_id"], ["datasets.id"], name=op.f("fk_jobs_evaluation_dataset_id")),
        sa.ForeignKeyConstraint(["hold_id"], ["holds.id"], name=op.f("fk_jobs_hold_id")),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweeps.id"], name=op.f("fk_jobs_sweep_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_account_id"), "jobs", ["account_id"], unique=False)
    op.create_index(op.f("ix_jobs_created_at"), "jobs", ["created_at"], unique=False)
    op.create_index(op.f("ix_jobs_dataset_id"), "jobs", ["dataset_id"], unique=False)
    op.create_index(
        "ix_jobs_open",
        "jobs",
        ["created_at"],
        unique=False,
        sqlite_where=sa.text("state IN ('queued', 'running')"),
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )
    op.create_index(op.f("ix_jobs_release_id"), "jobs", ["release_id"], unique=False)
    op.create_index(op.f("ix_jobs_sweep_id"), "jobs", ["sweep_id"], unique=False)

    op.create_table(
        "releases",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("account_id", sa.String(length=32), nullable=False),
        sa.Column("dataset_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column(
            "kind",
            sa.Enum(
                "generator",
                "histogram",
                "classifier",
                name="kind",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("artifact_sha256", sa.String(length=64), nullable=False),
        sa.Column("artifact_dir", sa.String(), nullable=False),
        sa.Column("card", sa.JSON(), nullable=False),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.Column("receipt", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_releases_account_id")),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_releases_dataset_id")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_releases_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_releases")),
        sa.UniqueConstraint("job_id", name=op.f("uq_releases_job_id")),
    )
    op.create_index(op.f("ix_releases_account_id"), "releases", ["account_id"], unique=False)
    op.create_index(op.f("ix_releases_created_at"), "releases", ["created_at"], unique=False)
    op.create_index(op.f("ix_releases_dataset_id"), "releases", ["dataset_id"], unique=False)

    op.create_table(
        "samples",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("release_id", sa.String(length=32), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("classes", sa.JSON(), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column(
            "format",
            sa.Enum("imagefolder", "npz", name="format", native_enum=False, create_constraint=True, length=32),
            nullable=False,
        ),
        sa.Column("path", sa.String(), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("count > 0", name=op.f("ck_samples_count_positive")),
        sa.CheckConstraint("seed >= 0", name=op.f("ck_samples_seed_not_negative")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_samples_job_id")),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_samples_release_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_samples")),
        sa.UniqueConstraint("job_id", name=op.f("uq_samples_job_id")),
    )
    op.create_index(op.f("ix_samples_created_at"), "samples", ["created_at"], unique=False)
    op.create_index(op.f("ix_samples_release_id"), "samples", ["release_id"], unique=False)

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
