"""The audit log's chain: what is changed, removed or moved in it is found, and old events leave a signed end. Both
databases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError
from typer.testing import CliRunner

from obscura.cli import app as cli
from obscura.wire.words import Outcome
from service.access import Principal, Scope
from service.audit import events
from service.audit.events import AuditLogBroken, EventReport, remove_old, verify_events
from service.audit.signing import make_signing_key, trusted_keys
from service.db.audit_tables import AuditEvent, AuditRemoval
from service.db.session import SessionFactory, transaction
from service.recording import append, event_of
from service.settings import Settings
from tests.conftest import APPEND_ONLY, NOW

DAYS = 30


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    return Settings(data_dir=tmp_path / "var", database_url=database_url, audit_log="on", audit_log_days=DAYS)


@pytest.fixture
def log(factory: SessionFactory, settings: Settings) -> SessionFactory:
    """Twelve events, one an hour, in transactions of three."""
    make_signing_key(settings.ledger_key_path)
    caller = Principal("key_a", frozenset({Scope.READ}), None, "prj_default")
    for start in range(0, 12, 3):
        with transaction(factory) as session:
            append(
                session,
                [
                    event_of(caller, "GET /v1/jobs/{job_id}", f"job_{number}", Outcome.ALLOWED, at=NOW + number * HOUR)
                    for number in range(start, start + 3)
                ],
            )
    return factory


HOUR = timedelta(hours=1)


def verified(factory: SessionFactory, settings: Settings, export: Path | None = None) -> EventReport:
    with transaction(factory, read_only=True, snapshot=True) as session:
        return verify_events(session, trusted_keys(settings.ledger_key_path), export)


@contextmanager
def without_triggers(factory: SessionFactory) -> Iterator[Any]:
    """Change the tables as whoever owns the database can."""
    with transaction(factory) as session:
        sqlite = session.get_bind().dialect.name == "sqlite"
        kept = []
        if sqlite:
            kept = session.execute(text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")).all()
            for name, _ in kept:
                session.execute(text(f"DROP TRIGGER {name}"))
        else:
            for table in APPEND_ONLY:
                session.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
        yield session
        for _, sql in kept:
            session.execute(text(sql))
        if not sqlite:
            for table in APPEND_ONLY:
                session.execute(text(f"ALTER TABLE {table} ENABLE TRIGGER USER"))


def test_a_log_that_nobody_touched_is_sound(log, settings):
    report = verified(log, settings)
    assert (report.findings, report.events, report.newest[0]) == ([], 12, 12)


@pytest.mark.parametrize("column", [column.name for column in AuditEvent.__table__.columns])
def test_any_column_of_any_event_that_was_changed_is_found(log, settings, column):
    other = {"sequence": "sequence + 100", "outcome": "'refused'", "at": "'2030-01-02T03:04:05.678902+00:00'"}
    for sequence in (1, 6, 12):
        with transaction(log, read_only=True) as session:
            before = session.execute(select(AuditEvent.__table__).where(AuditEvent.sequence == sequence)).one()
        with without_triggers(log) as session:
            new = other.get(column, "'x'")
            session.execute(text(f"UPDATE audit_events SET {column} = {new} WHERE sequence = {sequence}"))
        (finding,) = verified(log, settings).findings
        assert finding.sequence == sequence, column
        with without_triggers(log) as session:
            place = f"{sequence} + 100" if column == "sequence" else sequence
            put_back = text(f"UPDATE audit_events SET {column} = :was WHERE sequence = {place}")
            session.execute(put_back, {"was": str(v) if isinstance(v := getattr(before, column), Outcome) else v})
    assert verified(log, settings).findings == []


@pytest.mark.parametrize("sequence", [1, 5, 6])
def test_an_event_that_was_removed_is_found(log, settings, sequence):
    with without_triggers(log) as session:
        session.execute(text(f"DELETE FROM audit_events WHERE sequence = {sequence}"))
    (finding,) = verified(log, settings).findings
    assert (finding.sequence, "missing" in finding.message) == (sequence, True)


def test_events_that_were_moved_or_numbered_anew_are_found(log, settings):
    move = "UPDATE audit_events SET sequence = {} WHERE sequence = {}"
    with without_triggers(log) as session:
        for new, old in ((100, 4), (4, 5), (5, 100)):
            session.execute(text(move.format(new, old)))
    (finding,) = verified(log, settings).findings
    assert finding.sequence == 4
    with without_triggers(log) as session:  # one is gone and those after it move up
        for new, old in ((100, 4), (4, 5), (5, 100)):
            session.execute(text(move.format(new, old)))
        session.execute(text("DELETE FROM audit_events WHERE sequence = 7"))
        for old in range(8, 13):
            session.execute(text(move.format(old - 1, old)))
    (finding,) = verified(log, settings).findings
    assert (finding.sequence, "link" in finding.message) == (7, True)


def test_an_event_that_was_put_after_the_last_is_found(log, settings):
    columns = "at, action, object_id, outcome, key_id, admin_id, project_id, previous_hash, hash"
    copied = f"INSERT INTO audit_events (sequence, id, {columns}) SELECT 20, 'evt_x', {columns} FROM audit_events"
    with without_triggers(log) as session:
        session.execute(text(f"{copied} WHERE sequence = 12"))
    assert verified(log, settings).findings[0].sequence == 13


@pytest.mark.parametrize(
    "change",
    ["UPDATE audit_events SET action = 'x'", "DELETE FROM audit_events WHERE sequence = 1", "DELETE FROM audit_events"],
)
def test_the_database_refuses_to_change_events(log, settings, change):
    with pytest.raises(IntegrityError, match="append-only"), transaction(log) as session:
        session.execute(text(change))
    replace = "INSERT OR REPLACE INTO" if log.kw["bind"].dialect.name == "sqlite" else "INSERT INTO"
    row = "3, 'evt_x', 'x', 'x', NULL, 'allowed', NULL, NULL, NULL, 'x', 'x'"
    with pytest.raises(IntegrityError), transaction(log) as session:
        session.execute(text(f"{replace} audit_events VALUES ({row})"))
    assert verified(log, settings).findings == []


def test_a_trigger_that_is_gone_is_found(log, settings):
    with transaction(log) as session:
        if session.get_bind().dialect.name == "sqlite":
            session.execute(text("DROP TRIGGER audit_events_no_update"))
        else:
            session.execute(text("ALTER TABLE audit_removals DISABLE TRIGGER audit_removals_no_truncate"))
    (finding,) = verified(log, settings).findings
    assert "audit_" in finding.message
    if log.kw["bind"].dialect.name != "sqlite":
        with transaction(log) as session:
            session.execute(text("ALTER TABLE audit_removals ENABLE TRIGGER audit_removals_no_truncate"))


def test_old_events_are_removed_under_a_signature_and_the_rest_verifies(log, settings, monkeypatch):
    monkeypatch.setattr(events, "EVENTS_MAX", 4)
    now = NOW + timedelta(days=DAYS) + 5 * HOUR + timedelta(minutes=1)  # six are older
    assert remove_old(log, settings, now=now)  # four of them, for there may be more
    assert not remove_old(log, settings, now=now)
    assert not remove_old(log, settings, now=now)
    report = verified(log, settings)
    assert (report.findings, report.events, report.removals, report.removed_through) == ([], 6, 2, 6)
    with transaction(log) as session:
        append(session, [event_of(None, "GET /", None, Outcome.REFUSED, at=now)])
    later = now + timedelta(days=2 * DAYS)
    while remove_old(log, settings, now=later, proved=True):
        pass
    report = verified(log, settings)
    assert (report.findings, report.events, report.removed_through, report.newest[0]) == ([], 0, 13, 13)
    with transaction(log) as session:  # the chain goes on where it was
        append(session, [event_of(None, "GET /", None, Outcome.REFUSED, at=later)])
    report = verified(log, settings)
    assert (report.findings, report.events, report.newest[0]) == ([], 1, 14)


def test_a_clock_that_jumps_ahead_does_not_empty_the_log(log, settings):
    """By the other year, all of it is old. What is written meanwhile proves nothing: the clock has dated that, too."""
    other_year = NOW + timedelta(days=730)
    assert not remove_old(log, settings, now=other_year)
    with transaction(log) as session:
        append(session, [event_of(None, "GET /", None, Outcome.REFUSED, at=other_year)])
    assert not remove_old(log, settings, now=other_year + 23 * HOUR)
    assert verified(log, settings).events == 13
    assert not remove_old(log, settings, now=other_year + 25 * HOUR)
    assert verified(log, settings).events == 1


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE audit_removals SET through = 8",
        "UPDATE audit_removals SET removed_at = '2030-01-02T03:04:05.678901+00:00'",
        "UPDATE audit_removals SET signature = replace(signature, 'a', 'b')",
        "UPDATE audit_removals SET number = 2",
        "DELETE FROM audit_removals",
    ],
)
def test_a_removal_that_was_changed_or_forged_is_found(log, settings, change):
    assert not remove_old(log, settings, now=NOW + timedelta(days=DAYS) + 5 * HOUR)
    assert verified(log, settings).removed_through == 5
    with without_triggers(log) as session:
        session.execute(text(change))
    assert verified(log, settings).findings


def test_whoever_holds_the_database_alone_cannot_shorten_it_unseen(log, settings):
    """Another key signs that events may go, and the database lets go of them."""
    with transaction(log) as session:
        digest = session.scalar(select(AuditEvent.hash).where(AuditEvent.sequence == 9))
        zeros = "0" * 64
        removal = AuditRemoval(number=1, through=9, hash=digest, previous_hash=zeros, removed_at="x", key_id=zeros)
        removal.signature = "00" * 64
        session.add(removal)
        session.flush()
        session.execute(text("DELETE FROM audit_events WHERE sequence <= 9"))
    (finding,) = verified(log, settings).findings
    assert "not signed for" in finding.message


def test_nothing_is_signed_away_that_was_changed(log, settings):
    with without_triggers(log) as session:
        session.execute(text("UPDATE audit_events SET key_id = 'key_b' WHERE sequence = 2"))
    with pytest.raises(AuditLogBroken, match="Event 2 "):
        remove_old(log, settings, now=NOW + timedelta(days=DAYS) + 5 * HOUR)
    assert verified(log, settings).findings[0].sequence == 2


def run(settings: Settings, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli.app, ["--data-dir", str(settings.data_dir), "audit", *arguments])
    assert done.exit_code == code, f"{done.exit_code}\n{done.output}\n{done.exception!r}"
    return done.stdout


def test_an_export_is_found_again_and_tells_what_was_cut_off(log, settings, tmp_path, monkeypatch):
    monkeypatch.setattr("service.logs.configure_logging", lambda *_: None)  # it would hold for the tests after this one
    monkeypatch.setenv("OBSCURA_DATABASE_URL", settings.database_url)
    out, late = tmp_path / "events.jsonl", tmp_path / "late.jsonl"
    run(settings, "export", "--out", str(out))
    run(settings, "export", "--since", f"{NOW + 9 * HOUR:%Y-%m-%dT%H:%M}", "--out", str(late))
    lines = [json.loads(line) for line in out.read_text("ascii").splitlines()]
    assert [line["sequence"] for line in lines] == list(range(1, 13))
    assert lines[3]["at"] == (NOW + 3 * HOUR).isoformat(timespec="microseconds")
    assert len(late.read_text().splitlines()) == 3
    assert out.stat().st_mode & 0o077 == 0
    run(settings, "export", "--out", str(out), code=2)  # nothing is written over
    assert json.loads(run(settings, "verify", "--export", str(out), "--json"))["compared"] == 12
    (tmp_path / "other").write_text("no event\n")
    run(settings, "verify", "--export", str(tmp_path / "other"), code=2)
    remove_old(log, settings, now=NOW + timedelta(days=DAYS) + 5 * HOUR)
    assert json.loads(run(settings, "verify", "--export", str(out), "--json"))["compared"] == 7
    with without_triggers(log) as session:
        session.execute(text("DELETE FROM audit_events WHERE sequence > 10"))
    assert json.loads(run(settings, "verify", "--json"))["findings"] == []  # nothing here says that there were more
    assert "Event 11" in run(settings, "verify", "--export", str(out), code=1)
