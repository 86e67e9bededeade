"""A process whose clock is wrong does not start, takes no job, and says why in one sentence."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from service.errors import ClockRefused
from service.logs import configure_logging
from service.main import create_app
from service.settings import Settings
from tests.service.reading_routes import TestClient

WRONG = {
    "1971": datetime(1971, 3, 1, tzinfo=UTC),
    "2200": datetime(2200, 3, 1, tzinfo=UTC),
    "behind": datetime(2030, 1, 1, 3, tzinfo=UTC),
}


@pytest.mark.parametrize("clock", WRONG.values(), ids=WRONG)
def test_a_service_does_not_start_by_a_wrong_clock(sqlite_url, sqlite_factory, open_account, tmp_path, clock, capfd):
    open_account(sqlite_factory)
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, mode="celery")
    configure_logging("INFO")
    app = create_app(settings, clock=lambda: clock, send=lambda _name, _args: None)
    with pytest.raises(ClockRefused), TestClient(app):
        pytest.fail("it has started")
    said = [json.loads(line) for line in capfd.readouterr().err.splitlines() if "clock_refused" in line]
    assert said[0]["message"].startswith("The clock of this machine is wrong: ")
    assert not settings.admin_key_path.exists()  # nothing was dated by it, a key neither


def test_a_service_starts_by_a_right_clock(sqlite_url, sqlite_factory, open_account, tmp_path, now):
    open_account(sqlite_factory)
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, mode="celery")
    app = create_app(settings, clock=lambda: now + timedelta(days=1), send=lambda _name, _args: None)
    with TestClient(app, base_url="http://127.0.0.1:8420") as client:
        assert client.get("/v1/health/live").status_code == 200
