"""Every time that leaves on any route, in a body or a header, is on the minute, but for what the log says itself."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from obscura.wire.schemas import to_the_minute
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
    shown |= {"/v1/keys", "/v1/admins", "/v1/accounts", "/v1/limit-requests", "/v1/sweeps", "/releases/{release_id}"}
    shown |= {"/v1/audit-events", "/audit"}
    assert shown <= set(found)
    assert cursor
    assert json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))[0].startswith("job_")
