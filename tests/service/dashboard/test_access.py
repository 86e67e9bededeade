"""Who may look: sessions from keys, reading on the machine itself, and what ends or never begins a session."""

import time
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from service import auth
from service.dashboard.access import COOKIE
from service.dashboard.sessions import (
    LINK_SECONDS,
    SESSION_SECONDS,
    SESSIONS_PER_KEY_MAX,
    SignInLinks,
    SignInThrottle,
    close_session,
    find_session,
    open_session,
)
from service.db.access_tables import ApiKey, SignIn
from service.db.session import transaction

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture
def closed(make_site):
    """A dashboard that asks everybody to sign in."""
    return make_site(dashboard_public=False)


def test_without_a_session_every_page_leads_to_the_form(closed):
    for address in ("/", "/jobs", "/releases", "/accounts/acc_x", "/parts/jobs", "/releases/rel_x/grid.png"):
        answer = closed.client().get(address)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login?next=/")
    assert closed.client().get("/login").status_code == 200


@pytest.mark.parametrize(
    ("status", "caller"),
    [
        *((200, {"host": host}) for host in ("127.0.0.1:8420", "localhost:8420", "[::1]:8420")),
        *((303, {"host": host}) for host in ("evil.example:8420", "127.0.0.1.evil.example", "192.168.0.5:8420")),
        *((200, {"peer": peer}) for peer in ("127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1")),
        *((303, {"peer": peer}) for peer in ("192.168.0.5", "10.0.0.1", "2001:db8::1", "testclient", "")),
    ],
    ids=str,
)
def test_this_machine_may_read_by_its_own_names_and_addresses_and_nobody_else(site, status, caller):
    """A foreign name may point here, and what the client calls us is the client's to choose."""
    assert site.client(**caller).get("/").status_code == status


@pytest.mark.parametrize(
    "said",
    [
        {"X_Forwarded_For": "127.0.0.1"},
        {"x_forwarded_for": "203.0.113.9"},
        {"Forwarded": "for=127.0.0.1"},
        {"X_Real_IP": "127.0.0.1"},
        {"Via": "1.1 gate"},
        {"X_Forwarded_Host": "obscura.example"},
        {"X_Forwarded_Proto": "https"},
        {"CF_Connecting_IP": "203.0.113.9"},
    ],
)
def test_a_request_that_was_forwarded_is_not_local(site, said):
    """A proxy on this machine that writes our own name over the client's is still not the client."""
    assert site.client(**said).get("/").status_code == 303


def test_a_key_opens_a_session_and_signing_out_ends_it(closed):
    client = closed.client()
    answer = client.post("/login", data={"key": f" {closed.key('read')}\n", "next": "/jobs"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/jobs"
    cookie = answer.headers["set-cookie"]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", f"Max-Age={SESSION_SECONDS}", "Path=/"))
    assert "Secure" not in cookie
    assert client.get("/jobs").status_code == 200
    assert client.post("/logout", data={"sign": "out"}).headers["location"] == "/login"
    assert client.get("/jobs").status_code == 303


def test_the_cookie_is_for_https_only_where_there_is_https_and_holds_no_token(closed):
    client, token = closed.client(scheme="https", host="obscura.example"), closed.key("admin")
    cookie = client.post("/login", data={"key": token}).headers["set-cookie"]
    assert "Secure" in cookie
    assert token.rsplit("_", 1)[1] not in cookie


@pytest.mark.parametrize("key", ["", "obs_wrong", "obs_" + "a" * 20 + "_" + "0" * 64, "ü" * 10])
def test_a_wrong_key_is_refused_and_not_repeated(closed, key):
    client = closed.client()
    answer = client.post("/login", data={"key": key})
    assert answer.status_code == 401
    assert "not known here" in answer.text
    assert not key or key not in answer.text
    assert COOKIE not in client.cookies


@pytest.mark.parametrize("scope", ["data", "train"])
def test_a_key_that_may_not_read_is_refused(closed, scope):
    answer = closed.client().post("/login", data={"key": closed.key(scope)})
    assert answer.status_code == 403
    assert "scope" in answer.text


def test_revoking_a_key_ends_its_sessions(closed):
    client = closed.signed_in("admin")
    with transaction(closed.factory) as session:
        auth.revoke_key(session, key_id=session.scalars(select(ApiKey.id)).one(), now=closed.now)
    assert client.get("/").status_code == 303


def test_a_copied_cookie_is_dead_after_signing_out(closed):
    client = closed.signed_in("admin")
    copied = {"Cookie": f"{COOKIE}={client.cookies[COOKIE]}"}
    thief = closed.client()
    assert thief.get("/jobs", headers=copied).status_code == 200
    client.post("/logout", data={"sign": "out"})
    assert thief.get("/jobs", headers=copied).status_code == 303
    assert closed.signed_in("admin").get("/jobs").status_code == 200  # others go on


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
        assert found.id == key.id
        assert find_session(session, cookie, now=last) is None
        assert find_session(session, cookie + "0", now=now) is None
        close_session(session, cookie)
        close_session(session, cookie)
        assert find_session(session, cookie, now=now) is None
        assert find_session(session, other, now=now) is not None
        auth.revoke_key(session, key_id=key.id, now=now)
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


def test_signing_in_from_another_site_is_refused(closed):
    answer = closed.client().post("/login", data={"key": closed.key("read")}, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_wrong_keys_are_slowed_down(closed):
    client = closed.client()
    statuses = [client.post("/login", data={"key": "obs_wrong"}).status_code for _ in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert client.post("/login", data={"key": closed.key("read")}).status_code == 429


def test_the_throttle_forgets_bounds_its_memory_and_counts_all_addresses():
    throttle = SignInThrottle(failures_max=2, failures_in_all_max=5, window_seconds=100)
    throttle.record_failure("a", now_seconds=0)
    throttle.record_failure("a", now_seconds=10)
    assert throttle.wait_seconds("a", now_seconds=20) == 80
    assert throttle.wait_seconds("b", now_seconds=20) == 0
    assert throttle.wait_seconds("a", now_seconds=101) == 0
    for number in range(1000):
        throttle.record_failure(f"{number}", now_seconds=200)
    assert throttle.wait_seconds("new", now_seconds=200) == 100
    assert len(throttle._failures) == 5


def test_a_link_signs_in_once_and_not_by_being_looked_at(closed):
    (closed.settings.data_dir / "admin.key").write_text(closed.key("admin") + "\n")
    links = closed.app.state.dashboard.links
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
    with transaction(closed.factory) as session:
        auth.revoke_key(session, key_id=session.scalars(select(ApiKey.id)).one(), now=closed.now)
    secret = SignInLinks.make(closed.app.state.dashboard.links, now_seconds=time.monotonic())
    assert closed.client().post(f"/sign-in/{secret}", headers=FORM).status_code == 401
