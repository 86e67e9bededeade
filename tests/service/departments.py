"""A service in which one project has something of everything, and another one nothing; and the application's routes."""

import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import product
from typing import Any
from urllib.parse import urlencode

from fastapi.routing import APIRoute
from sqlalchemy import select

from obscura.wire.ids import introduce
from service import dashboard
from service.api.deps import COOKIE
from service.api.routes import routers
from service.db.access_tables import DEFAULT_PROJECT, Person
from service.db.session import transaction
from service.identity.auth import form_token
from service.identity.people import Claims, roles
from service.settings import Settings
from tests.service.reading_routes import TestClient, address, stocked

ROLES = ("owner", "steward", "analyst", "auditor", "viewer")
READS = {"owner", "steward", "analyst", "auditor", "admin"}  # who may open pages
PLAN = {"dataset_id": "{dataset_id}", "recipe": "datalens", "epsilon": 0.1, "options": {}}
SHAPE = {"height": 8, "width": 8, "channels": 1, "records_declared": 5, "subjects_declared": None}
# What is sent where an object stands in the body, or where nothing is looked for before the body was read.
BODIES: dict[str, dict[str, Any]] = {
    "POST /v1/accounts/{account_id}/freeze": {"reason": "a test"},
    "POST /v1/accounts/{account_id}/unfreeze": {"reason": "a test"},
    "POST /v1/accounts/{account_id}/withdrawals": {"subjects": ["anna"]},
    "POST /v1/accounts/{account_id}/lower-limit": {"reason": "a test", "epsilon": 0.5},
    "POST /v1/accounts/{account_id}/raise-limit": {"reason": "a test", "epsilon": 500},
    "POST /v1/admins": {"name": "Eve", "introduction": "key_" + "e" * 20 + ":" + "0" * 64, "reason": "a test"}
    | {"project_id": "{project_id}"},
    "POST /v1/admins/{admin_id}/remove": {"reason": "a test"},
    "POST /v1/datasets": {"name": "d", "account_id": "{account_id}", "visibility": "private", "classes": ["a"]} | SHAPE,
    "POST /v1/plans": PLAN,
    "POST /v1/accounts/first-plan": {key: PLAN[key] for key in ("recipe", "epsilon", "options")}
    | {"account": {"name": "a", "owner": "o", "epsilon": 1, "delta": 1e-5, "unit": "record", "adjacency": "add_remove"}}
    | {"dataset": {"name": "d", "account_id": "new", "visibility": "private", "classes": ["a"]} | SHAPE},
    "POST /v1/jobs": PLAN,
    "POST /v1/previews": {**PLAN, "stand_in_dataset_id": None},
    "POST /v1/sweeps": {"name": "s", "trials": [{key: PLAN[key] for key in ("recipe", "epsilon", "options")}] * 2}
    | {"dataset_id": "{dataset_id}"},
    "POST /v1/releases/{release_id}/samples": {"count": 1, "seed": 1, "format": "npz"},
    "POST /v1/releases/{release_id}/evaluations": {"dataset_id": "{dataset_id}"},
    "POST /v1/releases/{release_id}/shares": {"project_id": None, "reason": "a test"},
    "POST /v1/projects/{project_id}/rename": {"name": "another name"},
    "POST /v1/projects/{project_id}/quota": {"jobs_max": 1000},
    "POST /v1/invitations": {"role": "viewer", "project_id": "{project_id}"},
    "POST /view": {"project": "{project_id}"},
    "POST /v1/webhooks": {"url": "https://hooks.example.org/"},
    "POST /v1/keys/{key_id}/revoke": {},
    "POST /v1/keys/{key_id}/rotate": {"overlap_seconds": 0},
    "POST /v1/keys/{key_id}/request-revocation": {"reason": "a test"},
}
QUERIES = {
    "PUT /v1/datasets/{dataset_id}/content": "?format=npz",
    "GET /compare": "?release={release_id}",
    "GET /train": "?dataset={dataset_id}",
    "GET /train/price": "?dataset={dataset_id}&recipe=datalens&epsilon=0.1",
    "GET /": "?after={account_id}",
    "GET /datasets/new": "?account={account_id}",
    **{f"GET /v1/{many}": "?account_id={account_id}" for many in ("datasets", "jobs", "sweeps", "releases")},
    "GET /v1/decisions": "?account_id={account_id}",
    "GET /v1/keys": "?created_by={key_id}",
}
NOBODYS = re.compile(r"/v1/health|/login|/logout|/sign-in|/invitations|/static|/reference|/v1/recipes")


