"""Every edit of a column that the service relies on is found.

Every column of every row of a service that has done everything once is changed; on PostgreSQL, to save time, until one
row had a value there. The exceptions are listed with reasons.
"""

import json
import shutil
from datetime import timedelta
from typing import Any, Self

import pytest
from sqlalchemy import JSON, Boolean, Column, Enum, Float, String, Table, select, text
from sqlalchemy.types import Integer

from obscura.wire.words import EntryKind
from service import jobs, ledger
from service.audit.beside import find_changed_rows
from service.audit.findings import FindingCode
from service.audit.signing import trusted_keys
from service.audit.verify import verify
from service.datasets import receiving, states
from service.datasets.reading import Content, Sent
from service.datasets.vault import DatasetContext
from service.db.base import Base, CanonicalJson, UtcDateTime, new_id
from service.db.job_tables import Evaluation, FailureCode, Job
from service.db.ledger_tables import Entry
from service.db.session import SessionFactory, open_sessions, transaction
from service.errors import LedgerCorruption
from service.jobs import kinds
from service.settings import Settings
from tests.conftest import NOW, declared_row
from tests.service.audit.book import SHA, LedgerBook
from tests.service.steps import make_key

PRINTS = frozenset(number.to_bytes(16, "little") for number in range(1, 6))

# Tables whose edits are not found, with reasons.
UNVERIFIED_TABLES = {
    "alembic_version": "the schema's version: with another one the service refuses to start",
    "idempotency": "the answers to requests: without a row, a retry is a new request, which is held and paid",
    "outbox": "messages about jobs, which workers find without them as well",
    "arming_stops": "written by verification, and written again by the next one",
    "verifications": "information for operators, no proof",
    "sign_ins": "sessions of people; whoever can edit them can create keys as well",
    "api_keys": "docs/explanation/ledger-and-receipts.md says that new and edited keys are not found",
    "admins": "likewise; the log has id and name of those who asked for a raise and approved it",
    "invitations": "whoever can edit them can create keys as well",
    "projects": "names; a project decides who may read, and no budget depends on it",
    "samples": "free, and reproducible; downloads are compared by their SHA-256",
    "evaluations": "free, and reproducible from public images",
    "fingerprints": "docs/explanation/ledger-and-receipts.md says that edits are not found",
    "withdrawn_subjects": "a list beside the journals restores it at the next start",
    "webhooks": "addresses for notices; whoever can edit them can create keys as well",
    "deliveries": "notices with ids and states that readers see anyway",
    "installation": "compared with the data folder: tests/service/test_inspection.py",
    **dict.fromkeys(("audit_events", "known_uploads", "people", "previews", "shares"), "no amount depends on it"),
    "entries": "byte by byte in test_verify",
    "checkpoints": "in test_forgery",
}
# The finding that an edit gives, by table; and of columns whose edits give another one.
FOUND_AS = {
    "accounts": FindingCode.ACCOUNT_MISMATCH,
    "holds": FindingCode.HOLD_MISMATCH,
    "decisions": FindingCode.RAISE_UNAPPROVED,
    "releases": FindingCode.RELEASE_MISMATCH,
    "jobs": FindingCode.JOB_MISMATCH,
    "datasets": FindingCode.JOB_MISMATCH,
    "sweeps": FindingCode.JOB_MISMATCH,
}
FOUND_OTHERWISE = {
    ("accounts", "id"): FindingCode.ORPHAN_ENTRIES,
    ("accounts", "head_sequence"): FindingCode.ENTRY_MISSING,
    ("holds", "attempt"): FindingCode.JOB_MISMATCH,
    ("releases", "job_id"): FindingCode.RELEASE_UNPAID,
    ("releases", "receipt"): FindingCode.RECEIPT_MISMATCH,
}
# Columns whose edits are not found, with reasons.
UNVERIFIED_COLUMNS = {
    ("accounts", "project_id"): "decides who may read; no budget depends on it",
    ("accounts", "closed"): "decides whether new data is accepted; no amount depends on it",
    ("accounts", "subjects_key_check"): "refuses requests with unknown subject ids; no amount depends on it",
    ("datasets", "project_id"): "as above",
    ("jobs", "project_id"): "as above, and whose quota it uses",
    ("datasets", "content_name"): "names the file and its key; no training starts without them",
    ("datasets", "content_key_id"): "no training starts with another key",
    ("jobs", "attempts_lost"): "limits retries; no attempt spends more than the hold",
    ("jobs", "lease_owner"): "a name for operators",
    ("jobs", "lease_until"): "when the job may be claimed again; the hold's attempt fences claims",
    ("jobs", "cancel_requested"): "anyone with the scope may cancel, and cancelling refunds nothing",
    ("jobs", "ended_early"): "likewise; the release's row has the part of the plan that was made",
    ("jobs", "salvage_attempt"): "limits retries; no attempt spends more than the hold",
    ("jobs", "finished_at"): "a displayed time; its hour is compared",
    ("datasets", "upload_lease_until"): "of an upload that has ended",
    ("jobs", "progress"): "planned numbers, shown while the job runs",
    ("jobs", "progress_version"): "likewise",
    ("jobs", "started_at"): "a displayed time",
    ("datasets", "failure_code"): "of an earlier upload",
    ("decisions", "decided_at"): "a displayed time",
    ("decisions", "requested_at"): "entries have its hour; an approved request is not approved again",
    ("decisions", "project_id"): "who may see it and decide; the entry has the account and the two admins",
    **{
        ("decisions", name): "empty in requests for a raise"
        for name in ("name", "admin_id", "key_id", "key_hash", "keys_revoked", "release_id", "shared_with")
    },
}
# Rows that no entry commits to: table, condition, reason.
UNCOMMITTED_ROWS = (
    ("datasets", "visibility = 'public' AND name = 'unused'", "no job has used it; a hold commits to it later"),
    ("datasets", "state = 'declared'", "it has no content; a hold commits to its content later"),
    ("jobs", "kind IN ('sample', 'evaluate')", "it is free, and opens no private data"),
    ("decisions", "state = 'pending'", "it has raised nothing; the asking admin cannot approve it"),
    ("decisions", "action != 'raise'", "it concerns admins and keys, see the tables above"),
)


