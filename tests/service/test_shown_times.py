"""Every time and every duration that leaves on any route, in a body or a header, or in the metrics, is on the minute,
except the times of the log itself.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

from sqlalchemy import text

from obscura.wire.schemas import to_the_minute
from service.db.base import Base, UtcDateTime
from service.db.session import transaction
from service.metrics import Metrics
from service.settings import Settings
from tests.service.reading_routes import address, reading_routes, stocked

MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?")
# The log is shown as it is hashed; here, as it was before there were hours. What new entries bear is tested with them.
AS_HASHED = {"/v1/accounts/{account_id}/entries"}
# When the answer was made, and for how long a sign-in holds: nothing of the service's.
OF_THE_ANSWER = {"date", "set-cookie"}


def moments(text: str) -> Iterator[datetime]:
    for found in MOMENT.findall(text):
        yield datetime.fromisoformat(found.replace(" ", "T")).replace(tzinfo=UTC)


def hidden_in(text: str) -> str:
    """What the cursors of a list hold."""
    cursors = re.findall(r'"next_cursor": ?"([A-Za-z0-9_-]+)"', text)
    return " ".join(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode() for cursor in cursors)


def test_every_time_on_every_route_is_on_the_minute(sqlite_url: str, tmp_path: Path) -> None:
    found: dict[str, list[datetime]] = {}
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, mode="celery", audit_log="required")
    with stocked(settings) as (client, ids):
        for path, parameters in reading_routes().items():
            answer = client.get(address(path, ids), params={"limit": 2} if "limit" in parameters else None)
            told = list(moments(answer.text + hidden_in(answer.text)))
            for name, value in answer.headers.items():
                if name not in OF_THE_ANSWER:
                    told += moments(value)
                    if re.match(r"[A-Z][a-z]{2}, \d\d ", value):
                        told.append(parsedate_to_datetime(value))
            if told:
                found[path] = told
        cursor = client.get("/v1/jobs", params={"limit": 1}).json()["next_cursor"]
    exactly = {path for path, told in found.items() if any(moment != to_the_minute(moment) for moment in told)}
    assert exactly <= AS_HASHED
    assert AS_HASHED & exactly  # so what is exact would be seen
    shown = {"/v1/jobs", "/v1/jobs/{job_id}", "/v1/datasets", "/v1/releases", "/v1/samples/{sample_id}", "/jobs", "/"}
    shown |= {"/v1/keys", "/v1/admins", "/v1/accounts", "/v1/decisions", "/v1/sweeps", "/releases/{release_id}"}
    shown |= {"/v1/audit-events", "/audit"}
    assert shown <= set(found)
    assert cursor
    assert json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))[0].startswith("job_")


# Signed or hashed with their times, which are on the hour (tests/service/test_times.py).
HASHED = {"entries", "checkpoints"}
# Differs between two answers to the same request.
OF_EACH_ANSWER = {"date", "set-cookie", "ratelimit", "x-request-id"}
FRESH = re.compile(r'name="once" value="[^"]+"|"request_id": ?"[^"]+"|nonce="[^"]+"')
SECONDS = re.compile(r"\b\d+ (?:s|sec|seconds?)\b")


def test_seconds_of_stored_times_change_nothing_that_leaves(sqlite_url: str, tmp_path: Path) -> None:
    """The clock stands still, and every stored time moves within its minute: no duration may change."""
    now = to_the_minute(datetime.now(UTC)) + timedelta(minutes=10, seconds=30)
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, mode="celery")
    with stocked(settings, clock=lambda: now) as (client, ids):
        factory = client.app.state.factory
        with transaction(factory) as session:
            running = session.scalars(text("SELECT id FROM jobs WHERE state = 'running' ORDER BY id")).all()
            queued = "state = 'queued', started_at = NULL, lease_until = NULL, lease_owner = NULL"
            session.execute(text(f"UPDATE jobs SET {queued} WHERE id = :id"), {"id": running[0]})

        def shown(seconds: str) -> dict[str, str]:
            with transaction(factory) as session:
                for table in Base.metadata.sorted_tables:
                    columns = [column.name for column in table.columns if isinstance(column.type, UtcDateTime)]
                    if columns and table.name not in HASHED:
                        moved = ", ".join(f"{name} = substr({name}, 1, 17) || '{seconds}'" for name in columns)
                        session.execute(text(f"UPDATE {table.name} SET {moved}"))
            answers = {"the metrics": Metrics(factory, clock=lambda: now, version="1").tell().decode()}
            for path, parameters in reading_routes().items():
                for job_id in [ids["job_id"], *running[:2]] if "{job_id}" in path else [ids["job_id"]]:
                    place = address(path, ids | {"job_id": job_id})
                    answer = client.get(place, params={"limit": 20} if "limit" in parameters else None)
                    headers = {name: value for name, value in answer.headers.items() if name not in OF_EACH_ANSWER}
                    answers[place] = FRESH.sub("", f"{headers}\n{answer.text}")
            return answers

        early, late = shown("01.000000"), shown("59.900000")
    assert [place for place in early if early[place] != late[place]] == []
    assert float(re.search(r"\nobscura_queue_oldest_seconds (\S+)", early["the metrics"])[1]) >= 600
    assert "10 min" in early[f"/jobs/{running[1]}"], "a duration is shown, so one in seconds would be found"
    exact = {place: SECONDS.findall(answer) for place, answer in early.items()}
    assert {place: found for place, found in exact.items() if found} == {}
