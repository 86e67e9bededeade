"""What the audit log says of acts and uploads, and what happens where it cannot be written, on both databases."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select, text

from obscura.wire.words import Outcome
from service.api.auditing import Audit, EventWriter, LogLimits
from service.db.access_tables import AuditEvent
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction
from service.identity.recording import Act, event_of
from service.settings import Settings
from tests.conftest import NOW
from tests.service.api.conftest import Served, npz, serving
from tests.service.cli.conftest import Shell
from tests.together import PATIENCE_SECONDS, at_once, ready, wait_until

ACTS = set(Act)
JOB = f"job_{'a' * 20}"


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"audit_log": "required"})


def served_with(
    tmp_path: Path, url: str, *, log_limits: LogLimits = LogLimits(), **changes: Any
) -> AbstractContextManager[Served]:
    settings = Settings(data_dir=tmp_path / "var", database_url=url, mode="celery", **changes)
    return serving(settings, "admin", "read", log_limits=log_limits)


def writer_to(factory: SessionFactory, tmp_path: Path, mode: str = "required", **limits: Any) -> EventWriter:
    return EventWriter(factory, Settings(data_dir=tmp_path, audit_log=mode), lambda: NOW, LogLimits(**limits))


def events_of(url: str, *conditions: Any) -> list[AuditEvent]:
    """What the log holds, read by somebody of its own: the service may have ended."""
    engine = make_engine(url, pool_size=1)
    try:
        with transaction(make_session_factory(engine), read_only=True) as session:
            return list(session.scalars(select(AuditEvent).where(*conditions).order_by(AuditEvent.sequence)))
    finally:
        engine.dispose()


@contextmanager
def spoilt(factory: SessionFactory) -> Iterator[None]:
    """Refuse every event during a block, as a full disk does."""
    if factory.kw["bind"].dialect.name == "sqlite":
        spoil = "CREATE TRIGGER spoilt BEFORE INSERT ON audit_events BEGIN SELECT RAISE(ABORT, 'no'); END"
        mend = "DROP TRIGGER spoilt"
    else:
        spoil = "ALTER TABLE audit_events ADD CONSTRAINT spoilt CHECK (false) NOT VALID"
        mend = "ALTER TABLE audit_events DROP CONSTRAINT spoilt"
    with transaction(factory) as session:
        session.execute(text(spoil))
    try:
        yield
    finally:
        with transaction(factory) as session:
            session.execute(text(mend))


def test_what_cannot_be_logged_is_refused_and_changes_nothing(tmp_path, database_url):
    with served_with(tmp_path, database_url, audit_log="required") as served:
        account = served.account()
        with spoilt(served.factory):
            for path in ("accounts", f"accounts/{account['id']}", "jobs", "audit-events"):
                answer = served.client("admin").get(f"/v1/{path}")
                assert (answer.status_code, answer.json()["code"]) == (503, "audit_log_unavailable"), path
                assert "audit log" in answer.json()["detail"]
                assert answer.headers["retry-after"]
                assert account["name"] not in answer.text
            refused = served.client("admin").post("/v1/keys", json={"name": "k", "scopes": ["read"]})
            assert (refused.status_code, "token" in refused.text) == (503, False)
            assert "Nothing was changed" in refused.json()["detail"]
            page = served.client(None).post("/login", data={"key": served.tokens["admin"]})
            assert (page.status_code, "set-cookie" in page.headers) == (503, False)
            assert served.client(None).get("/v1/health/live").status_code == 200
            unready = served.client(None).get("/v1/health/ready")
            assert (unready.status_code, "audit log cannot be written" in unready.text) == (503, True)
        newest = events_of(database_url)[-1].id
        ready(served.client(None))  # although nothing was asked meanwhile
        assert events_of(database_url)[-1].id == newest
        assert "k" not in [key["name"] for key in served.read("keys", scope="admin")["items"]]
        assert served.client("admin").get("/v1/accounts").status_code == 200


def test_where_it_is_not_required_requests_go_on_and_what_waited_is_written_later(tmp_path, database_url):
    limits = LogLimits(retry_seconds=0.05)
    with served_with(tmp_path, database_url, audit_log="on", log_limits=limits) as served:
        with spoilt(served.factory):
            assert served.client("admin").get("/v1/jobs").status_code == 200
            made = served.client("admin").post("/v1/keys", json={"name": "k", "scopes": ["read"]})
            assert made.status_code == 201
        reads = AuditEvent.action == "GET /v1/jobs"
        wait_until(lambda: len(events_of(database_url, reads)) == 1, "the read was not written")
        assert served.client("admin").get("/v1/keys").status_code == 200
    actions = [event.action for event in events_of(database_url)]
    assert actions.count("GET /v1/keys") == 1  # what waits is written when the service stops
    assert made.json()["id"] not in [event.object_id for event in events_of(database_url)]  # which the log says


def test_the_client_reads_the_whole_log_and_what_comes_next(served, client):
    for _ in range(3):
        served.client("admin").get("/v1/jobs").raise_for_status()
    seen = list(client.audit_log())
    assert [event.action for event in seen].count("GET /v1/jobs") == 3
    assert all(event.action == "GET /v1/audit-events" for event in client.audit_log(after=seen[-1].id))


def test_nothing_is_logged_unless_it_is_asked_for(tmp_path, sqlite_url):
    with served_with(tmp_path, sqlite_url) as served:
        served.client("admin").get("/v1/jobs")
        served.client("admin").post("/v1/keys", json={"name": "k", "scopes": ["read"]})
        assert served.client("admin").get("/v1/audit-events").text == ""
    assert events_of(sqlite_url) == []


def test_signing_in_and_out_keys_roles_and_decisions_are_acts(served, settings):
    one, two = served.client("admin"), served.named("second", "admin")
    browser = served.browser(served.tokens["admin"])
    browser.post("/login", data={"key": f"obs_{'a' * 20}_{'0' * 64}"})
    browser.post("/logout", data={"nothing": ""})
    project = served.project()
    one.post(f"/v1/projects/{project}/rename", json={"name": "cardiology"})
    one.post(f"/v1/projects/{project}/quota", json={"jobs_max": 4}).raise_for_status()
    key = one.post("/v1/keys", json={"name": "k", "role": "viewer", "project_id": project}).json()["id"]
    rotated = one.post(f"/v1/keys/{key}/rotate", json={"overlap_seconds": 60}).json()["id"]
    one.post(f"/v1/keys/{rotated}/revoke", json={})
    account = served.account(project_id=project)["id"]
    asked = one.post(f"/v1/accounts/{account}/raise-limit", json={"epsilon": 3, "reason": "r"}).json()["id"]
    served.approve(asked, by="admin", status=403)
    served.approve(asked, by="second")
    again = one.post(f"/v1/accounts/{account}/raise-limit", json={"epsilon": 4, "reason": "r"}).json()["id"]
    two.post(f"/v1/decisions/{again}/decline").raise_for_status()
    me = served.key_id("admin")
    acts = events_of(settings.database_url, AuditEvent.action.in_(ACTS))
    told = [(event.action, event.object_id, event.project_id) for event in acts]
    assert told[told.index(("signed in", me, None)) :] == [
        ("signed in", me, None),
        ("signed out", me, None),
        ("project made", project, project),
        ("project renamed", project, project),
        ("quota set", project, project),
        ("key made", key, project),
        ("key made", rotated, project),
        ("key rotated", key, project),
        ("key revoked", rotated, project),
        ("decision asked for", asked, project),
        ("decision approved", asked, project),
        ("decision asked for", again, project),
        ("decision declined", again, project),
    ]
    by = {(event.action, event.object_id): (event.key_id, event.admin_id) for event in acts}
    assert by["key made", key][0] == me
    assert by["decision approved", asked] != by["decision asked for", asked]
    assert all(admin for _, admin in (by["decision approved", asked], by["decision asked for", asked]))
    logins = [event.outcome for event in events_of(settings.database_url, AuditEvent.action == "POST /login")]
    assert logins == [Outcome.ALLOWED, Outcome.REFUSED]


def test_an_upload_is_logged_where_it_began_whatever_becomes_of_it(tmp_path, database_url):
    """Neither the place nor the time of its event says how long the content was read, and nothing how much it was."""
    upload = "PUT /v1/datasets/{dataset_id}/content"
    with served_with(tmp_path, database_url, audit_log="required") as served:
        dataset = served.dataset()["id"]

        def body() -> Iterator[bytes]:
            whole = npz(20)
            yield whole[:100]
            wait_until(lambda: events_of(database_url, AuditEvent.action == upload), "the upload is not logged")
            served.client("read").get("/v1/jobs").raise_for_status()  # while it comes
            yield whole[100:]

        assert served.upload(dataset, body()).status_code == 200
        again = served.dataset()["id"]
        assert served.upload(again, b"no archive").status_code == 422
        assert served.upload(dataset, npz(20)).status_code == 409
    rows = events_of(database_url)
    actions = [event.action for event in rows]
    first = actions.index(upload)
    assert actions[first + 1] == "GET /v1/jobs"
    assert rows[first].at < rows[first + 1].at
    uploads = [(event.object_id, event.outcome) for event in rows if event.action == upload]
    assert uploads == [(dataset, Outcome.ALLOWED), (again, Outcome.ALLOWED), (dataset, Outcome.REFUSED)]


def test_a_flood_of_refusals_is_counted(tmp_path, sqlite_url):
    """1,500 requests beyond the limit left 1,512 events."""
    settings = {"audit_log": "required", "requests_per_minute": 5}
    with served_with(tmp_path, sqlite_url, log_limits=LogLimits(alike_max=3), **settings) as served:

        def ask(scope: str | None, address: str, count: int, path: str = "/v1/jobs", **headers: str) -> list[int]:
            client = served.client(scope)
            return [client.get(path, headers={"X-Forwarded-For": address} | headers).status_code for _ in range(count)]

        assert ask("read", "203.0.113.1", 60) == [200] * 5 + [429] * 55
        assert ask(None, "203.0.113.2", 40) == [401] * 5 + [429] * 35
        wrong = {"Authorization": "Bearer obs_wrong"}
        assert set(ask(None, "203.0.113.3", 30, **wrong)) == {401, 429}
        assert ask(None, "203.0.113.4", 2, "/v1/accounts") == [401, 401]
    rows = [(row.action, row.key_id is not None, row.outcome) for row in events_of(sqlite_url)]
    counted = {row: count for row, count in Counter(rows).items() if row[0].endswith(("jobs", "more)", "accounts"))}
    jobs, refused = "GET /v1/jobs", Outcome.REFUSED
    assert counted == {
        (jobs, True, Outcome.ALLOWED): 5,
        (jobs, True, refused): 1,
        ("* (54 more)", True, refused): 1,
        (jobs, False, refused): 3 + 1 + 3 + 1,
        ("GET /v1/jobs (2 more)", False, refused): 1,
        ("* (34 more)", False, refused): 1,
        ("GET /v1/jobs (7 more)", False, refused): 1,
        ("* (19 more)", False, refused): 1,
        ("GET /v1/accounts", False, refused): 2,
    }


def test_the_count_of_a_flood_is_written_at_the_end_of_its_window(tmp_path, factory, database_url):
    writer = writer_to(factory, tmp_path, flood_seconds=0.5)
    event = event_of(None, "GET /v1/jobs", JOB, Outcome.REFUSED, at=NOW)
    writer.start()
    try:
        for _ in range(2):
            while writer.put_refusal(event, "203.0.113.1", 429) is None:
                pass
            counted = AuditEvent.action.endswith("more)")
            wait_until(lambda: not writer._floods and not writer._waiting, "the window has no end")
        assert all(row.object_id is None for row in events_of(database_url, counted))
    finally:
        writer.stop()


def test_floods_of_very_many_senders_take_bounded_memory(tmp_path, sqlite_factory):
    writer = writer_to(sqlite_factory, tmp_path, "on", floods_max=10)
    event = event_of(None, "GET /v1/jobs", None, Outcome.REFUSED, at=NOW)
    for number in range(50):
        for _ in range(5):
            writer.put_refusal(event, f"203.0.113.{number}", 429)
    assert len(writer._floods) == 10
    assert len(writer._waiting) == 50 + 40


def test_several_processes_write_one_log(tmp_path, factory, database_url):
    event = event_of(None, "GET /v1/jobs", JOB, Outcome.ALLOWED, at=NOW)
    one, two = (writer_to(factory, tmp_path) for _ in range(2))

    def write(writer: EventWriter) -> None:
        for _ in range(30):
            writer.put(event).result(PATIENCE_SECONDS)

    for writer in (one, two):
        writer.start()
    assert at_once(*(partial(write, writer) for writer in (one, two, one, two))) == [None] * 4
    for writer in (one, two):
        writer.stop()
    assert len({row.id for row in events_of(database_url)}) == 120


@pytest.mark.parametrize("end", [RuntimeError, asyncio.CancelledError])
def test_what_is_never_answered_has_failed(tmp_path, sqlite_factory, sqlite_url, end):
    """By a fault of ours, or since the client has gone away."""

    async def broken(scope: Any, _receive: Any, _send: Any) -> None:
        scope["route"], scope["path_params"] = SimpleNamespace(path="/v1/jobs/{job_id}"), {"job_id": JOB}
        raise end

    writer = writer_to(sqlite_factory, tmp_path)
    writer.start()
    with pytest.raises(end):
        asyncio.run(Audit(broken, writer)({"type": "http", "method": "GET"}, None, None))  # type: ignore[arg-type]
    writer.stop()
    (event,) = events_of(sqlite_url)
    assert (event.action, event.object_id, event.outcome) == ("GET /v1/jobs/{job_id}", JOB, Outcome.FAILED)


def test_what_the_operator_does_on_the_machine_is_an_act_of_nobody(tmp_path, sqlite_url):
    for mode, name in (("off", "Ann"), ("on", "Bob")):
        settings = {"OBSCURA_DATABASE_URL": sqlite_url, "OBSCURA_AUDIT_LOG": mode}
        Shell(tmp_path)("admins", "restore", name, "--out", str(tmp_path / name), **settings)
    acts = [(event.action, event.key_id, event.outcome) for event in events_of(sqlite_url)]
    assert acts == [(act, None, Outcome.ALLOWED) for act in (Act.ADMIN_ADMITTED, Act.KEY_MADE)]
