"""Who may look: sessions from keys, reading that was opened to all, and what ends or never begins a session."""

import time
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from service.api.deps import COOKIE
from service.dashboard.sign_in import LINK_SECONDS, SignInLinks
from service.db.access_tables import DEFAULT_PROJECT, ApiKey, SignIn
from service.db.session import transaction
from service.identity import auth, projects
from service.identity.auth import SESSION_SECONDS, SESSIONS_PER_KEY_MAX, close_session, find_session, open_session
from tests.service.dashboard.conftest import assert_shown

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture
def closed(make_site):
    """A dashboard as it is where nothing is set: everybody has to sign in."""
    return make_site()


@pytest.mark.parametrize(
    "caller", [{}, {"host": "localhost:8420"}, {"peer": "::1", "host": "[::1]:8420"}, {"CF_RAY": "8f0"}], ids=str
)
def test_without_a_session_every_page_leads_to_the_form(closed, caller):
    """Also on this machine: what passed a proxy cannot be told from what did not, whatever headers are looked for."""
    client = closed.client(**caller)
    for address in ("/", "/jobs", "/releases", "/accounts/acc_x", "/parts/jobs", "/releases/rel_x/tiles.png"):
        answer = client.get(address)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login?next=/")
    assert client.get("/login").status_code == 200


def test_everybody_reads_where_the_operator_has_said_so(site):
    assert site.settings.dashboard_public
    assert site.client(peer="203.0.113.9", host="obscura.example").get("/").status_code == 200
    assert site.client(peer="203.0.113.9").get("/settings/members").status_code == 303


