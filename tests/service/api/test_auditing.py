"""Every route leaves one event with what came of it, whoever asked, on either database; and none is left out unseen."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from obscura.wire.words import Outcome
from service.api.auditing import UNLOGGED
from service.dashboard.admin import SHOWN_MAX
from service.db.access_tables import DEFAULT_PROJECT, AuditEvent
from service.identity.access import Principal, Scope
from service.identity.recording import Act, append, event_of
from service.main import utc_now
from service.settings import Settings
from tests.service.departments import NOBODYS, Department, all_routes, ask, departments
from tests.service.reading_routes import TestClient
from tests.service.steps import WithDatabase

ACTS = set(Act)
SHOWS_NOTHING = {"/uploads", "/v1/health/live", "/v1/health/ready", "/static/{name}", "/reference"}
SECRET = "sekretsekret"


class Installation(WithDatabase):
    """A service that answers only what it can log: `ids` are of the analyst's project, and `missing` of nothing."""

    def __init__(self, settings: Settings, department: Department) -> None:
        self.settings, self.ids, self.missing = settings, department.ids, department.missing
        whose = {"admin": "nobody", "analyst": "ours", "auditor": "theirs", "owner": "theirs"}
        self.clients = {role: department.clients[role, project] for role, project in whose.items()}
        self.key_ids: dict[str, str | None] = {
            role: f"key_{client.headers['Authorization'].split('_')[1]}" for role, client in self.clients.items()
        }
        admin, other = self.clients["admin"], self.clients["owner"].get("/v1/projects").json()["items"][0]["id"]
        self.projects = {"admin": None, "nobody": None, "analyst": DEFAULT_PROJECT, "auditor": other, "owner": other}
        self.clients["nobody"] = TestClient(admin.app, follow_redirects=False, base_url=str(admin.base_url))
        self.key_ids["nobody"] = None
        self.factory = admin.app.state.service.factory

    def events(self, after: int = 0) -> list[AuditEvent]:
        return sorted(self.rows(AuditEvent, AuditEvent.sequence > after), key=lambda event: event.sequence)

    def newest(self) -> int:
        return self.read(Session.scalar, select(func.max(AuditEvent.sequence))) or 0


@pytest.fixture(scope="module")
def installation(place: Settings) -> Iterator[Installation]:
    settings = place.model_copy(update={"audit_log": "required"})
    with departments(settings) as department:
        yield Installation(settings, department)


def expected(status: int, sent_to_sign_in: bool) -> Outcome:
    """What came of a request, as a stranger would say it who saw the answer."""
    if status == 404:
        return Outcome.MISSING
    if sent_to_sign_in or 400 <= status < 500:
        return Outcome.REFUSED
    return Outcome.FAILED if status >= 500 else Outcome.ALLOWED


@pytest.mark.slow
def test_every_route_leaves_one_event_with_what_came_of_it_and_who_asked(installation: Installation) -> None:
    """Each with what is there and what is not, by three callers; changing ones last, so that what is there stays.

    On PostgreSQL, for the sake of time, each by one of them in turn.
    """
    wrong: list[Any] = []
    seen: dict[Outcome, int] = {}
    ordered = sorted(all_routes(), key=lambda route: (route[0] != "GET", route[1] == "/logout"))
    callers = ("nobody", "auditor", "analyst")
    newest = installation.newest()
    in_turn = installation.settings.database_url.startswith("postgresql")
    for number, (method, path) in enumerate(ordered):
        for who in (callers[number % 3],) if in_turn else callers:
            for ids in (installation.missing, installation.ids):
                status, said = ask(installation.clients[who], method, path, ids)
                events = installation.events(newest)
                newest = events[-1].sequence if events else newest
                if path in SHOWS_NOTHING:
                    wrong += [(method, path, who, "is logged")] if events else []
                    continue
                own = [event for event in events if event.action not in ACTS]
                told = [(event.action, event.outcome) for event in own]
                to_sign_in = status == 303 and who == "nobody" and path not in ("/login", "/logout")
                outcome = expected(status, to_sign_in)
                seen[outcome] = seen.get(outcome, 0) + 1
                if told != [(f"{method} {path}", outcome)]:
                    wrong.append((method, path, who, status, told, said[:80]))
                    continue
                signed = own[0].key_id, own[0].project_id
                if signed != (installation.key_ids[who], installation.projects[who]) and not (
                    signed == (None, None) and (NOBODYS.match(path) or status == 422)
                ):
                    wrong.append((method, path, who, status, signed))
    assert not wrong, wrong
    enough = 10 if in_turn else 20
    assert all(seen.get(outcome, 0) > enough for outcome in (Outcome.ALLOWED, Outcome.REFUSED, Outcome.MISSING)), seen
    assert len(installation.events()) > (200 if in_turn else 500)


