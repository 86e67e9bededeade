"""Signing in with the provider: what a session begins with, and everything that begins none."""

import base64
import json
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from authlib.integrations.starlette_client import StarletteOAuth2App
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey

from service.api.deps import COOKIE
from service.dashboard.sign_in import PENDING_COOKIE
from service.db.access_tables import ApiKey, AuditEvent, Person, SignIn
from tests.service.sign_on.conftest import ANA, CLIENT, SITE, House, form_token_of, opened


def test_whoever_signs_in_is_a_person_with_the_roles_of_their_groups(house):
    browser = house.sign_in("ana", next="/datasets")
    page = browser.get("/you")
    assert page.status_code == 200
    assert ANA["name"] in page.text
    assert ANA["email"] in page.text
    assert "in the project heart" in page.text
    owner = house.program(house.key_of(browser))
    assert owner.get("/v1/ledger").status_code == 403  # an owner is no admin of the installation
    (person,) = house.rows(Person)
    assert (person.issuer, person.subject, person.name) == (house.provider.issuer, "ana", ANA["name"])
    (role,) = house.rows(ApiKey, ApiKey.person_id == person.id, ApiKey.created_by.is_(None))
    assert (role.project_id, role.scopes, role.created_by) == (house.heart, ["admin"], None)
    assert str(person.refresh_token).startswith("gAAAA")  # sealed
    house.sign_in("ana")
    assert len(house.rows(Person)) == 1


@pytest.mark.parametrize(("wished", "leads"), [("/datasets?q=a", "/datasets?q=a"), ("//elsewhere.example/", "/")])
def test_the_page_that_ends_a_sign_in_leads_where_it_began_and_nowhere_else(house, wished, leads):
    """Other addresses that lead away: tests/service/dashboard/test_access.py."""
    browser = house.browser()
    page = browser.get(house.answer_of("ana", browser, next=wished))
    assert f'content="0;url={leads}"' in page.text
    assert "elsewhere" not in page.text


def test_the_redirection_asks_with_pkce_state_and_nonce_and_names_this_service_alone(house):
    browser = house.browser()
    begun = browser.get("/login/provider", headers={"Host": "elsewhere.example"})
    asked = {name: values[0] for name, values in parse_qs(urlsplit(begun.headers["location"]).query).items()}
    assert asked["redirect_uri"] == f"{SITE}/login/callback"  # whichever host was asked for
    assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
    assert len(asked["state"]) > 30
    assert len(asked["nonce"]) > 30
    assert asked["state"] != asked["nonce"]
    again = parse_qs(urlsplit(browser.get("/login/provider").headers["location"]).query)
    assert {again[name][0] for name in ("state", "nonce", "code_challenge")}.isdisjoint(asked.values())
    cookie = begun.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert asked["state"] not in cookie  # which is sealed


def refused(house: House, browser, address: str, said: str, status: int = 401) -> None:
    answer = browser.get(address)
    assert (answer.status_code, said in answer.text) == (status, True), (answer.status_code, answer.text[-900:])
    assert f"{COOKIE}=" not in answer.headers.get("set-cookie", "")
    assert browser.get("/you").status_code == 303


def test_a_tampered_state_or_none_or_another_issuer_signs_nobody_in(house):
    for name, value in (("state", "another"), ("state", ""), ("iss", "https://other.example"), ("code", "")):
        browser = house.browser()
        whole = urlsplit(house.answer_of("ana", browser))
        parts = {key: values[0] for key, values in parse_qs(whole.query).items()} | {name: value}
        answer = browser.get(whole.path, params=parts)
        assert (answer.status_code, f"{COOKIE}=" in str(answer.headers)) == (401, False), name
    said = "No sign-in was begun in this browser"
    browser = house.browser()
    refused(house, house.browser(), house.answer_of("ana", browser), said)  # the answer in another browser than began
    browser = house.browser()
    address = house.answer_of("ana", browser)
    cookie = browser.cookies[PENDING_COOKIE]
    browser.cookies.set(PENDING_COOKIE, cookie[:-2] + "AA", domain="127.0.0.1", path="/login")
    refused(house, browser, address, said)
    browser = house.browser()
    address = house.answer_of("ana", browser)
    house.clock.ahead += timedelta(minutes=11)
    refused(house, browser, address, said)


