"""Starting: the clock and the key that signs for the ledger; and threads of the service, none of which ends unseen."""

import io
import json
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from obscura.wire.words import EntryKind, Outcome
from service import ledger, times
from service.api.auditing import EventWriter, LogLimits
from service.audit.signing import open_signing_key
from service.audit.verify import verify
from service.background import Background
from service.db.access_tables import Installation
from service.db.base import new_id
from service.db.session import make_engine, make_session_factory, transaction
from service.errors import ClockRefused
from service.identity.recording import AuditLogUnavailable, event_of
from service.installation import accept_clock
from service.logs import configure_logging
from service.main import create_app, utc_now
from service.settings import Settings
from tests.service.reading_routes import TestClient
from tests.together import wait_until


def test_a_service_does_not_start_by_a_wrong_clock(sqlite_url, sqlite_factory, open_account, tmp_path, capfd):
    open_account(sqlite_factory)
    behind = datetime(2030, 1, 1, 3, tzinfo=UTC)
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, mode="celery")
    configure_logging("INFO")
    with pytest.raises(ClockRefused):
        start(settings, clock=lambda: behind)
    said = [json.loads(line) for line in capfd.readouterr().err.splitlines() if "clock_refused" in line]
    assert said[0]["message"].startswith("The clock of this machine is wrong: ")
    assert not settings.admin_key_path.exists()  # nothing was dated by it, a key neither


def start(settings: Settings, **changes: Any) -> None:
    app = create_app(settings, send=lambda _name, _args: None, **changes)
    with TestClient(app, base_url="http://127.0.0.1:8420") as client:
        assert client.get("/v1/health/live").status_code == 200


def test_the_first_start_makes_the_key_and_later_ones_keep_it(sqlite_url, tmp_path):
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, mode="celery")
    start(settings)
    made, public = open_signing_key(settings.ledger_key_path), settings.ledger_key_path.with_suffix(".pub.pem")
    assert public.read_text() == made.public_pem()
    public.unlink()
    start(settings)
    assert open_signing_key(settings.ledger_key_path).key_id == made.key_id
    assert public.read_text() == made.public_pem()


def test_a_key_that_cannot_be_used_does_not_keep_the_service_from_starting(sqlite_url, tmp_path, capfd):
    path = tmp_path / "ledger.pem"
    path.write_bytes(b"nothing")
    configure_logging("INFO")
    start(Settings(data_dir=tmp_path / "data", database_url=sqlite_url, mode="celery", ledger_key_file=path))
    said = [json.loads(line) for line in capfd.readouterr().err.splitlines() if "ledger_not_signed" in line]
    assert "cannot be read" in said[0]["reason"]
    assert path.read_bytes() == b"nothing"


JUMP = timedelta(days=40)


def freeze(factory, account_id: str, *, frozen: bool, now: datetime) -> None:
    with transaction(factory) as session:
        ledger.limits.set_frozen(session, account_id=account_id, frozen=frozen, reason="a test", now=now)


def test_after_a_jump_ahead_one_command_lets_everything_go_on_but_the_clock_back_no_further(factory, open_account, now):
    account_id = open_account(factory)
    with transaction(factory) as session:
        session.add(Installation(id=new_id("ins"), made_at=now))
    freeze(factory, account_id, frozen=True, now=now + JUMP)
    with transaction(factory) as session, pytest.raises(ClockRefused, match="obscura ledger accept-clock"):
        ledger.require_clock(session, now)
    with transaction(factory) as session:
        accepted = accept_clock(session, now=now)
    with transaction(factory, read_only=True) as session:
        ledger.require_clock(session, now)
    freeze(factory, account_id, frozen=False, now=now)
    with transaction(factory) as session:
        assert accept_clock(session, now=now) is None, "there is nothing more to accept"
        entries = ledger.entries(session, account_id, 0, 10)
        assert [row.kind for row in entries] == [EntryKind.OPEN, EntryKind.FREEZE, EntryKind.FREEZE]
        assert entries[1].created_at == entries[2].created_at == accepted
        assert verify(session, trusted={}).findings == ()
    for back in (now - timedelta(days=2), datetime(2029, 1, 1, tzinfo=UTC)):
        with pytest.raises(ClockRefused):
            freeze(factory, account_id, frozen=True, now=back)
    freeze(factory, account_id, frozen=True, now=now + JUMP + timedelta(days=1))  # the accepted time is over
    with pytest.raises(ClockRefused):
        freeze(factory, account_id, frozen=False, now=now)


