"""What projects see of each other: lists and pages, and every route with every role, by key, by a session of it and by
one of somebody whom a sign-in provider knows, about what is one's own, another project's, and shared.

What may come of each route is said here, and not read from the code: a cell that answers otherwise is wrong. An answer
about what is not theirs is that about what is not there, letter for letter.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any
from urllib.parse import unquote

import anyio
import pytest

from service.api.deps import COOKIE
from service.db.access_tables import DEFAULT_PROJECT
from service.db.base import Base
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release
from service.identity import access
from service.identity.auth import form_token
from service.settings import Settings
from tests.service import departments
from tests.service.departments import named
from tests.service.reading_routes import TestClient, reading_routes

CALLERS = (*departments.ROLES, "admin")
People = Mapping[tuple[str, str], TestClient]
# Which roles have which scope; the admin of the installation has every one, and sees no content of several projects.
MAY: dict[str, set[str]] = {
    "admin": {"owner", "admin"},
    "audit": {"owner", "auditor", "admin"},
    "metrics": {"admin"},
    "installation": {"admin"},
    "data": {"owner", "steward", "admin"},
    "person": set(),  # whom a sign-in provider knows, whatever their role: see `may`
    "read": departments.READS,
    "releases": {*departments.READS, "viewer"},
    "train": {"owner", "analyst", "admin"},
}
OF_INSTALLATION = {f"POST /v1/{place}" for place in ("accounts", "projects", "projects/{project_id}/quota")}
OF_INSTALLATION |= {"GET /v1/ledger", "POST /v1/accounts/first-plan"}
# Not for an admin, where there are several.
OF_PROJECTS = {"POST /v1/accounts/{account_id}/withdrawals", "POST /v1/datasets"}
PAGES = {f"GET /settings/{page}": "admin" for page in ("members", "keys", "webhooks")}
PAGES |= {"GET /settings/audit": "audit", "POST /view": "installation"}
PAGES |= {f"POST /you/keys/{{key_id}}/{act}": "read" for act in ("rotate", "revoke")}  # their own, at least
PAGES |= dict.fromkeys(("POST /uploads", "PUT /uploads", "POST /datasets/{dataset_id}"), "data")
HIDDEN_FROM_ADMINS = {f"{{{noun}_id}}" for noun in ("dataset", "job", "sweep", "release", "sample", "preview", "made")}
# What a share opens, and the answer of each to whoever may.
SHARED = {"POST /v1/releases/{release_id}/samples": 202, "GET /compare": 200}
SHARED |= {
    f"GET {place}{part}": 200
    for place, parts in {
        "/v1/releases/{release_id}": (
            *("", "/card", "/grid.png", "/images/{number}.png", "/files/{name}"),
            *("/evaluations", "/report.html", "/report.json", "/shares"),
        ),
        "/releases/{release_id}": (*("", "/{tab}", "/tiles.png", "/images/{number}.png", "/files/{name}", "/report"),),
        "/v1/samples/{sample_id}": ("", "/content"),
        "/samples/{sample_id}": ("/content",),
    }.items()
    for part in parts
}
STAYS = "Only the project that trained this release may see this"


@dataclass
class Matrix:
    """Asks the application itself, without a client between, and remembers what it says of what is not there."""

    department: departments.Department
    missed: dict[tuple[str, str, str], tuple[int, str]] = field(default_factory=dict)

    def ask(self, who: TestClient, means: str, method: str, path: str, ids: Mapping[str, str]) -> tuple[int, str]:
        cookie = who.cookies.get(COOKIE) or ""
        place, headers, body = departments.message(cookie, method, path, ids)
        if means == "key":
            shown = {"authorization": who.headers["Authorization"]}
        else:  # as a page's script asks
            shown = {"cookie": f"{COOKIE}={cookie}", "x-form-token": form_token(cookie)}
        portal = self.department.clients["admin", "nobody"].portal
        assert portal is not None
        status, text = portal.call(answer, who.app, method, place, {**headers, **shown}, body)
        return status, departments.without_ids(text, place, ids)

    def missing(self, who: TestClient, means: str, method: str, path: str) -> tuple[int, str]:
        key = (who.headers.get("Authorization") or who.cookies[COOKIE], means, f"{method} {path}")
        if key not in self.missed:
            self.missed[key] = self.ask(who, means, method, path, self.department.missing)
        return self.missed[key]


async def answer(app: Any, method: str, place: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
    """Return status and text of an answer of an application."""
    path, _, query = place.partition("?")
    named = {"host": "127.0.0.1:8420", **{name.lower(): value for name, value in headers.items()}}
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http"}
    scope |= {"path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": ""}
    scope |= {"headers": [(name.encode(), value.encode()) for name, value in named.items()], "state": {}}
    scope |= {"client": ("127.0.0.1", 50000), "server": ("127.0.0.1", 8420)}
    parts, status, sent = [], 0, False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await anyio.sleep_forever()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(said: Any) -> None:
        nonlocal status
        status = said.get("status", status)
        parts.append(said.get("body", b""))

    await app(scope, receive, send)
    return status, b"".join(parts).decode("utf-8", "replace")


@dataclass(frozen=True)
class Cell:
    """Who asks what about whose object, by `key`, by a `session` that a key has opened, or by that of a `person`."""

    method: str
    path: str
    role: str
    means: str
    whose: str

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def of_api(self) -> bool:
        return self.path.startswith(("/v1/", "/metrics"))

    def may(self, scopes: Mapping[str, str]) -> bool:
        """Whether the role lets the request pass; that the object is theirs is another question."""
        barred = OF_PROJECTS if self.role == "admin" else OF_INSTALLATION
        if self.means == "person" and self.path.startswith("/you"):
            return True
        return self.role in MAY[self._scope(scopes)] and self.name not in barred

    def _scope(self, scopes: Mapping[str, str]) -> str:
        if self.of_api:
            return scopes[self.name]
        return PAGES.get(self.name, "read" if self.method == "GET" else "person")

    def fits(self, status: int, text: str, may: bool, missing: Callable[[], tuple[int, str]]) -> bool:
        """Whether an answer is the one that this cell has to give."""
        if self.means == "key" and not self.of_api:  # a key opens no page
            return status == 303
        if not may:
            return status == 403
        if self.whose == "own":
            shown = self.method != "GET" or status in (200, 204, 422) or "{name}" in self.path
            return status not in (401, 403) and shown
        if self.whose == "shared" and self.role != "admin" and (self.name in SHARED or STAYS in text):
            return status == SHARED.get(self.name, 404)
        # A dataset that is not theirs is looked for after a release that is.
        alike = (status, text) == missing() or (self.whose == "shared" and "no such dataset" in text)
        return alike and (status == 404 or "{" not in self.path) and status < 500


def cells(asked: Iterable[tuple[str, str]]) -> Iterator[Cell]:
    for (method, path), role, means in product(asked, CALLERS, ("key", "session", "person")):
        if (role, means) == ("viewer", "session"):
            continue  # it has none
        places = named(method, path)
        shared = ("shared",) if places & {"{release_id}", "{sample_id}"} else ()
        for whose in ("own", *(("foreign", *shared) if places else ())):
            # An admin has no content, and all the rest is theirs.
            if role != "admin" or (whose == "own") != bool(places & HIDDEN_FROM_ADMINS):
                yield Cell(method, path, role, means, whose)


def wrong_cells(department: departments.Department, people: People, asked: Sequence[Cell]) -> list[str]:
    """Ask, and return the cells that answer otherwise than they have to."""
    foreign, scopes, matrix = foreign_ids(department), scopes_of(department), Matrix(department)
    wrong = []
    for cell in asked:
        project = "nobody" if cell.role == "admin" else "ours" if cell.whose == "own" else "theirs"
        who = (people if cell.means == "person" else department.clients)[cell.role, project]
        question = who, cell.means, cell.method, cell.path
        may, missing = cell.may(scopes), partial(matrix.missing, *question)
        if cell.whose == "own" and may and cell.method != "GET":  # passes, and finds nothing that it could change
            status, text = missing()
        else:
            status, text = matrix.ask(*question, foreign if cell.whose == "foreign" else department.ids)
        if not cell.fits(status, text, may, missing):
            wrong.append(f"{cell}: {status} {text[:200]}")
    return wrong


def test_lists_and_pages_of_others_name_nothing_of_ours(department: departments.Department) -> None:
    ours, theirs = (department.clients["analyst", whose] for whose in ("ours", "theirs"))
    named = 0
    for path in reading_routes():
        if "{" in path or departments.NOBODYS.match(path):
            continue
        seen = theirs.get(path)
        assert seen.status_code in (200, 403, 422), path
        assert "acc_" not in seen.text, path
        ids = [id for name, id in department.ids.items() if name.endswith("_id")]
        assert not [id for id in ids if id in seen.text], path
        named += any(id in ours.get(path).text for id in ids)
    assert named > 10
    assert theirs.get("/train", params={"again": department.ids["job_id"]}).status_code == 404


def test_lists_of_an_admin_of_the_installation_have_no_content_of_departments(
    department: departments.Department,
) -> None:
    admin = department.clients["admin", "nobody"]
    for noun in ("datasets", "jobs", "sweeps", "releases"):
        assert admin.get(f"/v1/{noun}").json()["items"] == []
    assert admin.get(f"/v1/accounts/{department.ids['account_id']}").status_code == 200


def test_an_admin_sees_accounts_of_every_project_and_makes_keys_and_accounts_in_a_named_one(
    department: departments.Department,
) -> None:
    admin, theirs = department.clients["admin", "nobody"], department.clients["owner", "theirs"]
    terms = {"name": "hearts", "owner": "o", "epsilon": 1, "delta": 1e-6, "unit": "record", "adjacency": "add_remove"}
    refused = admin.post("/v1/accounts", json=terms)
    assert (refused.status_code, "several projects" in refused.text) == (422, True)
    (own,) = theirs.get("/v1/projects").json()["items"]
    opened = admin.post("/v1/accounts", json=terms | {"project_id": own["id"]}).raise_for_status().json()
    assert opened["project_id"] == own["id"]
    assert [each["id"] for each in theirs.get("/v1/accounts").json()["items"]] == [opened["id"]]
    assert opened["id"] not in department.clients["analyst", "ours"].get("/v1/accounts").text
    assert {opened["id"], department.ids["account_id"]} <= {
        one["id"] for one in admin.get("/v1/accounts").json()["items"]
    }
    assert admin.post("/v1/keys", json={"name": "k", "scopes": ["read"]}).status_code == 422
    assert admin.post("/v1/keys", json={"name": "k", "scopes": ["read"], "role": "viewer"}).status_code == 422
    assert admin.post("/v1/keys", json={"name": "k", "scopes": ["read"], "project_id": "prj_x"}).status_code == 404
    body = {"name": "d", "account_id": None, "visibility": "public", "classes": ["a"], **departments.SHAPE}
    public = theirs.post("/v1/datasets", json=body).raise_for_status().json()
    assert department.clients["analyst", "ours"].get(f"/v1/datasets/{public['id']}").status_code == 404


def test_an_owner_makes_keys_of_the_own_project_alone(department: departments.Department) -> None:
    owner = department.clients["owner", "theirs"]
    (own,) = owner.get("/v1/projects").json()["items"]
    for body in ({"scopes": ["admin"]}, {"role": "owner"}, {"scopes": ["read"]}, {"role": "analyst"}):
        made = owner.post("/v1/keys", json={"name": "k", **body}).raise_for_status().json()
        assert made["project_id"] == own["id"], body
        refused = owner.post("/v1/keys", json={"name": "k", "project_id": DEFAULT_PROJECT, **body})
        assert (refused.status_code, refused.json()["detail"]) == (404, "There is no such project.")
    listed = owner.get("/v1/keys?limit=200").json()["items"]
    assert {key["project_id"] for key in listed} == {own["id"]}


def test_projects_are_renamed_and_no_two_have_one_name(department: departments.Department) -> None:
    admin = department.clients["admin", "nobody"]
    names = {one["name"]: one["id"] for one in admin.get("/v1/projects").json()["items"]}
    assert admin.post("/v1/projects", json={"name": "heart"}).status_code == 409
    assert admin.post(f"/v1/projects/{names['heart']}/rename", json={"name": "default"}).status_code == 409
    renamed = admin.post(f"/v1/projects/{names['heart']}/rename", json={"name": "cardiology"}).json()
    assert (renamed["id"], renamed["name"]) == (names["heart"], "cardiology")
    (own,) = department.clients["auditor", "theirs"].get("/v1/projects").json()["items"]
    assert own["name"] == "cardiology"


@pytest.fixture(scope="module")
def people(department: departments.Department) -> People:
    return departments.signed_in_people(department)


@pytest.mark.slow
def test_every_cell_of_the_matrix_answers_as_it_is_said_here(
    place: Settings, department: departments.Department, people: People
) -> None:
    """On PostgreSQL by one means each: whichever it is, the same query filters the rows."""
    departments.share(department)
    asked = list(cells(departments.routes()))
    assert len(asked) > 3000, Counter(cell.whose for cell in asked)
    if place.database_url.startswith("postgresql"):
        asked = [cell for cell in asked if cell.means == ("key" if cell.of_api else "session")]
    wrong = wrong_cells(department, people, asked)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("table", [Job, Dataset, Release])
def test_a_rule_that_lets_others_see_is_found(
    department: departments.Department, people: People, monkeypatch: pytest.MonkeyPatch, table: type[Base]
) -> None:
    """The matrix can fail."""
    place = f"/v1/{table.__tablename__}/{{{table.__name__.lower()}_id}}"
    asked = list(cells([("GET", place)]))
    assert wrong_cells(department, people, [cell for cell in asked if cell.whose != "shared"]) == []
    real = access.seen_by
    monkeypatch.setattr(access, "seen_by", lambda caller, seen: None if seen is table else real(caller, seen))
    found = wrong_cells(department, people, [cell for cell in asked if cell.whose == "foreign" and cell.means == "key"])
    assert len(found) >= len(departments.READS)


def scopes_of(department: departments.Department) -> dict[str, str]:
    """Return the scope that each route of the API asks for, as its document says."""
    document = department.clients["admin", "nobody"].get("/v1/openapi.json").json()["paths"]
    return {"GET /metrics": "metrics"} | {  # which the document leaves out
        f"{method.upper()} {path}": operation["security"][0]["ApiKey"][0]
        for path, operations in document.items()
        for method, operation in operations.items()
        if "security" in operation
    }


def foreign_ids(department: departments.Department) -> dict[str, str]:
    """Return ids of ours, with another release and a sample of it, which are not shared."""
    analyst, shared = department.clients["analyst", "ours"], department.ids["release_id"]
    other = next(one["id"] for one in analyst.get("/v1/releases").json()["items"] if one["id"] != shared)
    body = {"count": 1, "seed": 1, "format": "npz"}
    drawn = analyst.post(f"/v1/releases/{other}/samples", json=body, headers={"Idempotency-Key": "foreign"})
    return {**department.ids, "release_id": other, "sample_id": drawn.raise_for_status().json()["id"]}