def test_an_answer_opens_one_session_and_no_second_one(house):
    browser = house.browser()
    address = house.answer_of("ana", browser)
    pending = browser.cookies[PENDING_COOKIE]
    assert browser.get(address).status_code == 200
    assert PENDING_COOKIE not in browser.cookies
    thief = house.browser()
    thief.cookies.set(PENDING_COOKIE, pending, domain="127.0.0.1", path="/login")
    refused(house, thief, address, "used before")


def test_an_identity_for_another_sign_in_is_refused(house):
    """The nonce: the code of one sign-in, behind the state and the verifier of another."""
    browser = house.browser()
    address = house.answer_of("ana", browser)
    provider = house.app.state.service.provider
    sealed = provider._cookies
    pending = json.loads(sealed.decrypt(browser.cookies[PENDING_COOKIE].encode()))
    (state,) = [value for name, value in pending.items() if name.startswith("_state_")]
    state["data"]["nonce"] = "of another sign-in"
    cookie = sealed.encrypt(json.dumps(pending).encode()).decode()
    browser.cookies.set(PENDING_COOKIE, cookie, domain="127.0.0.1", path="/login")
    refused(house, browser, address, "did not sign your identity")


OWN = ECKey.generate_key("P-256", {"kid": "own", "alg": "ES256", "use": "sig"})
CHANGES: dict[str, dict[str, object]] = {
    "nothing": {},
    "another client": {"aud": "other", "azp": CLIENT["client_id"]},
    "another issuer": {"iss": "https://other.example"},
    "expired": {"exp": 1},
    "another key": {},
    "no signature": {},
    "shared secret": {},
    "changed": {"sub": "ben"},
}


def coded(part: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def forged(token: str, forgery: str) -> str:
    """An ID token with what a forgery changes, signed as that forgery signs."""
    header, body, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "==")) | CHANGES[forgery]
    claims.pop("at_hash", None)
    if forgery == "changed":
        return f"{header}.{coded(claims)}.{signature}"
    if forgery == "no signature":
        return f"{coded({'alg': 'none'})}.{coded(claims)}."
    if forgery == "shared secret":
        return jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(CLIENT["client_secret"]))
    return jwt.encode({"alg": "ES256", "kid": "own"}, claims, OWN)


@pytest.mark.parametrize("forgery", CHANGES)
def test_an_identity_that_the_provider_has_not_signed_for_us_now_is_refused(house, forgery, monkeypatch):
    browser = house.browser()
    address = house.answer_of("ana", browser)
    fetch = StarletteOAuth2App.fetch_access_token

    async def fetch_forged(self: StarletteOAuth2App, **given: object) -> dict[str, object]:
        token = await fetch(self, **given)
        return token | {"id_token": forged(token["id_token"], forgery)}

    async def trusted(_self: StarletteOAuth2App, **_given: object) -> dict[str, object]:
        return KeySet([OWN]).as_dict()

    monkeypatch.setattr(StarletteOAuth2App, "fetch_access_token", fetch_forged)
    if forgery in ("nothing", "another client", "another issuer", "expired"):  # so that the claim is what is wrong
        monkeypatch.setattr(StarletteOAuth2App, "fetch_jwk_set", trusted)
    if forgery == "nothing":  # the control
        assert browser.get(address).status_code == 200
        return
    refused(house, browser, address, "did not sign your identity")
    assert house.rows(Person) == []