@dataclass(frozen=True)
class Department:
    """`clients` by a key's name and its project: ours has everything, theirs nothing; `missing` ids are of nothing."""

    clients: Mapping[tuple[str, str], TestClient]
    ids: Mapping[str, str]
    missing: Mapping[str, str]


@contextmanager
def departments(settings: Settings) -> Iterator[Department]:
    """Run a service with two projects and a signed-in client for every role of each."""
    with stocked(settings) as (admin, ids):
        other = admin.post("/v1/projects", json={"name": "heart"}).raise_for_status().json()["id"]
        clients = {("admin", "nobody"): admin}
        for role, (whose, project) in product(ROLES, {"ours": DEFAULT_PROJECT, "theirs": other}.items()):
            token = key_of(admin, role, f"{role} {whose}", project)
            client = TestClient(admin.app, follow_redirects=False, base_url=str(admin.base_url))
            if role in READS:
                assert client.post("/login", data={"key": token}).headers["location"] == "/"
            client.headers["Authorization"] = f"Bearer {token}"
            clients[role, whose] = client
        person, key = (admin.get(f"/v1/{path}").json()["items"] for path in ("admins", "keys?limit=20"))
        ids |= {"made_id": ids["preview_id"], "admin_id": person[0]["id"], "key_id": key[-1]["id"]}
        ids |= {"name": "generator.json", "project_id": DEFAULT_PROJECT, "share_id": f"shr_{'b' * 20}"}
        hook = clients["owner", "ours"].post("/v1/webhooks", json={"url": "https://localhost:1/"})
        ids |= {"webhook_id": hook.raise_for_status().json()["id"]}
        invited = clients["owner", "ours"].post("/v1/invitations", json={"role": "analyst"}).raise_for_status()
        ids |= {"invitation_id": invited.json()["id"]}
        missing = {
            name: re.sub(r"(?<=_)\w+$", "a" * 20, id) if name.endswith("_id") else id for name, id in ids.items()
        }
        yield Department(clients, ids, missing)


def key_of(admin: TestClient, role: str, name: str, project_id: str) -> str:
    """The token of a member of a project; an owner is a person, who has made it and is named by its introduction."""
    if role != "owner":
        body = {"name": name, "role": role, "project_id": project_id}
        return str(admin.post("/v1/keys", json=body).raise_for_status().json()["token"])
    token, introduction = introduce()
    body = {"name": name, "introduction": introduction, "reason": "a test", "project_id": project_id}
    assert admin.post("/v1/admins", json=body).raise_for_status().json()["admin"]["project_id"] == project_id
    return token


@dataclass(frozen=True)
class Vouching:
    """In the place of a sign-in provider: says who has signed in, as `Provider.finish` says it of an answer."""

    claims: Claims

    def finish(self, _cookie: str, _answer: Mapping[str, str]) -> tuple[Claims, str, str]:
        return self.claims, "a refresh token", "/"


def signed_in_people(department: Department) -> dict[tuple[str, str], TestClient]:
    """Browsers in which people have signed in with a provider, named as `Department.clients` are.

    For each role there is one person, who has it in both projects, with a session in each. The service makes them as
    ever once the provider has answered; `tests/service/sign_on` has a real one. Afterwards there is none again, and its
    word holds for as long as it is needed.
    """
    (other,) = department.clients["owner", "theirs"].get("/v1/projects").json()["items"]
    projects = {"ours": DEFAULT_PROJECT, "theirs": other["id"]}
    app: Any = department.clients["admin", "nobody"].app
    usual, factory = app.state.service, app.state.service.factory
    groups = {f"{role}s": dict.fromkeys(projects.values(), role) for role in ROLES}
    told = {"oidc_issuer": "https://people.example.org", "oidc_groups": groups, "oidc_admin_group": "admins"}
    settings, browsers = usual.settings.model_copy(update=told), {}
    for role, (whose, project) in (*product(ROLES, projects.items()), ("admin", ("nobody", None))):
        claims = Claims(role, [f"a person, {role}"], None, frozenset({f"{role}s"}))
        app.state.service = replace(usual, settings=settings, provider=Vouching(claims))
        base_url = str(department.clients["admin", "nobody"].base_url)
        browser = TestClient(app, follow_redirects=False, base_url=base_url)
        assert browser.get("/login/callback").status_code == 200
        with transaction(factory) as session:
            person = session.scalars(select(Person).where(Person.subject == role)).one()
            person.confirmed_at = person.keys_until = person.confirmed_at + timedelta(days=1)
            (chosen,) = [key.id for key in roles(session, person) if key.project_id == project]
        form = {"token": form_token(browser.cookies[COOKIE]), "role": chosen}
        assert browser.post("/you/project", data=form).headers["location"] == "/you"
        browsers[role, whose] = browser
    app.state.service = usual
    return browsers