class World(LedgerBook):
    """A service that has done everything once."""

    def build(self) -> Self:
        self.open("patients", epsilon=12.0)
        self.raise_limit("patients", 13.0)
        asking, _token = self.do(make_key, name="asks", scopes=["admin"])
        more = {"account_id": self.accounts["patients"], "epsilon": 20.0, "reason": "more"}
        self.do(ledger.limits.request_raise, requested_with=asking.id, **more)
        self.private = self.upload("patients", PRINTS)
        self.test_set, self.unused = self.upload(None), self.upload(None, name="unused")
        self.upload("patients", None)
        self.published, self.failed, self.cancelled, self.running, self.queued = (self.ask() for _ in range(5))
        release_id = self.run(self.published)["statement"]["release_id"]
        self.attempt(self.failed)
        self.do(jobs.finish_failed, job_id=self.failed, attempt=1, failure_code=FailureCode.TRAINING_FAILED)
        self.do(jobs.request_cancel, job_id=self.cancelled)
        self.attempt(self.running)
        trials = [jobs.Trial(0.2, {"beta": share}) for share in (0.2, 0.1)]
        self.do(jobs.submit_sweep, name="shares", trials=trials, **self.asked())
        self.evaluate(release_id)
        self.drawn, _waiting = (self.draw(release_id) for _ in range(2))
        self.claim(self.drawn)
        facts = {"path": "samples/x/images.zip", "sha256": SHA, "bytes": 9}
        self.do(kinds.sample.KIND.finish, job_id=self.drawn, attempt=1, **facts)
        self.open("patients of the year after")
        self.run(self.ask(dataset_id=self.upload("patients of the year after", records=10_000)))
        self.accept("patients", 1000)
        return self

    def upload(
        self,
        account: str | None,
        digests: frozenset[bytes] | None = frozenset(),
        name: str = "scans",
        records: int = 60_000,
    ) -> str:
        """Declare a dataset and accept its content; `digests=None` leaves it declared."""
        account_id = None if account is None else self.accounts[account]
        row = declared_row(account_id, self.tick(), name=name, records_declared=records)
        with transaction(self.factory) as session:
            session.add(row)
        if digests is not None:
            upload = self.do(states.begin_upload, row.id, lease_seconds=60)
            key_id = new_id("x")[2:] + "0" * 44
            content = Content(upload, Sent(iter(()), "npz"), SHA, 123, digests, key_id, lambda: None)
            receiving.accept(DatasetContext(Settings(), self.factory, self.tick), content)
        return row.id

    def evaluate(self, release_id: str) -> None:
        """Finish the evaluation that was queued with the release, and leave another one queued."""
        queued = self.read(lambda session: session.scalars(select(Evaluation.job_id)).one())
        self.claim(queued)
        facts = {"results": {"accuracy": {"cnn": 0.5}}, "confusion": [[1, 2], [3, 4]]}
        self.do(kinds.evaluate.KIND.finish, job_id=queued, attempt=1, **facts)
        order = {"release_id": release_id, "dataset_id": self.test_set, "samples": 9, "seed": 3}
        self.do(jobs.submit, jobs.KINDS["evaluate"], principal="key_me", idempotency_key=None, **order)

    def asked(self) -> dict[str, Any]:
        facts = {"principal": "key_me", "idempotency_key": None, "dataset_id": self.private, "recipe": "datalens"}
        return facts | {"evaluation_dataset_id": self.test_set}

    def ask(self, **named: Any) -> str:
        order = {**self.asked(), "options": {"beta": 0.1}, "epsilon": 0.5, **named}
        return self.do(jobs.submit, jobs.KINDS["train"], **order).id

    def attempt(self, job_id: str) -> None:
        """Claim a training, arm its hold and charge a little."""
        self.claim(job_id)
        hold_id = self.job(job_id).hold_id
        self.arm(hold_id)
        self.charge(hold_id, 1)

    def run(self, job_id: str) -> dict[str, Any]:
        self.attempt(job_id)
        return self.publish(job_id)

    def draw(self, release_id: str) -> str:
        facts = {"count": 3, "classes": None, "seed": 7, "format": "npz", "release_id": release_id}
        return self.do(jobs.submit, jobs.KINDS["sample"], principal="key_me", idempotency_key=None, **facts).id

    def codes(self, session: Any) -> set[FindingCode]:
        return {code for code, _ in self.found_in(session)}


