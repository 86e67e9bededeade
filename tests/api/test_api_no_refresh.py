"""Nothing gives spent budget back: no request that the service takes, no page's form, no passing of time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from service import cli, ledger
from service.dashboard import router as pages
from service.db.base import new_id
from service.db.session import transaction
from service.main import utc_now
from workers.reconcile import reconcile

SPENT_NANO = 1000
RAISES = {"/v1/limit-requests/{request_id}/approve", "/limit-requests/{request_id}/approve"}


def routes(router: Any) -> Iterator[Any]:
    """Every route, those of included routers too."""
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        yield from [route] if inner is None else routes(inner)


class Watched:
    """Sends requests and compares the account's balance before and after each.

    Args:
        served: the service.
        account_id: whose balance.
    """

    def __init__(self, served: Any, account_id: str) -> None:
        self.served, self.account_id = served, account_id
        self.sent: set[tuple[str, str]] = set()
        self.token = ""

    def balance(self) -> ledger.Balance:
        with transaction(self.served.factory, read_only=True) as session:
            return ledger.balance(session, self.account_id)

    def __call__(
        self, method: str, template: str, body: Any = None, *, client: httpx.Client | None = None, **more: Any
    ) -> Any:
        """Send a request whose path is a route's, with its placeholders filled, and expect it to succeed."""
        ids = {name: more.pop(name) for name in re.findall(r"{(\w+)}", template)}
        before = self.balance()
        client = client or self.served.client()
        page = not template.startswith("/v1/")
        if page:
            more |= {"data": {"token": self.token, **(body or {})}, "headers": {"Origin": self.served.url}}
        elif body is not None:
            more["json"] = body
        answer = client.request(method, template.format(**ids), **more)
        assert answer.status_code < 400, (template, answer.text)
        self.sent.add((method, template))
        self.compare(before, template)
        return None if page else answer.json()

    def compare(self, before: ledger.Balance, template: str) -> None:
        after = self.balance()
        assert after.spent_nano >= before.spent_nano, template
        assert after.capacity_nano <= before.capacity_nano or template in RAISES, template
        assert after.left_nano <= max(after.capacity_nano - SPENT_NANO, 0), template


@pytest.fixture
def watched(served: Any, released: Callable[[], tuple[dict[str, Any], str]]) -> tuple[Watched, str]:
    """An account that has spent, and the release it paid for."""
    account, release_id = released()
    watch = Watched(served, account["id"])
    assert watch.balance().spent_nano == SPENT_NANO
    return watch, release_id


