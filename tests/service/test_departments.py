"""Every route of the application's own table, with one's own objects, another project's, and none at all.

An answer about a foreign object is that about a missing one, letter for letter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from obscura.wire.ids import introduce
from service import dashboard
from service.api.routes import routers
from service.dashboard.access import COOKIE
from service.dashboard.sessions import form_token
from service.db.project_tables import DEFAULT_PROJECT
from service.settings import Settings
from tests.conftest import clear_postgres
from tests.service.reading_routes import TestClient, address, reading_routes, stocked

ROLES = ("owner", "steward", "analyst", "auditor", "viewer")
READS = {"owner", "steward", "analyst", "auditor", "admin"}  # who may open pages
ADMINS = {"admin", "owner"}
OF_INSTALLATION = {"/v1/ledger"}  # for admins of no project
OF_AUDITORS = {"/v1/audit-events", "/audit"}
OF_ADMINS = {"/v1/admins", "/v1/admin-requests", "/v1/keys", "/v1/webhooks", "/admins"}
OF_VIEWERS = re.compile("/v1/(releases|samples)")
PLAN = {"dataset_id": "{dataset_id}", "recipe": "datalens", "epsilon": 0.1, "options": {}}
SHAPE = {"height": 8, "width": 8, "channels": 1, "records_declared": 5, "subjects_declared": None}
# What is sent where an object stands in the body, or where nothing is looked for before the body was read.
BODIES: dict[str, dict[str, Any]] = {
    "POST /v1/accounts/{account_id}/freeze": {"reason": "a test"},
    "POST /v1/accounts/{account_id}/unfreeze": {"reason": "a test"},
    "POST /v1/accounts/{account_id}/lower-limit": {"reason": "a test", "epsilon": 0.5},
    "POST /v1/accounts/{account_id}/limit-requests": {"reason": "a test", "epsilon": 500},
    "POST /v1/admins": {"name": "Eve", "introduction": "key_" + "e" * 20 + ":" + "0" * 64, "reason": "a test"}
    | {"project_id": "{project_id}"},
    "POST /v1/admins/{admin_id}/remove": {"reason": "a test"},
    "POST /v1/datasets": {
        "name": "d",
        "account_id": "{account_id}",
        "visibility": "private",
        "classes": ["a"],
        **SHAPE,
    },
    "POST /v1/plans": PLAN,
    "POST /v1/jobs": PLAN,
    "POST /v1/previews": {**PLAN, "stand_in_dataset_id": None},
    "POST /v1/sweeps": {"name": "s", "trials": [{key: PLAN[key] for key in ("recipe", "epsilon", "options")}] * 2}
    | {"dataset_id": "{dataset_id}"},
    "POST /v1/releases/{release_id}/samples": {"count": 1, "seed": 1, "format": "npz"},
    "POST /v1/releases/{release_id}/evaluations": {"dataset_id": "{dataset_id}"},
    "POST /v1/projects/{project_id}/rename": {"name": "another name"},
    "POST /v1/projects/{project_id}/quota": {"jobs_max": 1000},
    "POST /v1/webhooks": {"url": "https://hooks.example.org/"},
    "POST /v1/webhooks/{webhook_id}/rotate": {"overlap_seconds": 60},
    "POST /v1/keys/{key_id}/revoke": {},
    "POST /v1/keys/{key_id}/rotate": {"overlap_seconds": 0},
    "POST /v1/keys/{key_id}/ask-revocation": {"reason": "a test"},
}
QUERIES = {
    "PUT /v1/datasets/{dataset_id}/content": "?format=npz",
    "GET /compare": "?release={release_id}",
    "GET /train": "?dataset={dataset_id}",
    "GET /train/price": "?dataset={dataset_id}&recipe=datalens&epsilon=0.1",
    "GET /": "?after={account_id}",
    "GET /datasets/new": "?account={account_id}",
    **{f"GET /v1/{many}": "?account_id={account_id}" for many in ("datasets", "jobs", "sweeps", "releases")},
    "GET /v1/limit-requests": "?account_id={account_id}",
    "GET /v1/keys": "?made_by={key_id}",
}
FORM = {
    "reason": "a test",
    "sure": "yes",
    "epsilon": "0.1",
    "once": "0" * 32,
    "count": "1",
    "seed": "1",
    "format": "npz",
}
READ_FIRST = {"/datasets/{dataset_id}/content"}  # uploads by browsers: the body is wrong before anything is looked for
NOBODYS = re.compile(r"/v1/health|/login|/logout|/sign-in|/static|/reference|/v1/recipes")


@dataclass(frozen=True)
class Department:
    """A service in which one project has something of everything, and another one nothing.

    Attributes:
        clients: by the name of a key and the project that it is of: ours has everything, theirs nothing.
        ids: of the objects of ours.
        missing: ids that nothing has.
    """

    clients: Mapping[tuple[str, str], TestClient]
    ids: Mapping[str, str]
    missing: Mapping[str, str]


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def department(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Department]:
    folder: Path = tmp_path_factory.mktemp("departments")
    url = f"sqlite:///{folder / 'obscura.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("migrated_postgres")
    with stocked(Settings(data_dir=folder, database_url=url, mode="celery")) as (admin, ids):
        other = admin.post("/v1/projects", json={"name": "heart"}).raise_for_status().json()["id"]
        clients = {("admin", "nobody"): admin}
        for role, (whose, project) in product(ROLES, {"ours": DEFAULT_PROJECT, "theirs": other}.items()):
            token = key_of(admin, role, f"{role} {whose}", project)
            client = TestClient(admin.app, follow_redirects=False, base_url=str(admin.base_url))
            if role in READS:
                assert client.post("/login", data={"key": token}).headers["location"] == "/"
            client.headers["Authorization"] = f"Bearer {token}"
            clients[role, whose] = client
        person = admin.get("/v1/admins").json()["items"][0]["id"]
        ids |= {
            "made_id": ids["preview_id"],
            "name": "generator.json",
            "admin_id": person,
            "project_id": DEFAULT_PROJECT,
        }
        ids |= {"key_id": admin.get("/v1/keys?limit=20").json()["items"][-1]["id"]}
        hook = clients["owner", "ours"].post("/v1/webhooks", json={"url": "https://localhost:1/"})
        ids |= {"webhook_id": hook.raise_for_status().json()["id"]}
        missing = {
            name: re.sub(r"(?<=_)\w+$", "a" * 20, id) if name.endswith("_id") else id for name, id in ids.items()
        }
        yield Department(clients, ids, missing)
    if request.param == "postgresql":
        clear_postgres(url)


def key_of(admin: TestClient, role: str, name: str, project_id: str) -> str:
    """The token of a member of a project; an owner is a person, who has made it and is named by its introduction."""
    if role != "owner":
        body = {"name": name, "role": role, "project_id": project_id}
        return str(admin.post("/v1/keys", json=body).raise_for_status().json()["token"])
    token, introduction = introduce()
    body = {"name": name, "introduction": introduction, "reason": "a test", "project_id": project_id}
    assert admin.post("/v1/admins", json=body).raise_for_status().json()["admin"]["project_id"] == project_id
    return token


def routes() -> list[tuple[str, str]]:
    """Method and path of every route that may show or touch what belongs to somebody."""
    tables = [route for router in (*routers(), *dashboard.PARTS) for route in router.routes]
    found = [
        (method, route.path) for route in tables if isinstance(route, APIRoute) for method in sorted(route.methods)
    ]
    return [(method, path) for method, path in found if not NOBODYS.match(path)]


def ask(client: TestClient, method: str, path: str, ids: Mapping[str, str]) -> tuple[int, str]:
    """Ask for a path with ids in its places; return status and text without these ids and random parts."""
    name = f"{method} {path}"
    place = address(path + QUERIES.get(name, ""), ids)
    given = {key: ids.get(str(value).strip("{}"), value) for key, value in BODIES.get(name, {}).items()}
    if method == "GET":
        answer = client.get(place)
    elif path.startswith("/v1/"):
        answer = client.request(method, place, json=given, headers={"Idempotency-Key": "0"} if method == "POST" else {})
    else:
        fields = FORM | {"token": form_token(client.cookies.get(COOKIE) or ""), "dataset_id": ids["dataset_id"]}
        answer = client.request(method, place, data=fields | {"dataset": ids["dataset_id"]})
    text = answer.text
    for known in sorted({*ids.values(), *place.split("?")}, key=len, reverse=True):
        text = text.replace(known, "ID") if len(known) > 8 else text
    return answer.status_code, re.sub(r"[0-9a-f]{32,64}", "RANDOM", text)


def named(path: str, name: str) -> bool:
    """Whether a route names an object: in its path, its query or its body."""
    sent = f"{path}{QUERIES.get(name, '')}{BODIES.get(name, '')}"
    return re.search(r"\{\w+_id\}", sent) is not None


def test_what_others_have_is_answered_as_what_is_not_there(department: Department) -> None:
    seen: Counter[int] = Counter()
    wrong = []
    for (method, path), key in product(routes(), ROLES):
        if not named(path, f"{method} {path}"):
            continue
        client = department.clients[key, "theirs"]
        foreign, missing = (ask(client, method, path, ids) for ids in (department.ids, department.missing))
        seen[foreign[0]] += 1
        if foreign != missing or foreign[0] >= 500:
            wrong.append((method, path, key, foreign[0], missing[0]))
        looked = (303, 403, 404, 422) if path in READ_FIRST else (303, 403, 404)
        if "{" in path and foreign[0] not in looked:
            wrong.append((method, path, key, foreign[0], "neither refused nor not there"))
    assert not wrong, wrong
    assert seen[404] > 60, seen


def test_lists_and_pages_of_others_name_nothing_of_ours(department: Department) -> None:
    client = department.clients["analyst", "theirs"]
    for path in reading_routes():
        if "{" in path or NOBODYS.match(path):
            continue
        seen = client.get(path)
        assert seen.status_code in (200, 403, 422), path
        assert "acc_" not in seen.text, path
        assert not [id for name, id in department.ids.items() if name.endswith("_id") and id in seen.text], path


def test_what_is_ours_is_there_and_asks_for_its_scope(department: Department) -> None:
    for (method, path), key in product(routes(), ROLES):
        if method != "GET":
            continue
        status = (
            department.clients[key, "ours"]
            .get(address(path + QUERIES.get(f"GET {path}", ""), department.ids))
            .status_code
        )
        allowed = READS
        if path in OF_INSTALLATION:
            allowed = set()
        elif path in OF_ADMINS:
            allowed = {"owner"}
        elif path in OF_AUDITORS:
            allowed = {"owner", "auditor"}
        elif OF_VIEWERS.match(path):
            allowed = {*READS, "viewer"}
        refused = 403 if path.startswith("/v1/") or key in READS else 303  # without a session one is sent to sign in
        assert (status == refused) != (key in allowed), (path, key, status)
        assert key not in allowed or status != 404 or "{name}" in path, (path, key, status)


def test_a_role_does_what_its_scopes_allow_and_nothing_else(department: Department) -> None:
    allowed = {"train": {"owner", "analyst"}, "data": {"owner", "steward"}, "admin": {"owner"}, "read": READS}
    allowed["releases"] = {*READS, "viewer"}
    of_installation = {"POST /v1/accounts", "POST /v1/projects", "POST /v1/projects/{project_id}/quota"}
    asked = 0
    for path, operations in department.clients["admin", "nobody"].get("/v1/openapi.json").json()["paths"].items():
        for method, operation in operations.items():
            if method == "get" or "security" not in operation:
                continue
            (needed,) = operation["security"][0]["ApiKey"]
            whole = f"{method.upper()} {path}"
            for key in ROLES:  # nothing that is there is named, so nothing is done
                status, text = ask(department.clients[key, "ours"], method.upper(), path, department.missing)
                may = key in allowed[needed] and whole not in of_installation
                assert (status == 403) != may, (whole, key, status, text)
                asked += 1
    assert asked > 100


def test_an_admin_of_the_installation_sees_no_datasets_and_releases_of_departments(department: Department) -> None:
    admin = department.clients["admin", "nobody"]
    hidden = re.compile(
        "/v1/(datasets|jobs|sweeps|releases|samples|previews)|/(datasets|jobs|sweeps|releases|previews)/"
    )
    seen = 0
    for path in reading_routes():
        if not hidden.match(path) or path == "/datasets/new":
            continue
        place = address(path, department.ids)
        if "{" in path:
            assert ask(admin, "GET", path, department.ids) == ask(admin, "GET", path, department.missing), path
            assert admin.get(place).status_code == 404, path
            seen += 1
        elif path.startswith("/v1/"):
            assert admin.get(place).json()["items"] == [], path
    assert seen > 20
    assert admin.get(f"/v1/accounts/{department.ids['account_id']}").status_code == 200


def test_an_admin_of_the_installation_declares_and_pays_for_nothing_of_departments(department: Department) -> None:
    admin, owner = department.clients["admin", "nobody"], department.clients["owner", "ours"]
    account = f"/v1/accounts/{department.ids['account_id']}"
    before = owner.get(account).json()
    facts = {"name": "scans", "classes": ["a", "b"], "height": 8, "width": 8, "channels": 1, "records_declared": 100}
    for body in (
        {**facts, "visibility": "private", "account_id": department.ids["account_id"]},
        {**facts, "visibility": "public"},
    ):
        assert admin.post("/v1/datasets", json=body).status_code == 403
        assert owner.post("/v1/datasets", json=body).status_code == 201
    assert admin.post(f"{account}/counts", headers={"Idempotency-Key": "once"}).status_code == 403
    assert owner.get(account).json() == before


def test_an_admin_sees_accounts_of_every_project_and_makes_keys_and_accounts_in_a_named_one(
    department: Department,
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
    body = {"name": "d", "account_id": None, "visibility": "public", "classes": ["a"], **SHAPE}
    public = theirs.post("/v1/datasets", json=body).raise_for_status().json()
    assert department.clients["analyst", "ours"].get(f"/v1/datasets/{public['id']}").status_code == 404


def test_an_owner_makes_keys_of_the_own_project_alone(department: Department) -> None:
    owner = department.clients["owner", "theirs"]
    (own,) = owner.get("/v1/projects").json()["items"]
    for body in ({"scopes": ["admin"]}, {"role": "owner"}, {"scopes": ["read"]}, {"role": "analyst"}):
        made = owner.post("/v1/keys", json={"name": "k", **body}).raise_for_status().json()
        assert made["project_id"] == own["id"], body
        refused = owner.post("/v1/keys", json={"name": "k", "project_id": DEFAULT_PROJECT, **body})
        assert (refused.status_code, refused.json()["detail"]) == (404, "There is no such project.")
    listed = owner.get("/v1/keys?limit=200").json()["items"]
    assert {key["project_id"] for key in listed} == {own["id"]}


def test_projects_are_renamed_and_no_two_have_one_name(department: Department) -> None:
    admin = department.clients["admin", "nobody"]
    names = {one["name"]: one["id"] for one in admin.get("/v1/projects").json()["items"]}
    assert admin.post("/v1/projects", json={"name": "heart"}).status_code == 409
    assert admin.post(f"/v1/projects/{names['heart']}/rename", json={"name": "default"}).status_code == 409
    renamed = admin.post(f"/v1/projects/{names['heart']}/rename", json={"name": "cardiology"}).json()
    assert (renamed["id"], renamed["name"]) == (names["heart"], "cardiology")
    (own,) = department.clients["auditor", "theirs"].get("/v1/projects").json()["items"]
    assert own["name"] == "cardiology"