@pytest.mark.parametrize("clock", [datetime(1971, 3, 1, tzinfo=UTC), datetime(2200, 3, 1, tzinfo=UTC)])
def test_no_command_accepts_a_clock_that_shows_an_impossible_year(sqlite_factory, open_account, now, clock):
    open_account(sqlite_factory)
    with transaction(sqlite_factory) as session:
        session.add(Installation(id=new_id("ins"), made_at=now))
    with transaction(sqlite_factory) as session, pytest.raises(ClockRefused):
        accept_clock(session, now=clock)
    with transaction(sqlite_factory, read_only=True) as session:
        assert session.scalar(select(Installation.clock_accepted_at)) is None


@pytest.mark.parametrize("moved", [JUMP, -JUMP, timedelta(days=2)])
def test_a_process_whose_clock_was_set_while_it_ran_writes_nothing(
    sqlite_factory, open_account, now, monkeypatch, moved
):
    account_id = open_account(sqlite_factory)
    monkeypatch.setattr(times, "_STARTED", (time.time() - moved.total_seconds(), times._uptime_seconds()))
    with pytest.raises(ClockRefused, match="while this process ran"):
        freeze(sqlite_factory, account_id, frozen=True, now=now)
    monkeypatch.undo()
    freeze(sqlite_factory, account_id, frozen=True, now=now)


# --- threads of its own -----------------------------------------------------------------------------------------------


SECONDS = 30.0


class Stumbling(Background):
    restart_seconds = 0.01

    def __init__(self) -> None:
        super().__init__("stumbling")
        self.tries, self.done = 0, threading.Event()

    def _work(self) -> None:
        self.tries += 1
        if self.tries == 1:
            raise ValueError("private")
        self.done.set()
        self._stopping.wait()


def test_a_thread_that_fails_says_so_and_goes_on(stream: io.StringIO):
    thread = Stumbling()
    thread.start()
    assert thread.done.wait(SECONDS)
    thread.stop()
    assert '"error": "ValueError"' in stream.getvalue()
    assert "private" not in stream.getvalue()


@pytest.mark.parametrize("audit_log", ["on", "required"])
def test_nobody_waits_for_ever_for_an_event_while_the_database_is_away(
    tmp_path: Path, sqlite_template, audit_log, stream
):
    """Its disk, such as one of the network, is gone for a moment: what could not be written is told, or tried again."""
    disk, away = tmp_path / "disk", tmp_path / "away"
    disk.mkdir()
    (disk / "obscura.db").write_bytes(sqlite_template.read_bytes())
    url = f"sqlite:///{disk / 'obscura.db'}"
    settings = Settings(data_dir=tmp_path / "var", database_url=url, audit_log=audit_log)
    writer = EventWriter(make_session_factory(make_engine(url)), settings, utc_now, LogLimits(retry_seconds=0.1))
    event = event_of(None, "GET /v1/jobs", None, Outcome.REFUSED, at=utc_now())
    disk.rename(away)
    writer.start()
    try:
        lost = writer.put(event)
        if audit_log == "required":
            with pytest.raises(AuditLogUnavailable):
                lost.result(SECONDS)
        wait_until(lambda: "audit_events_not_written" in stream.getvalue(), "nobody is told", seconds=SECONDS)
        away.rename(disk)
        assert writer.put(event).result(SECONDS) is None
        assert audit_log == "required" or lost.done()
    finally:
        writer.stop()
