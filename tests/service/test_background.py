"""Threads of the service's own: none ends by an error, and whoever waits for one is told."""

import io
import threading
from pathlib import Path

import pytest

from obscura.wire.words import Outcome
from service.api.auditing import EventWriter, LogLimits
from service.background import Background
from service.db.session import make_engine, make_session_factory
from service.identity.recording import AuditLogUnavailable, event_of
from service.main import utc_now
from service.settings import Settings
from tests.together import wait_until

SECONDS = 30.0


class Stumbling(Background):
    """Fails at its first try."""

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
