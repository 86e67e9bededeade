"""What is kept for ever is dated by the hour, and what is shown by the minute, whoever has caused it."""

import base64
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import get_args, get_type_hints

from pydantic import BaseModel
from sqlalchemy import text

from obscura.wire.schemas import Minute, to_the_minute
from obscura.wire.words import EntryKind
from service import ledger
from service.api.routes import routers
from service.db.base import Base, UtcDateTime, new_id
from service.db.job_tables import Job
from service.db.session import transaction
from service.metrics import Metrics
from service.settings import Settings
from service.times import WatchedClock, to_the_hour
from tests.service.reading_routes import address, reading_routes, stocked
from tests.service.steps import approve_raise, charge, hold_amount, make_key

ASKED = datetime(2030, 1, 2, 3, 50, 7, 123456, tzinfo=UTC)
OPENED = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)  # by the fixture


def test_moments_lose_their_minutes_or_seconds():
    east = ASKED.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert to_the_hour(east) == datetime(2030, 1, 2, 3, tzinfo=UTC)
    assert to_the_minute(east) == datetime(2030, 1, 2, 3, 50, tzinfo=UTC)


def test_entries_of_a_training_do_not_tell_how_long_its_steps_took(factory, open_account):
    """Two trainings of other pace leave the same times, also where an hour begins on their way."""
    logs = []
    for pace in (timedelta(seconds=20), timedelta(seconds=21)):
        account_id = open_account(factory, name=f"pace {pace}")
        now = ASKED
        with transaction(factory) as session:
            facts = {"account_id": account_id, "job_id": new_id("job"), "amount_nano": 100, "now": now}
            held = hold_amount(session, **facts)
            ledger.fence(session, hold_id=held.id, attempt=1, now=now)
        with transaction(factory) as session:
            ledger.arm(session, hold_id=held.id, attempt=1, now=now + pace)
        for step in range(2, 40):
            with transaction(factory) as session:
                charge(session, hold_id=held.id, attempt=1, amount_nano=1, stage="steps", now=now + step * pace)
        with transaction(factory) as session:
            ledger.capture(
                session, hold_id=held.id, attempt=1, artifact_sha256="0" * 64, reason="published", now=now + 50 * pace
            )
        with transaction(factory, read_only=True) as session:
            rows = ledger.entries(session, account_id, 0, 100)
        logs.append([row.created_at for row in rows if row.kind is not EntryKind.OPEN])
    for times in logs:
        assert times[:-1] == [OPENED] * 40  # when the training was asked for, but not before the account was opened
        assert times[-1] == datetime(2030, 1, 2, 4, tzinfo=UTC)


def test_no_entry_that_is_dated_exactly_stands_behind_one_of_a_training(factory, open_account):
    """Not of any kind: an exact time behind a charge would tell when that was made at the latest."""
    account_id = open_account(factory)
    moments = (datetime(2030, 1, 2, 5, 0, 0, 1, tzinfo=UTC) + n * timedelta(minutes=7, seconds=31) for n in range(99))
    with transaction(factory) as session:
        asking, deciding = (make_key(session, name=name, scopes=["admin"], now=ASKED)[0].id for name in "ab")
        for reason in ("a", "b"):
            held = hold_amount(session, account_id=account_id, job_id=new_id("job"), amount_nano=9, now=next(moments))
            this = {"hold_id": held.id, "attempt": 1}
            ledger.fence(session, **this, now=next(moments))
            ledger.arm(session, **this, now=next(moments))
            charge(session, **this, amount_nano=5, stage="votes", now=next(moments))
            ledger.limits.set_frozen(session, account_id=account_id, frozen=True, reason=reason, now=next(moments))
            ledger.capture(session, **this, artifact_sha256=None, reason=reason, now=next(moments))
            ledger.limits.set_frozen(session, account_id=account_id, frozen=False, reason=reason, now=next(moments))
        ledger.limits.lower_limit(session, account_id=account_id, epsilon=7, reason="less", now=next(moments))
        asked = ledger.limits.request_raise(
            session, account_id=account_id, epsilon=8, reason="more", requested_with=asking, now=next(moments)
        )
        approve_raise(session, asked.id, deciding, next(moments))
        returned = hold_amount(session, account_id=account_id, job_id=new_id("job"), amount_nano=9, now=next(moments))
        ledger.return_hold(session, hold_id=returned.id, reason="c", now=next(moments))
        account = ledger.lock_account(session, account_id)
        ledger.limits.record_missing(session, account, amount_nano=1, details={}, now=next(moments))
        rows = ledger.entries(session, account_id, 0, 100)
    assert {row.kind for row in rows} == set(EntryKind)
    assert {row.kind.value for row in rows if row.created_at != to_the_hour(row.created_at)} == {"open"}
    told = [at for row in rows for name, at in row.details.items() if name.endswith("_at")]
    assert len(told) == 2
    assert all(at.endswith(":00:00.000000+00:00") for at in told)
    assert [row.created_at for row in rows] == sorted(row.created_at for row in rows)
    assert len({row.created_at for row in rows}) > 3


