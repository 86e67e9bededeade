"""Who may look: sessions from keys, reading on the machine itself, and what ends or never begins a session."""

from __future__ import annotations

import stat
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from service import auth
from service.dashboard.sign_in import (
    COOKIE,
    SESSION_SECONDS,
    SignInThrottle,
    issue_cookie,
    read_cookie,
    session_secret,
)
from service.db.session import transaction


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


@pytest.mark.parametrize("host", ["127.0.0.1:8420", "localhost:8420", "[::1]:8420"])
def test_on_loopback_anybody_may_read(site, host):
    assert site.client(host=host).get("/").status_code == 200


@pytest.mark.parametrize("host", ["evil.example:8420", "127.0.0.1.evil.example", "192.168.0.5:8420"])
def test_a_foreign_name_that_points_here_is_not_loopback(site, host):
    assert site.client(host=host).get("/").status_code == 303


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


def test_the_cookie_is_for_https_only_where_there_is_https(closed):
    client = closed.client(scheme="https", host="obscura.example")
    assert "Secure" in client.post("/login", data={"key": closed.key("admin")}).headers["set-cookie"]


def test_the_cookie_holds_no_token(closed):
    token = closed.key("admin")
    cookie = closed.client().post("/login", data={"key": token}).headers["set-cookie"]
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
    key_id = client.cookies[COOKIE].split(".")[0]
    with transaction(closed.factory) as session:
        auth.revoke_key(session, key_id=key_id, now=closed.now)
    assert client.get("/").status_code == 303


def test_forged_and_expired_cookies_are_refused(closed):
    secret = session_secret(closed.settings.data_dir)
    client = closed.signed_in("admin")
    genuine = client.cookies[COOKIE]
    key_id, expires, salt, signature = genuine.split(".")
    assert read_cookie(secret, genuine, now_seconds=time.time()) == key_id
    assert read_cookie(secret, genuine, now_seconds=time.time() + SESSION_SECONDS + 1) is None
    other = issue_cookie(b"another secret", key_id, now_seconds=time.time())
    longer = ".".join([key_id, str(int(expires) + 1), salt, signature])
    for forged in (other, longer, genuine[:-1], signature, "", ".", "...", "ü"):
        assert read_cookie(secret, forged, now_seconds=time.time()) is None
    client.cookies.set(COOKIE, longer, domain="127.0.0.1")
    assert closed.client().get("/", headers={"Cookie": f"{COOKIE}={longer}"}).status_code == 303


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


def test_the_secret_is_made_once_and_readable_by_its_owner_alone(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(session_secret, [tmp_path] * 16))
    assert len(found) == 1
    assert len(found.pop()) == 32
    path = tmp_path / "dashboard.secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
