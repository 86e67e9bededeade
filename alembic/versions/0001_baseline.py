"""Create the schema: every table, its rules, and the triggers that make logs append-only.

Revision: 0001, the first. Later changes are revisions of their own.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID, SHORT, NAME = sa.String(32), sa.String(64), sa.String(200)
INTEGER, BIG, FLAG, JSON = sa.Integer(), sa.BigInteger(), sa.Boolean(), sa.JSON()
REAL: sa.Double[float] = sa.Double()
MOMENT = sa.DateTime(timezone=True)
SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
# An event of the audit log may be deleted once it is 12 hours old; `service.identity.recording.remove_old` does that.
OLD_EVENT = {
    "sqlite": "OLD.at < strftime('%Y-%m-%d %H:%M:%f', 'now', '-12 hours')",
    "postgresql": "OLD.at < now() - interval '12 hours'",
}
# Tables whose rows never change: the rule for a row in the same place, and the rule for rows that may be deleted.
APPEND_ONLY: dict[str, tuple[str, dict[str, str]]] = {
    "entries": ("account_id = NEW.account_id AND sequence = NEW.sequence", {}),
    "checkpoints": ("sequence = NEW.sequence", {}),
    "audit_events": ("sequence = NEW.sequence OR id = NEW.id", OLD_EVENT),
}


def needed(kind: Any, *names: str) -> list[sa.Column[Any]]:
    """Return columns that are never null."""
    return [sa.Column(name, kind, nullable=False) for name in names]


def optional(kind: Any, *names: str) -> list[sa.Column[Any]]:
    """Return columns that may be null."""
    return [sa.Column(name, kind, nullable=True) for name in names]


def choice(name: str, *words: str, nullable: bool = False, rule: str | None = None) -> sa.Column[str]:
    """Return a column that holds one of some words; `rule` names its CHECK constraint."""
    kind = sa.Enum(*words, name=rule or name, native_enum=False, create_constraint=True, length=32)
    return sa.Column(name, kind, nullable=nullable)


def reference(name: str, table: str, *, nullable: bool = False, ondelete: str | None = None) -> sa.Column[str]:
    """Return a column that holds the id of a row of another table."""
    return sa.Column(name, ID, sa.ForeignKey(f"{table}.id", ondelete=ondelete), nullable=nullable)


def create(name: str, *parts: Any, key: tuple[str, ...] = ("id",), **rules: str) -> None:
    """Create a table. The rules are CHECK constraints by name."""
    checks = [sa.CheckConstraint(rule, name=rule_name) for rule_name, rule in rules.items()]
    op.create_table(name, *parts, sa.PrimaryKeyConstraint(*key), *checks)


def index_where(name: str, table: str, columns: list[str], rule: str, *, unique: bool = False) -> None:
    """Index the rows for which a rule holds."""
    where = sa.text(rule)
    op.create_index(name, table, columns, unique=unique, sqlite_where=where, postgresql_where=where)


def append_only_sqlite(table: str, same_place: str, removed: str) -> tuple[str, ...]:
    """Return the triggers that refuse to change, delete or replace a row."""
    refuse = f"BEGIN SELECT RAISE(ABORT, '{table} are append-only'); END"
    unless = f"WHEN NOT ({removed}) " if removed else ""
    return (
        f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} {refuse}",
        f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {unless}{refuse}",
        # INSERT OR REPLACE deletes without firing a delete trigger, so a second row in the same place is refused first.
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "
        f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {same_place}) {refuse}",
    )


def append_only_postgresql(table: str, removed: str) -> tuple[str, ...]:
    """Return the function and the triggers that refuse to change or delete a row."""
    unless = f"IF TG_OP = 'DELETE' THEN IF {removed} THEN RETURN OLD; END IF; END IF; " if removed else ""
    return (
        f"CREATE FUNCTION {table}_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {unless}"
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
        *needed(NAME, "name", "owner"),
        *needed(REAL, "epsilon", "delta"),
        choice("unit", "record", "subject"),
        choice("adjacency", "add_remove"),
        *needed(REAL, "rate", "base"),
        *needed(BIG, "capacity_nano", "spent_nano", "held_nano"),
        *needed(FLAG, "frozen"),
        sa.Column("closed", FLAG, nullable=False, server_default=sa.false()),
        *needed(BIG, "head_sequence"),
        *needed(SHORT, "head_hash"),
        *needed(MOMENT, "created_at"),
        sa.Column("project_id", ID, nullable=False, server_default="prj_default"),
        *optional(sa.String(16), "subjects_key_check"),
        sa.UniqueConstraint("name"),
        capacity_positive="capacity_nano > 0",
        delta_open_unit="delta > 0 AND delta < 1",
        epsilon_positive="epsilon > 0",
        head_sequence_positive="head_sequence >= 1",
        held_not_negative="held_nano >= 0",
        spent_not_negative="spent_nano >= 0",
        within_capacity="frozen OR spent_nano + held_nano <= capacity_nano",
    )
    op.create_index("ix_accounts_created_at", "accounts", ["created_at"])
    create(
        "admins",
        *needed(ID, "id"),
        *needed(NAME, "name"),
        choice("admission", "machine", "alone", "approved", "provider"),
        reference("asked_by", "admins", nullable=True),
        reference("approved_by", "admins", nullable=True),
        *needed(MOMENT, "admitted_at"),
        *optional(MOMENT, "removed_at"),
        *optional(ID, "project_id", "person_id"),
        sa.UniqueConstraint("name"),
        approved_by_somebody="(admission = 'approved') = (approved_by IS NOT NULL)",
        asked_by_somebody="(admission IN ('machine', 'provider')) = (asked_by IS NULL)",
        two_people="approved_by IS NULL OR approved_by != asked_by",
    )
    op.create_index("ix_admins_person_id", "admins", ["person_id"])
    index_where("uq_admins_alone", "admins", ["admission"], "admission = 'alone' AND project_id IS NULL", unique=True)
    create(
        "arming_stops",
        *needed(ID, "scope"),
        *needed(SHORT, "code"),
        *optional(BIG, "sequence"),
        *needed(MOMENT, "found_at"),
        key=("scope",),
    )
    create(
        "audit_events",
        sa.Column("sequence", SEQUENCE, nullable=False),
        *needed(ID, "id"),
        *needed(MOMENT, "at"),
        *needed(sa.String(128), "action"),
        *optional(ID, "object_id"),
        choice("outcome", "allowed", "refused", "missing", "failed"),
        *optional(ID, "key_id", "admin_id", "project_id"),
        sa.UniqueConstraint("id"),
        key=("sequence",),
    )
    op.create_index("ix_audit_events_project_id_sequence", "audit_events", ["project_id", "sequence"])
    create(
        "checkpoints",
        sa.Column("sequence", BIG, nullable=False, autoincrement=False),
        *needed(JSON, "heads"),
        *needed(SHORT, "previous_hash", "hash", "key_id"),
        *needed(sa.String(128), "signature"),
        *needed(MOMENT, "created_at"),
        key=("sequence",),
        sequence_positive="sequence >= 1",
    )
    create(
        "idempotency",
        *needed(NAME, "principal", "key"),
        *needed(SHORT, "body_hash"),
        *needed(ID, "resource_id"),
        *needed(MOMENT, "created_at"),
        key=("principal", "key"),
    )
    create(
        "installation",
        sa.Column("number", INTEGER, nullable=False, autoincrement=False),
        *needed(ID, "id"),
        *needed(MOMENT, "made_at"),
        *optional(MOMENT, "clock_accepted_at", "clock_ahead_until"),
        key=("number",),
        only_one="number = 1",
    )
    create(
        "known_uploads",
        *needed(ID, "project_id", "key_id"),
        *needed(sa.String(10), "day"),
        *needed(INTEGER, "count"),
        key=("project_id", "key_id", "day"),
        count_positive="count > 0",
    )
    create(
        "outbox",
        sa.Column("id", INTEGER, nullable=False),
        *needed(SHORT, "task"),
        *needed(JSON, "args"),
        *needed(MOMENT, "created_at"),
        *optional(MOMENT, "sent_at"),
    )
    index_where("ix_outbox_unsent", "outbox", ["id"], "sent_at IS NULL")
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
        sa.UniqueConstraint("issuer", "subject"),
    )
    create(
        "projects",
        *needed(ID, "id"),
        *needed(NAME, "name"),
        *needed(MOMENT, "created_at"),
        *optional(BIG, "jobs_max"),
        *optional(MOMENT, "turn_at"),
        sa.UniqueConstraint("name"),
    )
    create(
        "sign_ins",
        *needed(SHORT, "token_sha256"),
        *needed(ID, "key_id"),
        *needed(MOMENT, "created_at", "expires_at"),
        key=("token_sha256",),
    )
    op.create_index("ix_sign_ins_key_id", "sign_ins", ["key_id"])
    create(
        "verifications",
        choice("kind", "full", "recent"),
        *needed(BIG, "entries"),
        *needed(INTEGER, "findings"),
        *needed(MOMENT, "verified_at"),
        key=("kind",),
    )
    create(
        "webhooks",
        *needed(ID, "id"),
        *optional(ID, "project_id"),
        *needed(sa.String(500), "url"),
        *needed(sa.String(80), "secret"),
        *needed(ID, "made_by"),
        *needed(MOMENT, "created_at"),
        *optional(MOMENT, "failing_since"),
    )
    op.create_index("ix_webhooks_project_id", "webhooks", ["project_id"])
    create(
        "api_keys",
        *needed(ID, "id"),
        *needed(NAME, "name"),
        *needed(SHORT, "hash"),
        *needed(JSON, "scopes"),
        reference("admin_id", "admins", nullable=True),
        reference("created_by", "api_keys", nullable=True),
        *needed(MOMENT, "created_at"),
        *optional(MOMENT, "expires_at", "last_used_at", "revoked_at"),
        *optional(ID, "project_id", "person_id"),
        admin_is_somebody="(CAST(scopes AS TEXT) LIKE '%\"admin\"%') = (admin_id IS NOT NULL)",
        of_a_project="admin_id IS NOT NULL OR project_id IS NOT NULL",
    )
    op.create_index("ix_api_keys_admin_id", "api_keys", ["admin_id"])
    op.create_index("ix_api_keys_created_by", "api_keys", ["created_by"])
    op.create_index("ix_api_keys_person_id", "api_keys", ["person_id"])
    create(
        "datasets",
        *needed(ID, "id"),
        reference("account_id", "accounts", nullable=True),
        *needed(NAME, "name"),
        choice("visibility", "private", "public"),
        *needed(JSON, "classes"),
        *needed(INTEGER, "height", "width", "channels", "records_declared"),
        *optional(INTEGER, "subjects_declared"),
        sa.Column("subjects_recognised", FLAG, nullable=False, server_default=sa.false()),
        choice("state", "declared", "receiving", "ready", "withdrawing", "deleting", "failed", "deleted"),
        *optional(SHORT, "format"),
        *needed(FLAG, "joined"),
        *optional(SHORT, "content_sha256"),
        *optional(BIG, "content_bytes"),
        *optional(SHORT, "vault_key_id"),
        *optional(ID, "content_name"),
        *optional(SHORT, "content_key_id", "failure_code"),
        *needed(MOMENT, "created_at"),
        *optional(MOMENT, "ready_at"),
        sa.Column("upload_attempt", INTEGER, nullable=False, server_default=sa.text("0")),
        *optional(MOMENT, "upload_lease_until"),
        *optional(MOMENT, "erased_at"),
        sa.Column("project_id", ID, nullable=False, server_default="prj_default"),
        image_shape="height > 0 AND width > 0 AND channels IN (1, 3)",
        private_has_account="(visibility = 'private') = (account_id IS NOT NULL)",
        ready_is_complete="state != 'ready' OR (content_sha256 IS NOT NULL AND ready_at IS NOT NULL)",
        records_positive="records_declared > 0",
        subjects_within_records=(
            "subjects_declared IS NULL OR (subjects_declared > 0 AND subjects_declared <= records_declared)"
        ),
    )
    op.create_index("ix_datasets_account_id_created_at", "datasets", ["account_id", "created_at"])
    op.create_index("ix_datasets_created_at", "datasets", ["created_at"])
    op.create_index("ix_datasets_state_created_at", "datasets", ["state", "created_at"])
    create(
        "deliveries",
        *needed(ID, "id"),
        reference("webhook_id", "webhooks"),
        *needed(sa.Text(), "body"),
        *needed(INTEGER, "attempts"),
        *needed(MOMENT, "created_at"),
        *optional(MOMENT, "next_at", "delivered_at"),
        attempts_not_negative="attempts >= 0",
        delivered_is_over="delivered_at IS NULL OR next_at IS NULL",
    )
    op.create_index("ix_deliveries_created_at", "deliveries", ["created_at"])
    index_where("ix_deliveries_due", "deliveries", ["next_at"], "next_at IS NOT NULL")
    op.create_index("ix_deliveries_webhook_id", "deliveries", ["webhook_id"])
    create(
        "entries",
        reference("account_id", "accounts"),
        sa.Column("sequence", BIG, nullable=False, autoincrement=False),
        choice("kind", "open", "hold", "arm", "charge", "capture", "release", "limit", "freeze", "accept"),
        *optional(ID, "hold_id", "job_id"),
        *needed(BIG, "amount_nano", "capacity_nano", "spent_nano", "held_nano"),
        *needed(JSON, "details"),
        *needed(SHORT, "previous_hash", "hash"),
        *needed(MOMENT, "created_at"),
        key=("account_id", "sequence"),
        amount_not_negative="amount_nano >= 0",
        sequence_positive="sequence >= 1",
    )
    op.create_index("ix_entries_job_id", "entries", ["job_id"])
    index_where("ix_entries_accepted", "entries", ["account_id"], "kind = 'accept'")
    index_where("uq_entries_one_hold", "entries", ["hold_id"], "kind = 'hold'", unique=True)
    index_where("uq_entries_one_terminal", "entries", ["hold_id"], "kind IN ('capture', 'release')", unique=True)
    create(
        "holds",
        *needed(ID, "id"),
        reference("account_id", "accounts"),
        *needed(ID, "job_id"),
        choice("state", "held", "armed", "captured", "released"),
        *needed(BIG, "amount_nano", "charged_nano", "captured_nano"),
        *needed(INTEGER, "attempt", "armed_attempt"),
        *needed(BIG, "last_sequence"),
        *needed(MOMENT, "created_at", "updated_at"),
        sa.UniqueConstraint("job_id"),
        amount_positive="amount_nano > 0",
        attempts_in_order="attempt >= 0 AND armed_attempt >= 0 AND armed_attempt <= attempt",
        captured_only_when_captured="captured_nano = 0 OR state = 'captured'",
        captured_within_hold="captured_nano >= 0 AND captured_nano <= amount_nano",
        charged_only_when_armed="charged_nano = 0 OR state IN ('armed', 'captured')",
        charged_within_hold="charged_nano >= 0 AND charged_nano <= amount_nano",
        last_sequence_after_opening="last_sequence >= 2",
    )
    op.create_index("ix_holds_account_id", "holds", ["account_id"])
    index_where("ix_holds_open", "holds", ["account_id", "created_at"], "state IN ('held', 'armed')")
    create(
        "withdrawn_subjects",
        reference("account_id", "accounts"),
        sa.Column("number", BIG, nullable=False, autoincrement=False),
        key=("account_id", "number"),
    )
    create(
        "decisions",
        *needed(ID, "id"),
        choice("action", "raise", "admit", "remove", "revoke", "share", "accept"),
        reference("account_id", "accounts", nullable=True),
        *optional(REAL, "epsilon_before", "epsilon"),
        *optional(NAME, "name"),
        reference("admin_id", "admins", nullable=True),
        *optional(ID, "key_id"),
        *optional(SHORT, "key_hash"),
        *optional(INTEGER, "keys_revoked"),
        *needed(sa.String(500), "reason"),
        choice("state", "pending", "approved", "declined"),
        reference("asked_by", "admins"),
        reference("asked_with", "api_keys"),
        *needed(MOMENT, "asked_at"),
        reference("decided_by", "admins", nullable=True),
        reference("decided_with", "api_keys", nullable=True),
        *optional(MOMENT, "decided_at"),
        *optional(ID, "project_id", "release_id", "shared_with"),
        concerns_account=(
            "(action = 'raise') = (account_id IS NOT NULL) AND (account_id IS NULL) = (epsilon IS NULL) AND "
            "(epsilon IS NULL) = (epsilon_before IS NULL) AND (epsilon IS NULL) = (name IS NOT NULL)"
        ),
        concerns_one="action IN ('raise', 'admit', 'share', 'accept') OR admin_id IS NOT NULL",
        concerns_release=(
            "(action = 'share') = (release_id IS NOT NULL) AND (release_id IS NULL) = (shared_with IS NULL)"
        ),
        decided_by_somebody=(
            "(state = 'pending') = (decided_at IS NULL) AND (decided_at IS NULL) = (decided_by IS NULL) AND "
            "(decided_by IS NULL) = (decided_with IS NULL)"
        ),
        epsilon_is_raised="epsilon_before > 0 AND epsilon > epsilon_before",
        names_key=(
            "(action = 'admit') = (key_hash IS NOT NULL) AND (action IN ('admit', 'revoke')) = (key_id IS NOT NULL)"
        ),
        two_keys="state != 'approved' OR decided_with != asked_with",
        two_people="state != 'approved' OR decided_by != asked_by",
    )
    op.create_index("ix_decisions_account_id", "decisions", ["account_id"])
    op.create_index("ix_decisions_project_id", "decisions", ["project_id"])
    create(
        "fingerprints",
        *needed(sa.LargeBinary(), "digest"),
        reference("dataset_id", "datasets"),
        sa.Column("upload_attempt", INTEGER, nullable=False, autoincrement=False),
        key=("digest", "dataset_id", "upload_attempt"),
        digest_length="length(digest) = 16",
    )
    op.create_index("ix_fingerprints_dataset_id", "fingerprints", ["dataset_id"])
    create(
        "sweeps",
        *needed(ID, "id"),
        reference("account_id", "accounts"),
        reference("dataset_id", "datasets"),
        *needed(NAME, "name"),
        *needed(SHORT, "recipe"),
        *needed(BIG, "price_nano"),
        *needed(MOMENT, "created_at"),
        price_positive="price_nano > 0",
    )
    op.create_index("ix_sweeps_account_id", "sweeps", ["account_id"])
    op.create_index("ix_sweeps_created_at", "sweeps", ["created_at"])
    create(
        "jobs",
        *needed(ID, "id", "kind"),
        reference("account_id", "accounts", nullable=True),
        reference("dataset_id", "datasets", nullable=True),
        reference("evaluation_dataset_id", "datasets", nullable=True),
        *optional(ID, "release_id"),
        *needed(SHORT, "recipe"),
        *optional(REAL, "epsilon"),
        *needed(JSON, "options", "plan"),
        choice("state", "queued", "running", "succeeded", "failed", "cancelled"),
        *needed(INTEGER, "attempt", "attempts_lost"),
        *optional(NAME, "lease_owner"),
        *optional(MOMENT, "lease_until"),
        *needed(FLAG, "cancel_requested"),
        choice(
            "ended_early",
            "cancelled",
            "discarded",
            "time_limit",
            "worker_lost",
            "training_failed",
            "out_of_memory",
            nullable=True,
        ),
        *optional(INTEGER, "salvage_attempt"),
        *needed(JSON, "progress"),
        *needed(INTEGER, "progress_version"),
        choice(
            "failure_code",
            "training_failed",
            "evaluation_failed",
            "sampling_failed",
            "dataset_unavailable",
            "release_unavailable",
            "hold_exhausted",
            "out_of_memory",
            "time_limit",
            "worker_lost",
            "ledger_unavailable",
            "internal",
            "preview_failed",
            nullable=True,
        ),
        reference("hold_id", "holds", nullable=True),
        reference("sweep_id", "sweeps", nullable=True),
        *needed(SHORT, "secret"),
        *needed(MOMENT, "created_at"),
        *optional(MOMENT, "started_at", "finished_at"),
        sa.Column("project_id", ID, nullable=False, server_default="prj_default"),
        attempt_not_negative="attempt >= 0",
        ended_has_time="(state IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL)",
        epsilon_positive="epsilon IS NULL OR epsilon > 0",
        failed_has_code="(state = 'failed') = (failure_code IS NOT NULL)",
        kind="kind <> ''",
        lost_were_attempts="attempts_lost >= 0 AND attempts_lost <= attempt",
        running_has_lease="(state = 'running') = (lease_until IS NOT NULL)",
        salvage_ended_early="salvage_attempt IS NULL OR ended_early IS NOT NULL",
        training_ends_early="ended_early IS NULL OR kind = 'train'",
        training_has_hold="(kind = 'train') = (hold_id IS NOT NULL)",
    )
    op.create_index("ix_jobs_account_id_created_at", "jobs", ["account_id", "created_at"])
    op.create_index("ix_jobs_created_at", "jobs", ["created_at"])
    op.create_index("ix_jobs_dataset_id", "jobs", ["dataset_id"])
    op.create_index("ix_jobs_evaluation_dataset_id", "jobs", ["evaluation_dataset_id"])
    index_where("ix_jobs_open", "jobs", ["created_at"], "state IN ('queued', 'running')")
    op.create_index("ix_jobs_project_id_created_at", "jobs", ["project_id", "created_at"])
    op.create_index("ix_jobs_project_id_finished_at", "jobs", ["project_id", "finished_at"])
    op.create_index("ix_jobs_recipe_created_at", "jobs", ["recipe", "created_at"])
    op.create_index("ix_jobs_release_id", "jobs", ["release_id"])
    op.create_index("ix_jobs_state_created_at", "jobs", ["state", "created_at"])
    op.create_index("ix_jobs_sweep_id", "jobs", ["sweep_id"])
    create(
        "previews",
        *needed(ID, "id"),
        reference("job_id", "jobs"),
        *optional(JSON, "results"),
        *optional(sa.LargeBinary(), "grid"),
        *needed(MOMENT, "created_at"),
        *optional(MOMENT, "finished_at"),
        sa.UniqueConstraint("job_id"),
        results_have_time="(results IS NULL) = (finished_at IS NULL)",
    )
    create(
        "releases",
        *needed(ID, "id"),
        reference("job_id", "jobs"),
        reference("account_id", "accounts"),
        reference("dataset_id", "datasets"),
        *needed(NAME, "name"),
        choice("kind", "generator", "histogram", "classifier"),
        *needed(SHORT, "artifact_sha256"),
        *needed(sa.String(), "artifact_dir"),
        *needed(JSON, "card", "summary"),
        *optional(JSON, "incomplete"),
        *needed(JSON, "receipt"),
        *needed(MOMENT, "created_at"),
        sa.UniqueConstraint("job_id"),
    )
    op.create_index("ix_releases_account_id_created_at", "releases", ["account_id", "created_at"])
    op.create_index("ix_releases_created_at", "releases", ["created_at"])
    op.create_index("ix_releases_dataset_id", "releases", ["dataset_id"])
    create(
        "evaluations",
        *needed(ID, "id"),
        reference("job_id", "jobs"),
        reference("release_id", "releases"),
        reference("dataset_id", "datasets"),
        *optional(INTEGER, "samples"),
        *needed(BIG, "seed"),
        *optional(JSON, "results", "confusion"),
        *needed(MOMENT, "created_at"),
        *optional(MOMENT, "finished_at"),
        sa.UniqueConstraint("job_id"),
        results_have_time="(results IS NULL) = (finished_at IS NULL)",
        samples_positive="samples IS NULL OR samples > 0",
        seed_not_negative="seed >= 0",
    )
    op.create_index("ix_evaluations_created_at", "evaluations", ["created_at"])
    op.create_index("ix_evaluations_dataset_id", "evaluations", ["dataset_id"])
    op.create_index("ix_evaluations_release_id", "evaluations", ["release_id"])
    create(
        "samples",
        *needed(ID, "id"),
        reference("job_id", "jobs"),
        reference("release_id", "releases"),
        *needed(INTEGER, "count"),
        *optional(JSON, "classes", "proportions"),
        *needed(BIG, "seed"),
        choice("format", "imagefolder", "npz", "parquet", "webdataset"),
        *optional(sa.String(), "path"),
        *optional(SHORT, "sha256"),
        *optional(BIG, "bytes"),
        *optional(MOMENT, "removed_at"),
        *needed(MOMENT, "created_at"),
        sa.UniqueConstraint("job_id"),
        count_positive="count > 0",
        seed_not_negative="seed >= 0",
    )
    op.create_index("ix_samples_created_at", "samples", ["created_at"])
    op.create_index("ix_samples_release_id", "samples", ["release_id"])
    create(
        "shares",
        *needed(ID, "id"),
        reference("release_id", "releases"),
        *needed(ID, "project_id"),
        reference("decision_id", "decisions"),
        *needed(MOMENT, "created_at"),
        *optional(MOMENT, "ended_at"),
    )
    index_where("uq_shares_open", "shares", ["release_id", "project_id"], "ended_at IS NULL", unique=True)

    on_sqlite = op.get_bind().dialect.name == "sqlite"
    for table, (same_place, removed) in APPEND_ONLY.items():
        if on_sqlite:
            triggers = append_only_sqlite(table, same_place, removed.get("sqlite", ""))
        else:
            triggers = append_only_postgresql(table, removed.get("postgresql", ""))
        for statement in triggers:
            op.execute(statement)
    projects = sa.table("projects", sa.column("id", ID), sa.column("name", NAME), sa.column("created_at", MOMENT))
    op.execute(projects.insert().values(id="prj_default", name="default", created_at=datetime.now(UTC)))


def downgrade() -> None:
    bind = op.get_bind()
    found = sa.MetaData()
    found.reflect(bind)
    for table in reversed(found.sorted_tables):
        if table.name != "alembic_version":
            op.drop_table(table.name)
    if bind.dialect.name != "sqlite":
        for name in APPEND_ONLY:
            op.execute(f"DROP FUNCTION {name}_append_only()")
