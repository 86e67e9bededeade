"""What a project sees of another one's, what admins of the installation do, and how projects are made.

`test_matrix.py` asks every route.
"""

from __future__ import annotations

from service.db.project_tables import DEFAULT_PROJECT
from tests.service.departments import NOBODYS, SHAPE, Department, department, place
from tests.service.reading_routes import reading_routes

__all__ = ["department", "place"]


def test_lists_and_pages_of_others_name_nothing_of_ours(department: Department) -> None:
    ours, theirs = (department.clients["analyst", whose] for whose in ("ours", "theirs"))
    named = 0
    for path in reading_routes():
        if "{" in path or NOBODYS.match(path):
            continue
        seen = theirs.get(path)
        assert seen.status_code in (200, 403, 422), path
        assert "acc_" not in seen.text, path
        ids = [id for name, id in department.ids.items() if name.endswith("_id")]
        assert not [id for id in ids if id in seen.text], path
        named += any(id in ours.get(path).text for id in ids)
    assert named > 10
    assert theirs.get("/train", params={"again": department.ids["job_id"]}).status_code == 404


def test_lists_of_an_admin_of_the_installation_have_no_content_of_departments(department: Department) -> None:
    admin = department.clients["admin", "nobody"]
    for noun in ("datasets", "jobs", "sweeps", "releases"):
        assert admin.get(f"/v1/{noun}").json()["items"] == []
    assert admin.get(f"/v1/accounts/{department.ids['account_id']}").status_code == 200


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