@pytest.fixture(scope="module")
def world(module_factory: SessionFactory, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(module_factory, tmp_path_factory.mktemp("world") / "var", NOW).build()


def other_value(column: Column[Any], value: Any) -> Any:
    """Return another plausible value of the column's type."""
    kind = column.type
    if isinstance(kind, Boolean):
        return not value
    if isinstance(kind, Enum):
        return next((choice for choice in kind.enums if choice != value), "another")
    if isinstance(kind, JSON | CanonicalJson):
        return json.dumps(["forged"] if isinstance(value, list) else {"forged": 1})
    if isinstance(kind, UtcDateTime):
        return (value or NOW) + timedelta(seconds=1)
    if isinstance(value, int | float) or isinstance(kind, Integer | Float):
        return (value or 0) + 1
    assert isinstance(kind, String), column
    if column.name.endswith("_id") or column.name == "id":
        return f"{str(value or 'abc_')[:4]}{'z' * 20}"
    return f"{'0' if not value or value[0] != '0' else '1'}{(value or 'x')[1:]}"


def key_of(table: Table, row: Any) -> tuple[str, dict[str, Any]]:
    """Return the condition that selects a row, and its parameters."""
    condition = " AND ".join(f"{key.name} = :key_{key.name}" for key in table.primary_key)
    return condition, {f"key_{key.name}": row._mapping[key.name] for key in table.primary_key}


def excused(session: Any, table: Table, row: Any, column: Column[Any]) -> bool:
    condition, keys = key_of(table, row)
    return (table.name, column.name) in UNVERIFIED_COLUMNS or any(
        session.execute(text(f"SELECT 1 FROM {name} WHERE {condition} AND ({rule})"), keys).first()
        for name, rule, _reason in UNCOMMITTED_ROWS
        if name == table.name
    )


def test_a_service_that_has_done_everything_has_no_findings(world):
    with transaction(world.factory, read_only=True, snapshot=True) as session:
        assert world.codes(session) == set()
        kinds = set(session.scalars(text("SELECT DISTINCT kind FROM entries")))
    assert kinds == {kind.value for kind in EntryKind} - {"freeze"}


@pytest.mark.parametrize("name", FOUND_AS)
def test_no_column_can_be_changed_unseen(world, name):
    table, missed, had_a_value, sqlite = Base.metadata.tables[name], [], set(), world.sqlite
    with world.tampered() as session:
        for row in session.execute(select(table)).all():
            condition, keys = key_of(table, row)
            for column in table.columns:
                if column in had_a_value or excused(session, table, row, column):
                    continue
                if not sqlite and row._mapping[column.name] is not None:
                    had_a_value.add(column)
                value = other_value(column, row._mapping[column.name])
                if sqlite and isinstance(column.type, UtcDateTime):
                    value = value.replace(tzinfo=None).isoformat(" ", timespec="microseconds")
                is_json = isinstance(column.type, JSON | CanonicalJson)
                cast = "CAST(:value AS JSON)" if is_json and not sqlite else ":value"
                point = session.begin_nested()
                update = text(f"UPDATE {name} SET {column.name} = {cast} WHERE {condition}")
                session.execute(update, {"value": value, **keys})
                found = world.codes(session)
                if FOUND_OTHERWISE.get((name, column.name), FOUND_AS[name]) not in found:
                    missed.append((column.name, dict(keys), str(value), found))
                point.rollback()
        assert world.codes(session) == set(), "everything was put back"
    assert not missed, "\n".join(map(str, missed))


def test_every_table_and_column_was_thought_of():
    """Every table is verified or excused, and the exceptions name only existing tables and columns."""
    tables = Base.metadata.tables
    assert set(UNVERIFIED_TABLES) - {"alembic_version"} == set(tables) - set(FOUND_AS)
    assert all(column in tables[table].c for table, column in UNVERIFIED_COLUMNS)
    assert all(table in tables and reason for table, _rule, reason in UNCOMMITTED_ROWS)


@pytest.mark.parametrize(
    "edit",
    [
        # Its exact accuracy would be published as that of a public evaluation set.
        "UPDATE datasets SET visibility = 'public', account_id = NULL WHERE name = 'scans'",
        # One account would pay for the data of another. The row contradicts only the hold.
        "UPDATE jobs SET dataset_id = evaluation_dataset_id WHERE state IN ('queued', 'running')",
    ],
)
def test_a_private_dataset_under_other_terms_is_found(world, edit):
    assert FindingCode.JOB_MISMATCH in {code for code, _ in world.found_after(edit)}


OTHER_THAN_HELD = ["dataset_id = :other", "evaluation_dataset_id = :other", "epsilon = 9.0", "recipe = 'dpgan'"]
OTHER_THAN_HELD += ["options = '{}'", "plan = '{}'", "account_id = 'acc_x'"]


@pytest.mark.parametrize(
    "edit",
    [
        *(f"UPDATE jobs SET {change} WHERE id = :job" for change in OTHER_THAN_HELD),
        "UPDATE datasets SET records_declared = 1000000 WHERE id = :dataset",
        "UPDATE datasets SET content_sha256 = '1' WHERE id = :dataset",
        "UPDATE datasets SET vault_key_id = '1' WHERE id = :dataset",
        "UPDATE datasets SET content_sha256 = '1' WHERE id = :test",
    ],
)
def test_a_training_is_compared_with_its_hold_before_anything_is_opened(world, edit):
    def compare(session: Any, secret: str) -> None:
        session.expire_all()
        ledger.require_unchanged(session, jobs.get_job(session, world.queued), secret)

    with world.tampered() as session:
        secret = str(session.execute(select(Job.secret).where(Job.id == world.queued)).scalar_one())
        compare(session, secret)
        with pytest.raises(LedgerCorruption, match=r"was changed after its price was held: .*job"):
            compare(session, "0" * 64)
        ids = {"other": world.unused, "job": world.queued, "dataset": world.private, "test": world.test_set}
        used = {name: value for name, value in ids.items() if f":{name}" in edit}
        session.execute(text(edit), used)
        with pytest.raises(LedgerCorruption, match="was changed after its price was held"):
            compare(session, secret)


def test_entries_that_are_gone_are_named_and_accuse_no_row_beside_the_log(world):
    """The rows that a missing entry mentions were not edited. On PostgreSQL, to save time, a third of the entries."""
    every = select(Entry.account_id, Entry.sequence).order_by(Entry.account_id)
    rows = world.read(lambda session: session.execute(every).all())
    for account_id, sequence in rows[:: 1 if world.sqlite else 3]:
        for which in ("=", ">="):
            gone = f"DELETE FROM entries WHERE account_id = '{account_id}' AND sequence {which} {sequence}"
            assert world.found_after(gone) == [(FindingCode.ENTRY_MISSING, sequence)], (account_id, which)


def test_a_log_that_cannot_be_read_again_accuses_no_row_beside_it(world):
    """This happens if an index hides rows that the replay has read."""
    account_id = world.accounts["patients"]
    with world.tampered() as session:
        expected = {account_id: session.query(Entry).filter_by(account_id=account_id).count()}
        session.execute(
            text("DELETE FROM entries WHERE account_id = :account AND kind = 'hold'"), {"account": account_id}
        )
        found = list(find_changed_rows(session, [account_id], expected))
    assert [finding.code for finding in found] == [FindingCode.LOG_UNREADABLE]
    assert "could not be read a second time" in found[0].message


def test_a_broken_page_of_the_log_is_reported_with_the_last_entry_before_it(tmp_path, sqlite_template):
    """Every page of entries is overwritten in turn. The rows beside the log are not accused."""
    path = tmp_path / "obscura.db"
    shutil.copyfile(sqlite_template, path)
    with open_sessions(f"sqlite:///{path}") as factory:  # the last connection writes the log of SQLite into the file
        made = World(factory, tmp_path / "var", NOW).build()
        with factory() as session:
            size = session.scalar(text("PRAGMA page_size"))
            root = session.scalar(text("SELECT rootpage FROM sqlite_master WHERE name = 'entries'"))
    sound = path.read_bytes()
    at = (root - 1) * size
    cells = int.from_bytes(sound[at + 3 : at + 5], "big")
    assert sound[at] == 5, "the table has leaves"
    places = [int.from_bytes(sound[at + 12 + 2 * n : at + 14 + 2 * n], "big") for n in range(cells)]
    leaves = [int.from_bytes(sound[at + place : at + place + 4], "big") for place in places]
    for leaf in leaves:
        path.write_bytes(sound[: (leaf - 1) * size] + b"\xff" * size + sound[leaf * size :])
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        with (
            open_sessions(f"sqlite:///{path}") as factory,
            transaction(factory, read_only=True, snapshot=True) as session,
        ):
            report = verify(session, trusted=trusted_keys(made.key_path))
        assert {finding.code for finding in report.findings} == {FindingCode.LOG_UNREADABLE}, leaf
        assert all("could not be read" in finding.message for finding in report.findings)