def test_a_session_from_before_a_sign_in_ends_with_it(house):
    """Whoever puts their own cookie into somebody's browser does not follow them into their session."""
    thief = house.sign_in("eve")
    fixed = thief.cookies[COOKIE]
    victim = house.browser()
    victim.cookies.set(COOKIE, fixed, domain="127.0.0.1", path="/")
    house.sign_in("ana", victim)
    values = [cookie.value for cookie in victim.cookies.jar if cookie.name == COOKIE]
    assert fixed not in values[-1:]
    assert thief.get("/you").status_code == 303
    made_up = house.browser()
    made_up.cookies.set(COOKIE, "f" * 64, domain="127.0.0.1", path="/")
    house.sign_in("ana", made_up)
    assert len(house.rows(SignIn)) == 2


def test_whoever_has_no_group_with_a_role_is_told_so_and_has_no_session(house):
    house.provider.people(dan={"name": "Dan", "groups": ["kitchen"]}, fay={"name": "Fay"})
    for login, name in (("dan", "Dan"), ("fay", "Fay")):
        browser = house.browser()
        refused(house, browser, house.answer_of(login, browser), f"You signed in as {name}", status=403)


def test_somebody_who_declines_at_the_provider_is_not_signed_in(house):
    for sent in ("error=access_denied", "error=access_denied&code=made-up"):
        browser = house.browser()
        begun = browser.get("/login/provider")
        state = parse_qs(urlsplit(begun.headers["location"]).query)["state"][0]
        refused(house, browser, f"/login/callback?{sent}&state={state}", "did not sign you in")


def test_a_viewer_signs_in_to_make_keys_and_opens_no_other_page(house):
    house.provider.people(gil={"name": "Gil", "groups": ["guests"]})
    browser = house.sign_in("gil")
    page = browser.get("/releases")
    assert (page.status_code, "/you" in page.text) == (403, True)
    program = house.program(house.key_of(browser))
    assert program.get("/v1/releases").status_code == 200
    assert program.get("/v1/datasets").status_code == 403


def test_somebody_with_several_roles_goes_from_one_to_the_other(house):
    house.provider.people(kim={"name": "Kim", "groups": ["heart-lab", "heart-data", "guests", "platform"]})
    browser = house.sign_in("kim")
    roles = {key.project_id: key for key in house.rows(ApiKey, ApiKey.person_id.is_not(None))}
    assert {id: key.scopes for id, key in roles.items()} == {
        house.heart: ["data", "read", "train"],
        "prj_default": ["releases"],
        None: ["admin"],
    }
    before = browser.cookies[COOKIE]
    fields = {"token": form_token_of(browser), "role": roles[None].id}
    assert browser.post("/you/project", data=fields).status_code == 303
    assert browser.get("/settings/members").status_code == 200
    old = house.browser()
    old.cookies.set(COOKIE, before, domain="127.0.0.1", path="/")
    assert old.get("/you").status_code == 303
    strangers = house.sign_in("kim")
    foreign = {"token": form_token_of(strangers), "role": "key_" + "a" * 20}
    assert strangers.post("/you/project", data=foreign).status_code == 404
    assert strangers.post("/you/project", data={"token": "0" * 64, "role": roles[None].id}).status_code == 403


def test_signing_in_and_what_is_refused_stand_in_the_audit_log(running, sqlite_url, tmp_path):
    running.people(ana=ANA)
    with opened(running, sqlite_url, tmp_path / "data", audit_log="required") as house:
        browser = house.sign_in("ana")
        house.browser().get("/login/callback?state=made-up&code=made-up")
        running.people(ana=ANA | {"groups": ["heart-lab"]})
        assert house.confirm(30) == 1
        assert browser.get("/you").status_code == 303
        house.sign_in("ana")
        running.people()
        assert house.confirm(30) == 1
        events, (person,) = house.rows(AuditEvent), house.rows(Person)
        said = [(event.action, event.outcome.value) for event in events]
        for act in ("person made", "role given", "signed in", "role ended", "admin admitted", "admin removed"):
            assert (act, "allowed") in said, act
        assert said.count(("GET /login/callback", "refused")) == 1
        assert said.count(("GET /login/callback", "allowed")) == 2
        about = {event.action for event in events if event.object_id == person.id}
        assert about == {"person made", "role given", "role ended", "person no longer confirmed"}
        assert ANA["name"] not in str([vars(event) for event in events])
