"""Rate limits: of a key, of an address without one, and of wrong keys; nobody uses up the requests of others."""

import os
import re
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import httpx
import pytest
from fastapi import Request
from limits import RateLimitItemPerMinute

from scripts.with_services import REDIS_USUAL, REDIS_VARIABLE, private_redis, redis_answers
from service.api.limits import PROJECT_KEYS, Limiter, Rates, WrongKeys, client_address, is_own_machine, limiter_of
from service.api.problems import TooManyRequests
from service.settings import Settings
from tests.service.api.conftest import OwnSettings, Served, serving

ELSEWHERE = {"X-Forwarded-For": "203.0.113.1"}


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"requests_per_minute": 3, "dashboard_public": True})


def ask(served: Served, scope: str | None, path: str = "/v1/jobs", **headers: str) -> httpx.Response:
    return served.client(scope).get(path, headers=ELSEWHERE | headers)


def request_from(host: str | None) -> Request:
    return Request({"type": "http", "client": None if host is None else (host, 1), "headers": []})


def test_a_key_is_told_what_is_left_and_then_to_wait_and_no_other_key_is(served: Served):
    answers = [ask(served, "read") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    for answer, left in zip(answers, (2, 1, 0, 0), strict=True):
        assert answer.headers["RateLimit-Policy"] == '"key";q=3;w=60'
        assert re.fullmatch(rf'"key";r={left};t=([1-9]|[1-5]\d|60)', answer.headers["RateLimit"])
    problem = answers[-1].json()
    assert problem["code"] == "too_many_requests"
    assert problem["requests_max"] == 3
    assert answers[-1].headers["Retry-After"] == str(problem["seconds"])
    assert ask(served, "admin").status_code == 200
    assert ask(served, None).status_code == 401, "an address without a key has minutes of its own"
    assert served.client("read").get("/v1/jobs").status_code == 200, "nor is what comes from the machine counted"


@pytest.mark.parametrize(("path", "usual"), [("/v1/jobs", 401), ("/", 200)], ids=["an answer of the API", "a page"])
def test_an_address_without_a_key_is_told_to_wait_and_a_key_passes(served: Served, path: str, usual: int):
    answers = [ask(served, None, path) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [usual] * 3 + [429]
    assert answers[0].headers["RateLimit-Policy"] == '"address";q=3;w=60'
    assert ask(served, None, path, **{"X-Forwarded-For": "203.0.113.2"}).status_code == usual
    assert ask(served, "read").status_code == 200


def test_a_page_is_counted_for_the_key_that_opened_the_session(served: Served):
    assert served.client(None).post("/login", data={"key": served.tokens["read"]}).status_code == 303
    answers = [ask(served, None, "/") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[0].headers["RateLimit-Policy"] == '"key";q=3;w=60'


def test_nothing_is_counted_where_there_is_no_limit():
    rates, request = Rates(0), request_from("203.0.113.9")
    for _ in range(3):
        rates.pass_key(request, "key_a")
    assert not hasattr(request.state, "rate_headers")


@pytest.mark.parametrize(
    ("host", "counted", "own"),
    [
        ("203.0.113.9", "203.0.113.9", False),
        ("::ffff:203.0.113.9", "203.0.113.9", False),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64", False),
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "::/64", True),
        (None, "unix", True),
        ("garbage", "unknown", False),
        ("", "unknown", False),
    ],
)
def test_a_client_is_counted_by_what_it_cannot_change_at_will(host, counted, own):
    assert client_address(request_from(host)) == counted
    assert is_own_machine(request_from(host)) is own


def test_clients_that_a_proxy_names_by_no_address_are_counted_together_as_remote_ones(served: Served):
    named = ("garbage", "127.0.0.1.", "1", "localhost", "", ",", "127.0.0.1,", "\u00e9")
    answers = [served.client(None).get("/v1/jobs", headers={"X-Forwarded-For": name.encode()}) for name in named]
    assert [answer.status_code for answer in answers] == [401] * 3 + [429] * 5
    assert ask(served, None).status_code == 401, "clients with an address have minutes of their own"


def test_the_keys_of_a_project_share_a_limit_and_a_key_beyond_its_own_takes_nothing_of_it():
    rates, request = Rates(10), request_from("203.0.113.9")

    def passed(key_id: str, times: int, project_id: str | None = "prj_a") -> int:
        count = 0
        for _ in range(times):
            with suppress(TooManyRequests):
                rates.pass_key(request, key_id, project_id)
                count += 1
        return count

    assert passed("key_flood", 1000) == 10
    assert passed("key_a", 7) == 7
    assert sum(passed(f"key_{number}", 10) for number in range(20)) == PROJECT_KEYS * 10 - 17
    assert passed("key_other", 10, "prj_b") == 10
    assert passed("key_admin", 10, None) == 10
    with pytest.raises(TooManyRequests, match="This project has sent 20 requests"):
        rates.pass_key(request, "key_b", "prj_a")
    assert request.state.rate_headers["RateLimit-Policy"] == '"project";q=20;w=60'


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Seconds that a test moves; the library that counts reads them itself."""
    made = SimpleNamespace(now=1e9)
    monkeypatch.setattr("time.time", lambda: made.now)
    return made


def test_a_window_moves_with_the_time(clock: SimpleNamespace):
    rates, request = Rates(2), request_from("203.0.113.9")
    for seconds, told in ((0, ""), (50, ""), (0, "Wait 10 seconds"), (11, ""), (0, "Wait 49 seconds")):
        clock.now += seconds
        with pytest.raises(TooManyRequests, match=told) if told else nullcontext():
            rates.pass_key(request, "key_a")


def test_what_is_counted_in_memory_is_bounded():
    limiter = Limiter(names_max=10)
    wrong = WrongKeys(limiter)
    for number in range(1000):
        wrong.count(f"{number}", "")
        assert len(limiter._memory.events) <= 10


def remaining(limiter: Limiter) -> int:
    return limiter.hit(RateLimitItemPerMinute(10), "a").remaining


def test_only_several_processes_ask_redis_and_each_counts_for_itself_where_it_is_away(tmp_path):
    assert limiter_of(Settings(data_dir=tmp_path))._shared is None
    assert limiter_of(Settings(data_dir=tmp_path, mode="celery", redis_url="amqp://broker"))._shared is None
    away = limiter_of(Settings(data_dir=tmp_path, mode="celery", redis_url="redis://127.0.0.1:1/0"))
    assert away._shared is not None
    assert [remaining(away) for _ in range(3)] == [9, 8, 7]


@pytest.mark.services
def test_several_processes_share_their_counts_and_two_installations_do_not():
    with private_redis() as own:
        url = own or os.environ.get(REDIS_VARIABLE, REDIS_USUAL)
        if not redis_answers(url):
            pytest.skip("no redis-server is installed and none answers; set OBSCURA_TEST_REDIS to the URL of one")
        name = os.urandom(8).hex()
        one, two, other = (Limiter(url, installation + name) for installation in ("here", "here", "there"))
        assert [remaining(each) for each in (one, two, one, other)] == [9, 8, 7, 9]
        assert 59 < two.hit(RateLimitItemPerMinute(10), "a").seconds <= 60
        assert one._paused_until < 0, "Redis has answered"


# --- wrong keys ---

WRONG = "obs_" + "a" * 20 + "_" + "0" * 64


def ask_with(served: Served, token: str, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return served.client(None).get("/v1/jobs", headers={"Authorization": f"Bearer {token}", **named})


def test_wrong_keys_are_told_to_wait_and_a_valid_one_passes(served):
    answers = [ask_with(served, WRONG) for _ in range(11)]
    assert [answer.status_code for answer in answers] == [401] * 10 + [429]
    assert 0 < int(answers[-1].headers["retry-after"]) <= 300
    problem = answers[-1].json()
    assert problem["code"] == "too_many_wrong_keys"
    assert problem["seconds"] > 0
    assert ask_with(served, served.tokens["read"]).status_code == 200
    assert ask_with(served, WRONG.replace("a", "b")).status_code == 401, "another wrong key is not told to wait"


def test_one_address_with_many_keys_is_told_to_wait_for_all(served):
    letters = "abcdefghij"
    tokens = [f"obs_{(one + two) * 10}_{'0' * 64}" for one in letters for two in letters]
    assert {ask_with(served, token).status_code for token in tokens} == {401}
    assert ask_with(served, f"obs_{'k' * 20}_{'0' * 64}").status_code == 429
    assert ask_with(served, served.tokens["read"]).status_code == 200


@pytest.mark.parametrize(("trusted", "second"), [("127.0.0.0/8", 401), ("10.0.0.0/8", 429), ("", 429)])
def test_only_a_trusted_proxy_says_whose_failures_these_are(own_settings: OwnSettings, trusted, second):
    """Behind one, everybody has an address of their own; elsewhere nobody gets a new one by naming it."""
    with serving(own_settings(trusted_proxies=trusted), "read") as served:
        statuses = [ask_with(served, WRONG, X_Forwarded_For="203.0.113.1").status_code for _ in range(11)]
        assert statuses == [401] * 10 + [429]
        assert ask_with(served, WRONG, X_Forwarded_For="203.0.113.2").status_code == second


def test_the_count_forgets(clock: SimpleNamespace):
    wrong = WrongKeys(of_one_key_max=2, of_address_max=3, window_seconds=100)
    assert [wrong.count("a", "key_x") for _ in range(2)] == [0, 0]
    clock.now += 20
    assert wrong.count("a", "key_x") == 80
    assert wrong.count("b", "key_x") == 0
    clock.now += 10
    assert wrong.count("a", "key_y") == 70, "the address has sent three"
    clock.now += 70.5
    assert wrong.count("a", "key_x") == 0