def share(department: Department) -> None:
    """Let the other project see the release of ours, as an owner asks and a second admin approves."""
    admin, owner = department.clients["admin", "nobody"], department.clients["owner", "ours"]
    token = admin.app.state.settings.admin_key_path.read_text("ascii").strip()  # of another person than the stock's
    (other,) = department.clients["owner", "theirs"].get("/v1/projects").json()["items"]
    body = {"project_id": other["id"], "reason": "a test"}
    answer = owner.post(f"/v1/releases/{department.ids['release_id']}/shares", json=body)
    if answer.status_code == 409:
        return  # it was shared before
    asked = answer.raise_for_status().json()
    second = TestClient(admin.app, base_url=str(admin.base_url), headers={"Authorization": f"Bearer {token}"})
    second.post(f"/v1/decisions/{asked['id']}/approve").raise_for_status()


def all_routes() -> list[tuple[str, str]]:
    tables = [route for router in (*routers(), *dashboard.PARTS) for route in router.routes]
    return [(method, route.path) for route in tables if isinstance(route, APIRoute) for method in sorted(route.methods)]


def routes() -> list[tuple[str, str]]:
    """Method and path of every route that may show or touch what belongs to somebody."""
    return [(method, path) for method, path in all_routes() if not NOBODYS.match(path)]


def ask(client: TestClient, method: str, path: str, ids: Mapping[str, str]) -> tuple[int, str]:
    """Ask for a path with ids in its places; return status and text without these ids and random parts."""
    place, headers, body = message(client.cookies.get(COOKIE) or "", method, path, ids)
    answer = client.request(method, place, headers=headers, content=body)
    return answer.status_code, without_ids(answer.text, place, ids)


def message(cookie: str, method: str, path: str, ids: Mapping[str, str]) -> tuple[str, dict[str, str], bytes]:
    """Return the address, headers and body with which a path is asked for; `cookie` is of the form's session."""
    name, body = f"{method} {path}", b""
    place, headers = address(path + QUERIES.get(name, ""), ids), {}
    given = {key: ids.get(str(value).strip("{}"), value) for key, value in BODIES.get(name, {}).items()}
    if method != "GET" and path.startswith(("/v1/", "/datasets/", "/uploads")):
        headers, body = {"Content-Type": "application/json"}, json.dumps(given).encode()
        headers |= {"Idempotency-Key": secrets.token_hex(16)} if method == "POST" else {}
    elif method != "GET":
        fields = {"token": form_token(cookie), **given}
        headers, body = {"Content-Type": "application/x-www-form-urlencoded"}, urlencode(fields).encode()
    return place, headers, body


def without_ids(text: str, place: str, ids: Mapping[str, str]) -> str:
    """Return an answer's text without what was asked for and what is random."""
    text = re.sub(r'name="project" value="prj_\w+"', "a project", text)  # an admin can view them from every page
    for known in sorted({*ids.values(), *place.split("?")}, key=len, reverse=True):
        text = text.replace(known, "ID") if len(known) > 8 else text
    return re.sub(r"[0-9a-f]{32,64}", "RANDOM", text)


def named(method: str, path: str) -> set[str]:
    """Return the places of objects that a route names: in its path, its query or its body."""
    name = f"{method} {path}"
    return set(re.findall(r"\{\w+_id\}", f"{path}{QUERIES.get(name, '')}{BODIES.get(name, '')}"))