def test_what_is_left_out_shows_nothing_of_anybody():
    left_out = {path for _, path in all_routes() if path.startswith(UNLOGGED)}
    assert left_out == SHOWS_NOTHING


def test_what_others_have_leaves_the_event_of_what_is_not_there(installation: Installation) -> None:
    alike = 0
    for method, path in all_routes():
        names = re.findall(r"\{(\w+_id)\}", path)
        if not names or method != "GET":
            continue
        before = installation.newest()
        for ids in (installation.ids, installation.missing):
            ask(installation.clients["auditor"], method, path, ids)
        foreign, missing = (
            (event.action, event.outcome, event.key_id, event.admin_id, event.project_id)
            for event in installation.events(before)
        )
        assert foreign == missing
        alike += foreign[1] is Outcome.MISSING
    assert alike > 15


def test_events_name_objects_and_never_what_was_sent(installation: Installation) -> None:
    owner = installation.clients["owner"]
    before = installation.newest()
    made = owner.post("/v1/keys", json={"name": SECRET, "role": "viewer"}).json()
    owner.get(f"/v1/jobs/{SECRET}", params={SECRET: SECRET}, headers={"X-Request-Id": SECRET})
    owner.get("/v1/decisions", params={"account_id": SECRET})
    owner.get(f"/v1/releases/{installation.ids['release_id']}/files/{SECRET}")
    owner.get(f"/sign-in/{'ab' * 32}")
    owner.post(f"/v1/keys/{made['id']}/revoke", json={"include_created": True})
    columns = [column.name for column in AuditEvent.__table__.columns]
    rows = [{name: getattr(event, name) for name in columns} for event in installation.events(before)]
    text_of_all = str(rows)
    assert SECRET not in text_of_all
    assert "ab" * 20 not in text_of_all
    assert made["token"] not in text_of_all
    assert [(row["action"], row["object_id"]) for row in rows] == [
        ("POST /v1/keys", None),
        ("key made", made["id"]),
        ("GET /v1/jobs/{job_id}", None),
        ("GET /v1/decisions", None),
        ("GET /v1/releases/{release_id}/files/{name}", installation.ids["release_id"]),
        ("GET /sign-in/{secret}", None),
        ("POST /v1/keys/{key_id}/revoke", made["id"]),
        ("key revoked", made["id"]),
    ]


def test_auditors_and_owners_read_their_project_and_admins_everything(installation: Installation) -> None:
    def read(who: str, **query: Any) -> list[dict[str, Any]]:
        answer = installation.clients[who].get("/v1/audit-events", params=query)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("application/jsonl")
        return [json.loads(line) for line in answer.text.splitlines()]

    own = installation.projects["auditor"]
    auditor = Principal(str(installation.key_ids["auditor"]), frozenset({Scope.AUDIT}), project_id=own)
    event = event_of(auditor, "GET /v1/jobs", None, Outcome.ALLOWED, at=utc_now())
    installation.do(append, [event] * (SHOWN_MAX + 10))
    for who in ("auditor", "owner"):
        assert {line["project_id"] for line in read(who)} == {own}
    assert {line["project_id"] for line in read("admin")} == {None, DEFAULT_PROJECT, own}
    assert installation.clients["analyst"].get("/v1/audit-events").status_code == 403
    first = read("auditor", limit=3)
    walked = list(first)
    while page := read("auditor", limit=50, after=walked[-1]["id"]):
        walked += page
        if len(page) < 50:
            break
    everything = read("auditor")
    assert len(walked) > SHOWN_MAX
    assert walked == everything[: len(walked)]
    browser = installation.clients["auditor"]  # which another test has signed out
    browser.post("/login", data={"key": browser.headers["Authorization"].split()[1]})
    shown = browser.get("/settings/audit").text
    assert 'aria-current="page">Audit log</a>' in shown
    assert everything[-1]["action"] in shown
    older = re.search(r'href="(/settings/audit\?before=evt_\w+)"', shown)
    assert older is not None
    earlier = installation.clients["auditor"].get(older[1]).text
    assert [line["outcome"] for line in everything[-3:]] == ["allowed"] * 3
    assert earlier != shown
    asked = set(re.findall(r'data-label="Who">[^<]*<span class="under">(key_\w+)', shown + earlier))
    ours = {key for who, key in installation.key_ids.items() if installation.projects.get(who) in (own, None)}
    assert asked <= ours
    assert installation.clients["nobody"].get("/settings/audit").status_code == 303
    assert all(line["at"].endswith(":00Z") for line in everything)
    assert "sequence" not in everything[0]
    foreign = read("admin", limit=1)[0]["id"]
    refused = [
        installation.clients["auditor"].get("/v1/audit-events", params={"after": id}) for id in (foreign, "evt_x")
    ]
    assert [answer.status_code for answer in refused] == [404, 404]
    assert refused[0].json()["detail"] == refused[1].json()["detail"]