def test_a_key_opens_a_session_and_signing_out_ends_it(closed):
    client = closed.client()
    answer = client.post("/login", data={"key": f" {closed.key('read')}\n", "next": "/jobs"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/jobs"
    cookie = answer.headers["set-cookie"]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", f"Max-Age={SESSION_SECONDS}", "Path=/"))
    assert "Secure" not in cookie
    thief, copied = closed.client(), {"Cookie": f"{COOKIE}={client.cookies[COOKIE]}"}
    other = closed.signed_in("admin")
    assert [each.get("/jobs").status_code for each in (client, other)] == [200, 200]
    assert thief.get("/jobs", headers=copied).status_code == 200
    assert client.post("/logout", data={"sign": "out"}).headers["location"] == "/login"
    assert [each.get("/jobs").status_code for each in (client, other)] == [303, 200]
    assert thief.get("/jobs", headers=copied).status_code == 303


def test_the_cookie_is_for_https_only_where_there_is_https_and_holds_no_token(closed):
    client, token = closed.client(scheme="https", host="obscura.example"), closed.key("admin")
    cookie = client.post("/login", data={"key": token}).headers["set-cookie"]
    assert "Secure" in cookie
    assert token.rsplit("_", 1)[1] not in cookie
    assert cookie.startswith(f"__Host-{COOKIE}=")
    assert "Domain" not in cookie
    assert client.get("/jobs").status_code == 200
    value = cookie.partition("=")[2].partition(";")[0]
    planted = closed.client(scheme="https", host="obscura.example").get("/", headers={"Cookie": f"{COOKIE}={value}"})
    assert planted.status_code == 303, "another host of the domain can set a cookie of this name"
    signed_out = client.post("/logout", data={"sign": "out"}).headers["set-cookie"]
    assert signed_out.startswith(f"__Host-{COOKIE}=")
    assert "Secure" in signed_out


@pytest.mark.parametrize("key", ["", "obs_wrong", "obs_" + "a" * 20 + "_" + "0" * 64, "ü" * 10])
def test_a_wrong_key_is_refused_and_not_repeated(closed, key):
    client = closed.client()
    answer = client.post("/login", data={"key": key})
    assert answer.status_code == 401
    assert "unknown or was revoked" in answer.text
    assert not key or key not in answer.text
    assert COOKIE not in client.cookies


@pytest.mark.parametrize("scope", ["data", "train"])
def test_a_key_that_may_not_read_is_refused(closed, scope):
    answer = closed.client().post("/login", data={"key": closed.key(scope)})
    assert answer.status_code == 403
    assert "scope" in answer.text


@pytest.mark.parametrize("cookie", ["", ".", "0" * 64, "key_aaaaaaaaaaaaaaaaaaaa.99999999999.0.0"])
def test_an_invented_cookie_is_refused(closed, cookie):
    closed.signed_in("admin")
    assert closed.client().get("/", headers={"Cookie": f"{COOKIE}={cookie}"}).status_code == 303


def test_a_session_ends_by_its_time_by_its_end_and_by_its_key(factory, now):
    with transaction(factory) as session:
        key = auth.create_key(session, name="k", scopes=["read"], now=now)[0]
        cookie, other = (open_session(session, key.id, now=now) for _ in range(2))
    last = now + timedelta(seconds=SESSION_SECONDS)
    with transaction(factory) as session:
        found = find_session(session, cookie, now=last - timedelta(seconds=1))
        assert found is not None
        assert (found.principal.id, found.name) == (key.id, "k")
        assert find_session(session, cookie, now=last) is None
        assert find_session(session, cookie + "0", now=now) is None
        close_session(session, cookie)
        close_session(session, cookie)
        assert find_session(session, cookie, now=now) is None
        assert find_session(session, other, now=now) is not None
        session.get_one(ApiKey, key.id).expires_at = now + timedelta(seconds=1)
        session.flush()
        assert find_session(session, other, now=now) is not None
        assert find_session(session, other, now=now + timedelta(seconds=1)) is None
        auth.revoke(session, ApiKey.id == key.id, now=now)
        assert find_session(session, other, now=now) is None
        assert cookie not in session.scalars(select(SignIn.token_sha256)).all()


def test_sessions_are_few_and_those_that_ended_are_forgotten(factory, now):
    count = select(func.count()).select_from(SignIn)
    with transaction(factory) as session:
        key = auth.create_key(session, name="k", scopes=["read"], now=now)[0]
        moments = [now + timedelta(seconds=second) for second in range(SESSIONS_PER_KEY_MAX + 3)]
        cookies = [open_session(session, key.id, now=moment) for moment in moments]
        assert session.scalar(count) == SESSIONS_PER_KEY_MAX
        alive = [find_session(session, cookie, now=moments[-1]) is not None for cookie in cookies]
        assert alive == [False] * 3 + [True] * SESSIONS_PER_KEY_MAX
        open_session(session, key.id, now=moments[-1] + timedelta(seconds=SESSION_SECONDS))
        assert session.scalar(count) == 1


@pytest.mark.parametrize(
    "target",
    ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "", "/\nx", "/" * 600],
)
def test_signing_in_never_leads_to_another_site(closed, target):
    answer = closed.client().post("/login", data={"key": closed.key("read"), "next": target})
    assert answer.headers["location"] == "/"


def test_wrong_keys_are_slowed_down_and_lock_nobody_out(closed):
    client, right = closed.client(), closed.key("read")
    answers = [client.post("/login", data={"key": "obs_wrong"}) for _ in range(12)]
    assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 2
    assert int(answers[-1].headers["retry-after"]) > 0
    assert "Too many invalid keys came from your address" in answers[-1].text
    mistyped = right[:-1] + ("0" if right[-1] != "0" else "1")
    assert client.post("/login", data={"key": mistyped}).status_code == 401, "somebody else at the same address"
    assert client.post("/login", data={"key": right}).status_code == 303


def test_behind_a_proxy_the_public_address_says_what_is_ours_and_whether_cookies_are_secure(make_site):
    """As in compose: the proxy speaks plain HTTP with the service, by a name of its own."""
    site = make_site(public_url="https://Obscura.example:443/")
    client, key = site.client(host="api:8420", peer="172.30.84.1"), {"key": site.key("read")}
    ours, theirs = {"Origin": "https://obscura.example"}, {"Origin": "http://api:8420"}
    assert client.post("/login", data=key, headers=theirs).status_code == 403
    answer = client.post("/login", data=key, headers=ours)
    assert answer.status_code == 303
    assert "Secure" in answer.headers["set-cookie"]


def test_a_link_signs_in_once_and_not_by_being_looked_at(closed):
    (closed.settings.data_dir / "admin.key").write_text(closed.key("admin") + "\n")
    links = closed.app.state.links
    address = f"/sign-in/{links.make(now_seconds=time.monotonic())}"
    client = closed.client()
    assert [client.get(address).status_code for _ in range(2)] == [200, 200]
    elsewhere = client.post(address, headers={**FORM, "Origin": "http://evil.example"})
    assert elsewhere.status_code == 403
    answer = client.post(address, headers=FORM)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert ">test x_" in client.get("/").text, "who is signed in is shown"
    thief = closed.client()
    assert [thief.get(address).status_code, thief.post(address, headers=FORM).status_code] == [404, 404]
    assert COOKIE not in thief.cookies
    later = links.make(now_seconds=time.monotonic() - LINK_SECONDS)
    assert closed.client().post(f"/sign-in/{later}", headers=FORM).status_code == 404
    assert later not in repr(links)


def test_a_link_of_a_revoked_admin_signs_nobody_in(closed):
    (closed.settings.data_dir / "admin.key").write_text(closed.key("admin"))
    closed.do(auth.revoke, ApiKey.id.is_not(None), now=closed.now)
    secret = SignInLinks.make(closed.app.state.links, now_seconds=time.monotonic())
    assert closed.client().post(f"/sign-in/{secret}", headers=FORM).status_code == 401


def test_an_admin_learns_why_the_data_of_several_projects_are_hidden(site, stock):
    """Only an admin of the installation sees the banner and its number."""
    admin, pages = site.signed_in("admin"), ("/", "/jobs", "/releases", "/datasets", "/train")
    facts = {"name": "member", "scopes": ["train", "read"], "now": site.now, "project_id": DEFAULT_PROJECT}
    _, token = site.do(auth.create_key, **facts)
    member = site.client()
    assert member.post("/login", data={"key": token}).status_code == 303
    for client in (admin, member, site.client()):
        assert all("are hidden from you" not in client.get(page).text for page in pages)
    for name in ("heart", "lung"):
        site.do(projects.create, name=name, now=site.now)
    for page in pages:
        shown = admin.get(page).text
        assert_shown(shown, "of its 3 projects are hidden from you", "nothing was deleted", 'action="/view"')
        assert "are hidden from you" not in member.get(page).text
        assert "are hidden from you" not in site.client().get(page).text
    assert stock.dataset in member.get("/datasets").text, "the data are where they were"
    assert "First steps" not in admin.get("/").text
    shown = admin.get("/settings/projects").text
    assert_shown(shown, "View heart", "View lung", "as its owner")
