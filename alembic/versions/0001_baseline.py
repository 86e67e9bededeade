"""Create the schema: all tables and constraints, and the triggers that make logs append-only.

Revision: 0001, the first. Later changes have their own revisions.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from alembic import op

revision, down_revision = "0001", None

ID, TIME = sa.String(32), sa.DateTime(timezone=True)
TYPES: dict[str, Any] = {
    "id": ID,
    "str": sa.String(),
    "text": sa.Text(),
    "bytes": sa.LargeBinary(),
    "json": sa.JSON(),
    "bool": sa.Boolean(),
    "int": sa.Integer(),
    "bigint": sa.BigInteger(),
    "float": sa.Double(),
    "time": TIME,
}
SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
# `service.identity.recording.remove_old` may delete events of the audit log that are at least 12 hours old.
OLD_EVENT = {
    "sqlite": "OLD.at < strftime('%Y-%m-%d %H:%M:%f', 'now', '-12 hours')",
    "postgresql": "OLD.at < now() - interval '12 hours'",
}
# By append-only table: the SQL condition for a row with the same key, and conditions for rows that may be deleted.
APPEND_ONLY: dict[str, tuple[str, dict[str, str]]] = {
    "entries": ("account_id = NEW.account_id AND sequence = NEW.sequence", {}),
    "checkpoints": ("sequence = NEW.sequence", {}),
    "audit_events": ("sequence = NEW.sequence OR id = NEW.id", OLD_EVENT),
}


def columns(description: str) -> list[sa.Column[Any]]:
    """Parse a description of columns, such as `email str320?, account_id ->accounts?`.

    A type is a key of TYPES, `str` with a length, or `->` with the table that the column refers to. A question mark
    allows NULL.
    """
    made = []
    for name, word in (column.split() for column in description.split(", ")):
        kind, nullable = word.removesuffix("?"), word.endswith("?")
        if kind.startswith("->"):
            made.append(sa.Column(name, ID, sa.ForeignKey(f"{kind[2:]}.id"), nullable=nullable))
        else:
            made.append(sa.Column(name, TYPES.get(kind) or sa.String(int(kind[3:])), nullable=nullable))
    return made


def choice(name: str, words: str, *, nullable: bool = False) -> sa.Column[str]:
    """Return a text column with a CHECK constraint that allows only these words."""
    kind = sa.Enum(*words.split(), name=name, native_enum=False, create_constraint=True, length=32)
    return sa.Column(name, kind, nullable=nullable)


def project() -> sa.Column[str]:
    return sa.Column("project_id", ID, nullable=False, server_default="prj_default")


def create(name: str, *parts: Any, key: str = "", indexed: str = "", **rules: str) -> None:
    """Create a table of columns, constraints, and descriptions of columns.

    `key` lists the columns of the primary key; by default, a new column `id`. `indexed` lists the columns of each
    index, such as `created_at, state created_at` for two indexes. `rules` are CHECK constraints, by name.
    """
    items = [item for part in parts for item in (columns(part) if isinstance(part, str) else [part])]
    if not key:
        key, items = "id", [*columns("id id"), *items]
    checks = [sa.CheckConstraint(rule, name=rule_name) for rule_name, rule in rules.items()]
    op.create_table(name, *items, sa.PrimaryKeyConstraint(*key.split()), *checks)
    for names in map(str.split, indexed.split(", ") if indexed else ()):
        op.create_index(f"ix_{name}_{'_'.join(names)}", name, names)


def index_where(name: str, table: str, columns: list[str], rule: str, *, unique: bool = False) -> None:
    where = sa.text(rule)
    op.create_index(name, table, columns, unique=unique, sqlite_where=where, postgresql_where=where)


def append_only_sqlite(table: str, same_place: str, removed: str) -> tuple[str, ...]:
    """Return triggers that reject changing, deleting or replacing a row; `removed` rows may be deleted."""
    refuse = f"BEGIN SELECT RAISE(ABORT, '{table} are append-only'); END"
    unless = f"WHEN NOT ({removed}) " if removed else ""
    return (
        f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} {refuse}",
        f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {unless}{refuse}",
        # INSERT OR REPLACE deletes without a delete trigger, so reject a second row with the same key first.
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "
        f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {same_place}) {refuse}",
    )


def append_only_postgresql(table: str, removed: str) -> tuple[str, ...]:
    """Return a function and triggers that reject changing or deleting a row; `removed` rows may be deleted."""
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
        "name str200, owner str200, epsilon float, delta float, rate float, base float, capacity_nano bigint",
        "spent_nano bigint, reserved_nano bigint, frozen bool, head_sequence bigint, head_hash str64, created_at time",
        "subjects_key_check str16?",
        choice("unit", "record subject"),
        choice("adjacency", "add_remove"),
        sa.Column("closed", sa.Boolean(), nullable=False, server_default=sa.false()),
        project(),
        sa.UniqueConstraint("name"),
        indexed="created_at",
        capacity_positive="capacity_nano > 0",
        delta_open_unit="delta > 0 AND delta < 1",
        epsilon_positive="epsilon > 0",
        head_sequence_positive="head_sequence >= 1",
        held_not_negative="reserved_nano >= 0",
        spent_not_negative="spent_nano >= 0",
        within_capacity="frozen OR spent_nano + reserved_nano <= capacity_nano",
    )
    create(
        "admins",
        "name str200, requested_by ->admins?, approved_by ->admins?, admitted_at time, removed_at time?",
        "project_id id?, person_id id?",
        choice("admission", "machine alone approved provider"),
        sa.UniqueConstraint("name"),
        indexed="person_id",
        approved_by_somebody="(admission = 'approved') = (approved_by IS NOT NULL)",
        requested_by_somebody="(admission IN ('machine', 'provider')) = (requested_by IS NULL)",
        two_people="approved_by IS NULL OR approved_by != requested_by",
    )
    index_where("uq_admins_alone", "admins", ["admission"], "admission = 'alone' AND project_id IS NULL", unique=True)
    create("arming_stops", "scope id, code str64, sequence bigint?, found_at time", key="scope")
    create(
        "audit_events",
        "id id, at time, action str128, object_id id?, key_id id?, admin_id id?, project_id id?",
        sa.Column("sequence", SEQUENCE, nullable=False),
        choice("outcome", "allowed refused missing failed"),
        sa.UniqueConstraint("id"),
        indexed="project_id sequence",
        key="sequence",
    )
    create(
        "checkpoints",
        "heads json, previous_hash str64, hash str64, key_id str64, signature str128, created_at time",
        sa.Column("sequence", sa.BigInteger(), nullable=False, autoincrement=False),
        key="sequence",
        sequence_positive="sequence >= 1",
    )
    create(
        "idempotency",
        "principal str200, key str200, body_hash str64, resource_id id, created_at time",
        key="principal key",
    )
    create(
        "installation",
        "id id, made_at time, clock_accepted_at time?, clock_ahead_until time?",
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
        key="number",
        only_one="number = 1",
    )
    create(
        "known_uploads",
        "project_id id, key_id id, day str10, count int",
        key="project_id key_id day",
        count_positive="count > 0",
    )
    create("outbox", "id int, task str64, args json, created_at time, sent_at time?", key="id")
    index_where("ix_outbox_unsent", "outbox", ["id"], "sent_at IS NULL")
    create(
        "people",
        "issuer str500, subject str255, name str200, email str320?, created_at time, confirmed_at time",
        "keys_until time, lapsed_at time?, refresh_token text?, asked_until time?",
        sa.UniqueConstraint("issuer", "subject"),
    )
    create("projects", "name str200, created_at time, jobs_max bigint?, turn_at time?", sa.UniqueConstraint("name"))
    create(
        "sign_ins",
        "token_sha256 str64, key_id id, created_at time, expires_at time, return_key_id id?",
        indexed="key_id",
        key="token_sha256",
    )
    create("verifications", "entries bigint, findings int, verified_at time", choice("kind", "full recent"), key="kind")
    create(
        "webhooks",
        "project_id id?, url str500, secret str80, made_by id, created_at time, failing_since time?",
        indexed="project_id",
    )
    create(
        "api_keys",
        "name str200, hash str64, scopes json, admin_id ->admins?, created_by ->api_keys?, created_at time",
        "expires_at time?, last_used_at time?, revoked_at time?, project_id id?, person_id id?",
        indexed="admin_id, created_by, person_id",
        admin_is_somebody="(CAST(scopes AS TEXT) LIKE '%\"admin\"%') = (admin_id IS NOT NULL)",
        of_a_project="admin_id IS NOT NULL OR project_id IS NOT NULL",
    )
    create(
        "invitations",
        "secret_sha256 str64, role str64, project_id id?, created_by ->api_keys, created_at time, expires_at time",
        "used_at time?, revoked_at time?, name str200?, key_id id?, key_hash str64?",
        sa.UniqueConstraint("secret_sha256"),
        indexed="project_id",
        of_a_project="project_id IS NOT NULL OR role = 'admin'",
        used_names_key="(used_at IS NULL) = (name IS NULL) AND (used_at IS NULL) = (key_id IS NULL)",
    )
    create(
        "datasets",
        "account_id ->accounts?, name str200, classes json, height int, width int, channels int, records_declared int",
        "subjects_declared int?, format str64?, joined bool, content_sha256 str64?, content_bytes bigint?",
        "vault_key_id str64?, content_name id?, content_key_id str64?, failure_code str64?, created_at time",
        "ready_at time?, upload_lease_until time?, erased_at time?",
        choice("visibility", "private public"),
        sa.Column("subjects_recognised", sa.Boolean(), nullable=False, server_default=sa.false()),
        choice("state", "declared receiving ready withdrawing deleting failed deleted"),
        sa.Column("upload_attempt", sa.Integer(), nullable=False, server_default=sa.text("0")),
        project(),
        indexed="account_id created_at, created_at, state created_at",
        image_shape="height > 0 AND width > 0 AND channels IN (1, 3)",
        private_has_account="(visibility = 'private') = (account_id IS NOT NULL)",
        ready_is_complete="state != 'ready' OR (content_sha256 IS NOT NULL AND ready_at IS NOT NULL)",
        records_positive="records_declared > 0",
        subjects_within_records=(
            "subjects_declared IS NULL OR (subjects_declared > 0 AND subjects_declared <= records_declared)"
        ),
    )
    create(
        "deliveries",
        "webhook_id ->webhooks, body text, attempts int, created_at time, next_at time?, delivered_at time?",
        "status int?",
        indexed="created_at, webhook_id",
        attempts_not_negative="attempts >= 0",
        delivered_is_over="delivered_at IS NULL OR next_at IS NULL",
    )
    index_where("ix_deliveries_due", "deliveries", ["next_at"], "next_at IS NOT NULL")
    create(
        "entries",
        "account_id ->accounts, sequence bigint, hold_id id?, job_id id?, amount_nano bigint, capacity_nano bigint",
        "spent_nano bigint, reserved_nano bigint, details json, previous_hash str64, hash str64, created_at time",
        choice("kind", "open hold arm charge capture return limit freeze accept"),
        indexed="job_id",
        key="account_id sequence",
        amount_not_negative="amount_nano >= 0",
        sequence_positive="sequence >= 1",
    )
    index_where("ix_entries_accepted", "entries", ["account_id"], "kind = 'accept'")
    index_where("uq_entries_one_hold", "entries", ["hold_id"], "kind = 'hold'", unique=True)
    index_where("uq_entries_one_terminal", "entries", ["hold_id"], "kind IN ('capture', 'return')", unique=True)
    create(
        "holds",
        "account_id ->accounts, job_id id, amount_nano bigint, charged_nano bigint, captured_nano bigint, attempt int",
        "armed_attempt int, last_sequence bigint, created_at time, updated_at time",
        choice("state", "held armed captured returned"),
        sa.UniqueConstraint("job_id"),
        indexed="account_id",
        amount_positive="amount_nano > 0",
        attempts_in_order="attempt >= 0 AND armed_attempt >= 0 AND armed_attempt <= attempt",
        captured_only_when_captured="captured_nano = 0 OR state = 'captured'",
        captured_within_hold="captured_nano >= 0 AND captured_nano <= amount_nano",
        charged_only_when_armed="charged_nano = 0 OR state IN ('armed', 'captured')",
        charged_within_hold="charged_nano >= 0 AND charged_nano <= amount_nano",
        last_sequence_after_opening="last_sequence >= 2",
    )
    index_where("ix_holds_open", "holds", ["account_id", "created_at"], "state IN ('held', 'armed')")
    create("withdrawn_subjects", "account_id ->accounts, number bigint", key="account_id number")
    create(
        "decisions",
        "account_id ->accounts?, epsilon_before float?, epsilon float?, name str200?, admin_id ->admins?, key_id id?",
        "key_hash str64?, keys_revoked int?, reason str500, requested_by ->admins, requested_with ->api_keys",
        "requested_at time, decided_by ->admins?, decided_with ->api_keys?, decided_at time?, project_id id?",
        "release_id id?, shared_with id?",
        choice("action", "raise admit remove revoke share accept"),
        choice("state", "pending approved declined"),
        indexed="account_id, project_id",
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
        two_keys="state != 'approved' OR decided_with != requested_with",
        two_people="state != 'approved' OR decided_by != requested_by",
    )
    create(
        "fingerprints",
        "digest bytes, dataset_id ->datasets, upload_attempt int",
        indexed="dataset_id",
        key="digest dataset_id upload_attempt",
        digest_length="length(digest) = 16",
    )
    create(
        "sweeps",
        "account_id ->accounts, dataset_id ->datasets, name str200, recipe str64, cost_nano bigint, created_at time",
        indexed="account_id, created_at",
        price_positive="cost_nano > 0",
    )
    create(
        "jobs",
        "kind id, account_id ->accounts?, dataset_id ->datasets?, evaluation_dataset_id ->datasets?, release_id id?",
        "recipe str64, epsilon float?, options json, plan json, attempt int, attempts_lost int, lease_owner str200?",
        "lease_until time?, cancel_requested bool, salvage_attempt int?, progress json, progress_version int",
        "hold_id ->holds?, sweep_id ->sweeps?, secret str64, created_at time, started_at time?, finished_at time?",
        choice("state", "queued running succeeded failed cancelled"),
        choice(
            "ended_early", "cancelled discarded time_limit worker_lost training_failed out_of_memory", nullable=True
        ),
        choice(
            "failure_code",
            "training_failed evaluation_failed sampling_failed dataset_unavailable release_unavailable hold_exhausted "
            "out_of_memory time_limit worker_lost ledger_unavailable internal preview_failed",
            nullable=True,
        ),
        project(),
        indexed="account_id created_at, created_at, dataset_id, evaluation_dataset_id, project_id created_at, "
        "project_id finished_at, recipe created_at, release_id, state created_at, sweep_id",
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
    index_where("ix_jobs_open", "jobs", ["created_at"], "state IN ('queued', 'running')")
    create(
        "previews",
        "job_id ->jobs, results json?, grid bytes?, created_at time, finished_at time?",
        sa.UniqueConstraint("job_id"),
        results_have_time="(results IS NULL) = (finished_at IS NULL)",
    )
    create(
        "releases",
        "job_id ->jobs, account_id ->accounts, dataset_id ->datasets, name str200, artifact_sha256 str64",
        "artifact_dir str, card json, summary json, incomplete json?, receipt json, created_at time",
        choice("kind", "generator histogram classifier"),
        sa.UniqueConstraint("job_id"),
        indexed="account_id created_at, created_at, dataset_id",
    )
    create(
        "evaluations",
        "job_id ->jobs, release_id ->releases, dataset_id ->datasets, samples int?, seed bigint, results json?",
        "confusion json?, created_at time, finished_at time?",
        sa.UniqueConstraint("job_id"),
        indexed="created_at, dataset_id, release_id",
        results_have_time="(results IS NULL) = (finished_at IS NULL)",
        samples_positive="samples IS NULL OR samples > 0",
        seed_not_negative="seed >= 0",
    )
    create(
        "samples",
        "job_id ->jobs, release_id ->releases, count int, classes json?, proportions json?, seed bigint, path str?",
        "sha256 str64?, bytes bigint?, removed_at time?, created_at time",
        choice("format", "imagefolder npz parquet webdataset"),
        sa.UniqueConstraint("job_id"),
        indexed="created_at, release_id",
        count_positive="count > 0",
        seed_not_negative="seed >= 0",
    )
    create("shares", "release_id ->releases, project_id id, decision_id ->decisions, created_at time, ended_at time?")
    index_where("uq_shares_open", "shares", ["release_id", "project_id"], "ended_at IS NULL", unique=True)

    on_sqlite = op.get_bind().dialect.name == "sqlite"
    for table, (same_place, removed) in APPEND_ONLY.items():
        if on_sqlite:
            triggers = append_only_sqlite(table, same_place, removed.get("sqlite", ""))
        else:
            triggers = append_only_postgresql(table, removed.get("postgresql", ""))
        for statement in triggers:
            op.execute(statement)
    projects = sa.table("projects", sa.column("id", ID), sa.column("name", sa.String), sa.column("created_at", TIME))
    op.execute(projects.insert().values(id="prj_default", name="default", created_at=datetime.now(UTC)))


def downgrade() -> None:
    bind = op.get_bind()
    schema = sa.MetaData()
    schema.reflect(bind)
    for table in reversed(schema.sorted_tables):
        if table.name != "alembic_version":
            op.drop_table(table.name)
    if bind.dialect.name != "sqlite":
        for name in APPEND_ONLY:
            op.execute(f"DROP FUNCTION {name}_append_only()")
