"""Links of invitations over HTTP: what opening one does, who may use it, and what stays of it."""

import json

import pytest

from service.api.deps import COOKIE
from service.db.access_tables import ApiKey, AuditEvent, Invitation
from service.db.ledger_tables import ArmingStop
from service.identity.auth import SESSION_SECONDS
from tests.service.dashboard.conftest import ORIGIN, assert_shown, submit

FORM = {"name": "Ana <b>", "days": "90"}


@pytest.fixture
def house(make_site):
    return make_site(audit_log="on")


def link_of(house, role: str = "analyst") -> str:
    made = submit(house.signed_in("admin"), "/settings/members", "POST /v1/invitations", role=role)
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    assert made.json()["link"].startswith("http://127.0.0.1:8420/invitations/")
    return str(made.json()["link"]).removeprefix("http://127.0.0.1:8420")


def test_a_page_says_that_links_to_this_computer_work_only_on_it(make_site):
    words = "works only on this computer"
    site = make_site()
    key = {"key": site.key("admin")}
    for host, local in (("127.0.0.1:8420", True), ("localhost:8420", True), ("images.clinic.example", False)):
        client = site.client(host=host)
        assert client.post("/login", data=key).status_code == 303
        assert (words in client.get("/settings/members").text) is local
    named = make_site(public_url="https://images.clinic.example")
    assert words not in named.signed_in("admin").get("/settings/members").text


def test_opening_a_link_changes_nothing_and_accepting_it_signs_in(house):
    link, client = link_of(house), house.client()
    assert "spends the budget of the project’s accounts" in client.get(link).text
    assert [client.get(link).status_code for _ in range(3)] == [200] * 3
    assert len(house.rows(ApiKey)) == 1
    assert COOKIE not in client.cookies
    joined = client.post(link, data=FORM, headers=ORIGIN)
    assert_shown(joined.headers["set-cookie"], "HttpOnly", "SameSite=strict", f"Max-Age={SESSION_SECONDS}")
    assert_shown(joined.text, "Welcome, Ana &lt;b&gt;", "obs_")
    assert joined.headers["cache-control"] == "no-store"
    assert client.get("/jobs").status_code == 200
    again = house.client().post(link, data=FORM, headers=ORIGIN)
    assert (again.status_code, "was used or revoked, or has expired" in again.text) == (404, True)
    assert house.client().get(link).status_code == 404
    events = house.rows(AuditEvent)
    acts = [(event.action, event.object_id) for event in events if event.action.startswith("invitation")]
    (row,) = house.rows(Invitation)
    assert acts == [("invitation made", row.id), ("invitation accepted", row.id)]
    secret = link.rpartition("/")[2]
    assert secret not in json.dumps([[str(value) for value in vars(event).values()] for event in events])


def test_another_site_cannot_accept_a_link_for_somebody(house):
    link = link_of(house)
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert house.client().post(link, data=FORM, headers=headers).status_code == 403
    for wrong in ({"name": "Ana"}, FORM | {"days": "9999"}, FORM | {"name": ""}):
        assert house.client().post(link, data=wrong, headers=ORIGIN).status_code == 422
    assert house.client().post(link, data=FORM, headers=ORIGIN).status_code == 201, "none of these has used it"


def test_guessed_links_are_slowed_down_and_an_open_one_works(house):
    link, client = link_of(house), house.client(peer="203.0.113.9")
    guesses = [client.post(f"/invitations/guess{number}", data=FORM, headers=ORIGIN) for number in range(12)]
    assert [answer.status_code for answer in guesses] == [404] * 10 + [429] * 2
    assert client.post(link, data=FORM, headers=ORIGIN).status_code == 201


def test_a_locked_installation_admits_nobody(house):
    link = link_of(house)
    house.do(lambda session: session.add(ArmingStop(scope="restored", code="restored", found_at=house.now)))
    assert house.client().post(link, data=FORM, headers=ORIGIN).status_code == 503
    house.do(lambda session: session.query(ArmingStop).delete())
    assert house.client().post(link, data=FORM, headers=ORIGIN).status_code == 201


def test_links_are_made_and_revoked_by_owners_and_admins_alone(house):
    link = link_of(house)
    (row,) = house.rows(Invitation)
    for scopes in (("read",), ("train", "read"), ("data", "read"), ("audit", "read")):
        client = house.signed_in(*scopes)
        assert client.get("/settings/members").status_code == 403
    revoke = f"POST /v1/invitations/{row.id}/revoke"
    assert submit(house.signed_in("admin"), "/settings/members", revoke).json()["state"] == "revoked"
    assert house.client().post(link, data=FORM, headers=ORIGIN).status_code == 404
