"""The audit log's table is append-only, old events are deleted, and each event is a JSON line. Both databases."""

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import IntegrityError

from obscura.wire.words import Outcome
from service.audit.rows import find_missing_triggers
from service.db.access_tables import AuditEvent
from service.db.session import SessionFactory, transaction
from service.identity.access import Principal, Scope
from service.identity.recording import Act, append, event_of, record, recorded, remove_old
from service.logs import configure_logging
from tests.conftest import NOW

DAYS = 30
HOUR = timedelta(hours=1)
REAL_NOW = datetime.now(UTC)  # the triggers read the database's own clock


@pytest.fixture
def log(factory: SessionFactory) -> SessionFactory:
    """Twelve events, one an hour; the oldest is DAYS and six hours old."""
    first = REAL_NOW - timedelta(days=DAYS) - 6 * HOUR
    caller = Principal("key_a", frozenset({Scope.READ}), None, "prj_default")
    act = partial(event_of, caller, "GET /v1/jobs/{job_id}", outcome=Outcome.ALLOWED)
    with transaction(factory) as session:
        append(session, [act(object_id=f"job_{number}", at=first + number * HOUR) for number in range(12)])
    return factory


def count(factory: SessionFactory) -> int:
    with transaction(factory, read_only=True) as session:
        return session.scalar(select(func.count(AuditEvent.id))) or 0


def add(factory: SessionFactory, at: datetime) -> None:
    with transaction(factory) as session:
        append(session, [event_of(None, "GET /", None, Outcome.REFUSED, at=at)])


@pytest.mark.parametrize("column", [column.name for column in AuditEvent.__table__.columns])
def test_no_column_of_an_event_can_be_changed(log, column):
    with pytest.raises(IntegrityError, match="append-only"), transaction(log) as session:
        session.execute(text(f"UPDATE audit_events SET {column} = {column} WHERE object_id = 'job_3'"))


def test_an_event_cannot_be_replaced(log):
    with transaction(log, read_only=True) as session:
        event = session.scalars(select(AuditEvent).limit(1)).one()
    replace = "INSERT OR REPLACE" if log.kw["bind"].dialect.name == "sqlite" else "INSERT"
    for sequence, id in ((event.sequence, "evt_other"), (event.sequence + 1000, event.id)):
        values = f"({sequence}, '{id}', '2026-01-02 03:04:05', 'x', 'allowed')"
        with pytest.raises(IntegrityError), transaction(log) as session:
            session.execute(text(f"{replace} INTO audit_events (sequence, id, at, action, outcome) VALUES {values}"))
    assert count(log) == 12


@pytest.mark.parametrize("age", [timedelta(0), 11 * HOUR])
def test_a_new_event_cannot_be_deleted(log, age):
    add(log, REAL_NOW - age)
    with pytest.raises(IntegrityError, match="append-only"), transaction(log) as session:
        session.execute(text("DELETE FROM audit_events WHERE action = 'GET /'"))
    everything = ["DELETE FROM audit_events"]
    everything += ["TRUNCATE audit_events"] if log.kw["bind"].dialect.name == "postgresql" else []
    for statement in everything:
        with pytest.raises(IntegrityError, match="append-only"), transaction(log) as session:
            session.execute(text(statement))
    assert count(log) == 13


def test_the_ledger_s_verification_reports_a_missing_trigger(log):
    with transaction(log) as session:
        sqlite = session.get_bind().dialect.name == "sqlite"
        drop = "DROP TRIGGER audit_events_no_update"
        session.execute(text(drop if sqlite else f"{drop}_delete ON audit_events"))
        (finding,) = find_missing_triggers(session)
        assert "audit_events" in finding.message
        session.rollback()


def test_old_events_are_deleted(log):
    minute = timedelta(minutes=1)
    assert remove_old(log, days=DAYS, now=REAL_NOW - minute, proved=False, at_a_time=4) == 6  # two transactions
    assert remove_old(log, days=DAYS, now=REAL_NOW - minute, proved=False) == 0
    with transaction(log, read_only=True) as session:
        assert session.scalar(select(AuditEvent.object_id).order_by(AuditEvent.sequence).limit(1)) == "job_6"
    add(log, REAL_NOW)
    assert remove_old(log, days=1, now=REAL_NOW, proved=True) == 6
    assert count(log) == 1


def test_a_clock_that_jumps_ahead_does_not_empty_the_log(log):
    """By the other year, every event is old. An event dated by the same clock proves nothing until a day later."""
    other_year = REAL_NOW + timedelta(days=730)
    assert remove_old(log, days=DAYS, now=other_year, proved=False) == 0
    add(log, other_year)
    assert remove_old(log, days=DAYS, now=other_year + 23 * HOUR, proved=False) == 0
    assert remove_old(log, days=DAYS, now=other_year + 25 * HOUR, proved=False) == 12
    assert count(log) == 1


@pytest.mark.parametrize("level", ["INFO", "ERROR"])
@pytest.mark.parametrize("audit_log", ["on", "required"])
def test_each_event_is_a_json_line_once_it_is_committed(factory, stream, audit_log, level):
    configure_logging(level, stream)
    acting = recorded(factory, audit_log, lambda: NOW)

    def lines() -> list[dict[str, Any]]:
        return [line for line in map(json.loads, stream.getvalue().splitlines()) if line["logger"] == "audit"]

    with transaction(acting) as session:
        record(session, Act.KEY_REVOKED, "key_b", project_id="prj_default")

    def fail() -> None:
        with transaction(acting) as session:
            record(session, Act.KEY_MADE, "key_c", project_id=None)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    (line,) = lines()
    with transaction(factory, read_only=True) as session:
        event = session.scalars(select(AuditEvent)).one()
    assert line.pop("timestamp")
    assert line == {
        "logger": "audit",
        "level": "info",
        "event": "audit_event",
        "id": event.id,
        "at": NOW.isoformat(),
        "action": "key revoked",
        "object_id": "key_b",
        "outcome": "allowed",
        "key_id": None,
        "admin_id": None,
        "project_id": "prj_default",
    }