def test_an_entry_is_never_dated_before_the_one_before_it(factory, open_account):
    """Clocks of two machines differ by seconds, and an hour begins in between."""
    account_id = open_account(factory)
    ahead = datetime(2030, 1, 2, 4, 0, 3, tzinfo=UTC)
    for frozen, now in ((True, ahead), (False, ahead - timedelta(seconds=5))):
        with transaction(factory) as session:
            ledger.limits.set_frozen(session, account_id=account_id, frozen=frozen, reason="x", now=now)
    with transaction(factory, read_only=True) as session:
        rows = ledger.entries(session, account_id, 0, 10)
    assert [row.created_at for row in rows] == [OPENED, to_the_hour(ahead), to_the_hour(ahead)]


def _answers(kind: type[BaseModel] = BaseModel) -> Iterator[type[BaseModel]]:
    for below in kind.__subclasses__():
        if below.__module__.startswith("obscura.wire."):
            yield below
        yield from _answers(below)


def test_every_time_of_an_answer_is_shown_to_the_minute_but_what_the_log_says():
    assert routers()  # so their records are loaded
    exactly, coarse = set(), 0
    for record in set(_answers()):
        for name, kind in get_type_hints(record, include_extras=True).items():
            kinds = {kind, *get_args(kind)} if kind != Minute else {kind}
            if Minute in kinds:
                coarse += 1
            elif datetime in kinds:
                exactly.add(f"{record.__name__}.{name}")
    assert exactly == {"EntryRecord.created_at"}
    assert coarse > 15


def test_a_clock_is_proved_by_a_day_in_which_nobody_sets_it():
    seconds, shown = 0.0, ASKED
    watched, proved = WatchedClock(shown, lambda: seconds), []
    for hours, jump in ((23, 0), (2, 0), (1, 24 * 365), (23, 0), (1, 0)):
        seconds += hours * 3600
        shown += timedelta(hours=hours + jump)
        proved.append(watched.is_proved(shown))
    assert proved == [False, True, False, False, True]


# --- every time and duration that leaves on any route, in a body or a header, or in the metrics ---

MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?")
# The log is shown as it is hashed; here, as it was before there were hours. What new entries bear is tested with them.
AS_HASHED = {"/v1/accounts/{account_id}/entries", "/accounts/{account_id}/ledger.csv"}
# When the answer was made, and for how long a sign-in holds: nothing of the service's.
OF_THE_ANSWER = {"date", "set-cookie"}


def moments(text: str) -> Iterator[datetime]:
    for found in MOMENT.findall(text):
        yield datetime.fromisoformat(found.replace(" ", "T")).replace(tzinfo=UTC)


def hidden_in(text: str) -> str:
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
    shown |= {"/v1/audit-events", "/settings/audit"}
    assert shown <= set(found)
    assert cursor
    assert json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))[0].startswith("job_")


# Signed or hashed with their times, which are on the hour.
HASHED = {"entries", "checkpoints"}
# Differs between two answers to the same request.
OF_EACH_ANSWER = {"date", "set-cookie", "ratelimit", "x-request-id"}
FRESH = re.compile(r'name="once" value="[^"]+"|"request_id": ?"[^"]+"|nonce="[^"]+"|Request id <code>\w+')
SECONDS = re.compile(r"\b\d+ (?:s|sec|seconds?)\b")


def test_seconds_of_stored_times_change_nothing_that_leaves(sqlite_url: str, tmp_path: Path) -> None:
    """The clock stands still, and every stored time moves within its minute: no duration may change."""
    now = datetime.now(UTC)
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, mode="celery")
    with stocked(settings, clock=lambda: now) as (client, ids):
        factory = client.app.state.service.factory
        with transaction(factory) as session:
            running = session.scalars(text("SELECT id FROM jobs WHERE state = 'running' ORDER BY id")).all()
            queued = "state = 'queued', started_at = NULL, lease_until = NULL, lease_owner = NULL"
            session.execute(text(f"UPDATE jobs SET {queued} WHERE id = :id"), {"id": running[0]})
            now = to_the_minute(session.get(Job, running[1]).started_at) + timedelta(minutes=10, seconds=30)

        def shown(seconds: str) -> dict[str, str]:
            with transaction(factory) as session:
                for table in Base.metadata.sorted_tables:
                    columns = [column.name for column in table.columns if isinstance(column.type, UtcDateTime)]
                    if columns and table.name not in HASHED:
                        moved = ", ".join(f"{name} = substr({name}, 1, 17) || '{seconds}'" for name in columns)
                        session.execute(text(f"UPDATE {table.name} SET {moved}"))
            answers = {"the metrics": Metrics(factory, clock=lambda: now, version="1").render().decode()}
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
