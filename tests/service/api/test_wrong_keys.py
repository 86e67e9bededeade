"""Keys that open nothing: told to wait by address, without locking out anybody who holds one that does."""

import httpx
import pytest

from service.api.rates import WrongKeys
from service.settings import Settings
from tests.service.api.conftest import Served, serving

WRONG = "obs_" + "a" * 20 + "_" + "0" * 64


def ask(served: Served, token: str, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return served.client(None).get("/v1/jobs", headers={"Authorization": f"Bearer {token}", **named})


def test_wrong_keys_are_told_to_wait_and_a_valid_one_passes(served):
    answers = [ask(served, WRONG) for _ in range(11)]
    assert [answer.status_code for answer in answers] == [401] * 10 + [429]
    assert 0 < int(answers[-1].headers["retry-after"]) <= 300
    problem = answers[-1].json()
    assert problem["code"] == "too_many_wrong_keys"
    assert problem["seconds"] > 0
    assert ask(served, served.tokens["read"]).status_code == 200
    assert ask(served, WRONG.replace("a", "b")).status_code == 401, "another key's holder is told what is wrong with it"


def test_one_address_with_many_keys_is_told_to_wait_for_all(served):
    letters = "abcdefghij"
    tokens = [f"obs_{(one + two) * 10}_{'0' * 64}" for one in letters for two in letters]
    assert {ask(served, token).status_code for token in tokens} == {401}
    assert ask(served, f"obs_{'k' * 20}_{'0' * 64}").status_code == 429
    assert ask(served, served.tokens["read"]).status_code == 200


@pytest.mark.parametrize(("trusted", "second"), [("127.0.0.0/8", 401), ("10.0.0.0/8", 429), ("", 429)])
def test_only_a_trusted_proxy_says_whose_failures_these_are(settings: Settings, trusted, second):
    """Behind one, everybody has an address of their own; elsewhere nobody gets a new one by naming it."""
    with serving(settings.model_copy(update={"trusted_proxies": trusted}), "read") as served:
        statuses = [ask(served, WRONG, X_Forwarded_For="203.0.113.1").status_code for _ in range(11)]
        assert statuses == [401] * 10 + [429]
        assert ask(served, WRONG, X_Forwarded_For="203.0.113.2").status_code == second


def test_the_count_forgets(monkeypatch: pytest.MonkeyPatch):
    now = 1e9
    monkeypatch.setattr("time.time", lambda: now)
    wrong = WrongKeys(of_one_key_max=2, of_address_max=3, window_seconds=100)
    assert [wrong.count("a", "key_x") for _ in range(2)] == [0, 0]
    now += 20
    assert wrong.count("a", "key_x") == 80
    assert wrong.count("b", "key_x") == 0
    now += 10
    assert wrong.count("a", "key_y") == 70, "the address has sent three"
    now += 70.5
    assert wrong.count("a", "key_x") == 0