def test_no_request_returns_what_was_spent(served: Any, watched: Any, make_npz: Callable[..., bytes]) -> None:
    ask, release_id = watched
    account = {"account_id": ask.account_id}
    release = {"release_id": release_id}
    why = {"reason": "why not"}

    people = {"name": "the same people", "owner": "clinic", "epsilon": 2.0, "delta": 1e-5}
    ask("POST", "/v1/accounts", people | {"unit": "record", "adjacency": "add_remove", "filter": "gdp"})
    keys = [ask("POST", "/v1/keys", {"name": name, "scopes": ["admin"]}) for name in ("alice", "bob", "carol")]
    alice, bob = (
        httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {key['token']}"}, timeout=20)
        for key in keys[:2]
    )
    declared = {"name": "again", "visibility": "private", "classes": ["cat", "dog"], "height": 4, "width": 4}
    declared |= {"channels": 1, "records_declared": 100, **account}
    dataset = {"dataset_id": ask("POST", "/v1/datasets", declared)["id"]}
    ask("PUT", "/v1/datasets/{dataset_id}/content", **dataset, params={"format": "npz"}, content=make_npz(10))
    order: dict[str, Any] = {**dataset, "recipe": "datalens", "epsilon": 0.1, "options": {"teachers": 10, "top_k": 4}}
    ask("POST", "/v1/plans", order)

    def key() -> dict[str, str]:
        return {"Idempotency-Key": new_id("key")}

    def job() -> dict[str, str]:
        return {"job_id": ask("POST", "/v1/jobs", order, headers=key())["id"]}

    def sweep() -> dict[str, str]:
        options = order["options"]
        search = {"name": "two", "trials": [{"options": options}, {"options": {**options, "vote_share": 0}}]}
        search |= {name: value for name, value in order.items() if name != "options"}
        return {"sweep_id": ask("POST", "/v1/sweeps", search, headers=key())["id"]}

    def higher(client: httpx.Client, epsilon: float) -> dict[str, str]:
        made = ask(
            "POST", "/v1/accounts/{account_id}/limit-requests", why | {"epsilon": epsilon}, client=client, **account
        )
        return {"request_id": made["id"]}

    ask("POST", "/v1/jobs/{job_id}/cancel", **job())
    ask("POST", "/v1/sweeps/{sweep_id}/cancel", **sweep())
    ask("POST", "/v1/releases/{release_id}/samples", {"count": 5, "seed": 1, "format": "npz"}, headers=key(), **release)
    ask("POST", "/v1/accounts/{account_id}/freeze", why, **account)
    ask("POST", "/v1/accounts/{account_id}/unfreeze", why, **account)
    ask("POST", "/v1/limit-requests/{request_id}/decline", client=bob, **higher(alice, 3.0))
    ask("POST", "/v1/limit-requests/{request_id}/approve", client=bob, **higher(alice, 3.0))
    ask("POST", "/v1/accounts/{account_id}/lower-limit", why | {"epsilon": 2.0}, **account)
    ask("POST", "/v1/keys/{key_id}/revoke", key_id=keys[2]["id"])

    with httpx.Client(base_url=served.url, timeout=20, follow_redirects=True) as browser:

        def sign_in(key: dict[str, Any]) -> None:
            ask("POST", "/login", {"key": key["token"]}, client=browser)
            html = browser.get(f"/accounts/{ask.account_id}").text
            ask.token = re.findall(r'name="token" value="(\w+)"', html)[0]

        sign_in(keys[0])
        for action in ("freeze", "unfreeze"):
            ask("POST", f"/accounts/{{account_id}}/{action}", why, client=browser, **account)
        ask("POST", "/accounts/{account_id}/limit-requests", why | {"epsilon": 2.5}, client=browser, **account)
        newest = served.client().get("/v1/limit-requests").json()["items"][0]["id"]
        ask("POST", "/limit-requests/{request_id}/decline", client=browser, request_id=newest)
        request = higher(alice, 2.5)
        sign_in(keys[1])
        ask("POST", "/limit-requests/{request_id}/approve", client=browser, **request)
        ask("POST", "/accounts/{account_id}/lower-limit", why | {"epsilon": 2.0}, client=browser, **account)
        ask("POST", "/jobs/{job_id}/cancel", client=browser, **job())
        ask("POST", "/sweeps/{sweep_id}/cancel", client=browser, **sweep())
        fields = {"count": "5", "seed": "2", "format": "npz"}
        ask("POST", "/releases/{release_id}/samples", fields, client=browser, **release)
        ask("POST", "/datasets/{dataset_id}/delete", {"sure": "yes"}, client=browser, **dataset)
        ask("POST", "/logout", client=browser)
    ask("DELETE", "/v1/datasets/{dataset_id}", **dataset)
    alice.close(), bob.close()

    document = json.loads(served.client().get("/v1/openapi.json").text)["paths"]
    known = {(method.upper(), path) for path, methods in document.items() for method in methods if method != "get"}
    known |= {(method, route.path) for route in routes(pages) for method in route.methods - {"GET", "HEAD"}}
    assert ask.sent == known, "every request that may change something was looked at"
    balance = ask.balance()
    assert (balance.spent_nano, balance.held_nano) == (SPENT_NANO, 0)


@pytest.mark.parametrize("passed", [timedelta(days=31), timedelta(days=366), timedelta(days=36_500)])
def test_no_month_or_year_returns_what_was_spent(served: Any, settings: Any, watched: Any, passed: timedelta) -> None:
    watch, _release = watched
    before = watch.balance()
    later: datetime = utc_now() + passed
    reconcile(settings, served.factory, send=lambda *_: None, now=later)
    assert watch.balance() == before


def test_no_command_returns_what_was_spent(served: Any, watched: Any) -> None:
    """Commands send the requests above. Those of the ledger, which work on the database itself, are run here."""
    watch, _release = watched
    before = watch.balance()
    for arguments in (["verify"], ["verify", "--clear"], ["status"], ["checkpoint"], ["public-key"]):
        CliRunner().invoke(cli.app, ["--data-dir", str(served.data_dir), "ledger", *arguments])
        assert watch.balance() == before, arguments
    run = {"verify", "status", "checkpoint", "public-key"}
    assert {command.name for command in cli.ledger.ledger.registered_commands} == run
    for module in sorted(Path(cli.__file__).parent.glob("*.py")):
        if module.stem not in ("ledger", "server", "serving"):
            assert not re.search(r"service\.(db|ledger|jobs)\b|service import .*(ledger|jobs)", module.read_text()), (
                module
            )
