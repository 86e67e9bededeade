"""Nothing gives spent budget back: no request that the service takes, no page's form, no passing of time."""

import inspect
import re
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import obscura.cli
import service.cli
from obscura.cli.app import app
from obscura.wire.job_schemas import NEW_ACCOUNT
from obscura.wire.schemas import BalanceFacts
from service import ledger
from service.cli import ledger as ledger_commands
from service.cli import machine
from service.db.access_tables import DEFAULT_PROJECT
from service.db.base import new_id
from service.db.session import transaction
from service.identity.admins import introduce
from service.main import utc_now
from tests.service.api.conftest import ACCOUNT, DATASET, PATIENCE_SECONDS, Served, npz
from tests.service.departments import all_routes
from workers.supervise.reconcile import reconcile

RAISES = {"/v1/decisions/{request_id}/approve"}


class Watched:
    """Sends requests and compares the account's balance before and after each."""

    def __init__(self, served: Any, account_id: str) -> None:
        self.served, self.account_id = served, account_id
        self.sent: set[tuple[str, str]] = set()
        self.token, self.spent_nano = "", self.balance().spent_nano

    def balance(self) -> BalanceFacts:
        with transaction(self.served.factory, read_only=True) as session:
            return ledger.balance_of(ledger.get_account(session, self.account_id))

    def __call__(
        self, method: str, template: str, body: Any = None, *, client: httpx.Client | None = None, **more: Any
    ) -> Any:
        """Send a request whose path is a route's, with its placeholders filled, and expect it to succeed."""
        ids = {name: more.pop(name) for name in re.findall(r"{(\w+)}", template)}
        before = self.balance()
        client = client or self.served.client()
        page = not template.startswith("/v1/")
        if page:
            sent = {"data": {"token": self.token, **(body or {})}}
            more = sent | {"headers": {"Origin": self.served.url, "X-Form-Token": self.token}} | more
        elif method == "POST":
            more = {"json": body, "headers": {"Idempotency-Key": new_id("key")}} | more
        answer = client.request(method, template.format(**ids), **more)
        assert answer.status_code < 400, (template, answer.text)
        self.sent.add((method, template))
        self.compare(before, template)
        return answer if page else answer.json()

    def compare(self, before: BalanceFacts, template: str) -> None:
        after = self.balance()
        assert after.spent_nano >= before.spent_nano, template
        assert after.capacity_nano <= before.capacity_nano or template in RAISES, template
        assert after.left_nano <= max(after.capacity_nano - self.spent_nano, 0), template


@pytest.fixture
def served(fresh) -> Served:
    return fresh


@pytest.fixture
def watched(served: Any, released: Callable[[], tuple[dict[str, Any], str]]) -> tuple[Watched, str]:
    account, release_id = released()
    watch = Watched(served, account["id"])
    assert watch.spent_nano > 0
    return watch, release_id


def test_no_request_returns_what_was_spent(served, watched):
    ask, release_id = watched
    account = {"account_id": ask.account_id}
    release = {"release_id": release_id}
    why = {"reason": "why not"}

    ask("POST", "/v1/accounts", ACCOUNT | {"name": "the same people"})
    keys = [ask("POST", "/v1/keys", {"name": name, "scopes": ["admin"]}) for name in ("alice", "alice's spare")]
    token_of_bob, introduction_of_bob = introduce()
    served.tokens |= {"alice": keys[0]["token"], "bob": token_of_bob}
    alice, bob = served.client("alice"), served.client("bob")

    def person(name: str, introduction: str = "") -> dict[str, str]:
        return why | {"name": name, "introduction": introduction or introduce()[1]}

    def asked() -> dict[str, str]:
        return {"request_id": alice.get("/v1/decisions").json()["items"][0]["id"]}

    named = ask("POST", "/v1/admins", person("bob", introduction_of_bob), client=alice)
    assert named["request"] is None, "the second person is admitted at once"
    assert ask("POST", "/v1/admins", person("carol"), client=alice)["admin"] is None, "the third is asked for"
    carol = ask("POST", "/v1/decisions/{request_id}/approve", client=bob, **asked())
    ask("POST", "/v1/admins", person("nobody"), client=alice)
    ask("POST", "/v1/decisions/{request_id}/decline", client=bob, **asked())
    ask("POST", "/v1/admins/{admin_id}/remove", why, client=bob, admin_id=carol["admin_id"])
    ask("POST", "/v1/decisions/{request_id}/approve", client=alice, **asked())
    ask("POST", "/v1/keys/{key_id}/request-revocation", why, client=alice, key_id=served.key_id("bob"))
    declared = DATASET | {"visibility": "private", **account}
    first = {"account": ACCOUNT | {"name": "planned"}, "dataset": declared | {"account_id": NEW_ACCOUNT}}
    ask("POST", "/v1/accounts/first-plan", first | {"recipe": "class_histogram", "epsilon": 0.1})
    dataset = {"dataset_id": ask("POST", "/v1/datasets", declared)["id"]}
    ask("PUT", "/v1/datasets/{dataset_id}/content", **dataset, params={"format": "npz"}, content=npz(10))
    order: dict[str, Any] = {**dataset, "recipe": "datalens", "epsilon": 0.1, "options": {"teachers": 10, "top_k": 4}}
    ask("POST", "/v1/plans", order)
    ask("POST", "/v1/previews", order)
    ask("POST", "/v1/jobs/{job_id}/cancel", job_id=ask("POST", "/v1/jobs", order)["id"])
    options = order.pop("options")
    search = order | {"name": "two", "trials": [{"options": options}, {"options": {**options, "beta": 0.2}}]}
    ask("POST", "/v1/sweeps/{sweep_id}/cancel", sweep_id=ask("POST", "/v1/sweeps", search)["id"])
    ask("POST", "/v1/releases/{release_id}/samples", {"count": 5, "seed": 1, "format": "npz"}, **release)
    public = {"dataset_id": served.public_like_a_training()}
    ask("POST", "/v1/releases/{release_id}/evaluations", public, **release)
    shares = "/v1/releases/{release_id}/shares"
    for decision in ("decline", "approve"):
        ask("POST", shares, why, client=alice, **release)
        ask("POST", f"/v1/decisions/{{request_id}}/{decision}", client=bob, **asked())
    (share,) = alice.get(shares.format(**release)).json()["items"]
    ask("DELETE", f"{shares}/{{share_id}}", **release, share_id=share["id"])
    ask("POST", "/v1/accounts/{account_id}/freeze", why, **account)
    ask("POST", "/v1/accounts/{account_id}/unfreeze", why, **account)
    ask("POST", "/v1/accounts/{account_id}/close", **account)
    ask("POST", "/v1/accounts/{account_id}/reopen", **account)
    people = served.account(unit="subject")["id"]
    served.dataset(visibility="private", account_id=people, subjects_declared=9, subjects_recognised=True)
    ask("POST", "/v1/accounts/{account_id}/withdrawals", {"subjects": ["anna"]}, account_id=people)
    for decision in ("decline", "approve"):
        ask("POST", "/v1/accounts/{account_id}/raise-limit", why | {"epsilon": 3.0}, client=alice, **account)
        ask("POST", f"/v1/decisions/{{request_id}}/{decision}", client=bob, **asked())
    ask("POST", "/v1/accounts/{account_id}/lower-limit", why | {"epsilon": 2.0}, **account)
    spare = ask("POST", "/v1/keys/{key_id}/rotate", {"overlap_seconds": 60}, key_id=keys[1]["id"])
    for each in (spare, keys[1]):
        ask("POST", "/v1/keys/{key_id}/revoke", key_id=each["id"])

    with httpx.Client(base_url=served.url, timeout=PATIENCE_SECONDS, follow_redirects=True) as browser:
        ask("POST", "/login", {"key": served.tokens["alice"]}, client=browser)
        html = browser.get("/datasets/new").text
        ask.token = re.findall(r'name="form-token" content="(\w+)"', html)[0]
        declared = {"name": "more", "classes": "cat,dog", "width": "4", "height": "4", "channels": "1"}
        declared |= {"records_declared": "100"}
        form = {"fields": {**declared, "account_id": ask.account_id}, "format": "npz", "file_bytes": 0}
        for dataset_id in ("new", served.dataset(visibility="private", **account)["id"]):
            begun = ask("POST", "/uploads", client=browser, data=None, json=form | {"upload": ""})
            secret = {"upload": begun.json()["upload"]}
            headers = {"Origin": served.url, "X-Form-Token": ask.token, "X-Upload": secret["upload"]}
            ask("PUT", "/uploads", client=browser, data=None, content=npz(10), params={"offset": 0}, headers=headers)
            end: dict[str, Any] = {"data": None, "json": form | secret, "dataset_id": dataset_id}
            ask("POST", "/datasets/{dataset_id}", client=browser, **end)
        ask("POST", "/view", {"project": DEFAULT_PROJECT}, client=browser)
        ask("POST", "/logout", client=browser)
        link = ask("POST", "/v1/invitations", {"role": "analyst"})["link"].rpartition("/")[2]
        ask("POST", "/invitations/{secret}", {"name": "ana", "days": "7"}, client=browser, secret=link)
        secret = served.app.state.links.make(now_seconds=time.monotonic())
        ask("POST", "/sign-in/{secret}", client=browser, secret=secret)
    ask("DELETE", "/v1/datasets/{dataset_id}", **dataset)
    invitation = ask("POST", "/v1/invitations", {"role": "analyst"})["id"]
    ask("POST", "/v1/invitations/{invitation_id}/revoke", invitation_id=invitation)
    project = ask("POST", "/v1/projects", {"name": "the same people's"})
    ask("POST", "/v1/projects/{project_id}/rename", {"name": "others"}, project_id=project["id"])
    project = {"project_id": project["id"]}
    ask("POST", "/v1/projects/{project_id}/quota", {"jobs_max": 9}, **project)
    hook = {"webhook_id": ask("POST", "/v1/webhooks", {"url": "https://localhost:1/"})["id"]}
    ask("POST", "/v1/webhooks/{webhook_id}/test", **hook)
    ask("DELETE", "/v1/webhooks/{webhook_id}", **hook)
    people_now = [(row["name"], row["removed_at"] is None) for row in alice.get("/v1/admins").json()["items"]]
    assert people_now == [("first admin", True), ("bob", True), ("carol", False)]

    known = {(method, path) for method, path in all_routes() if method != "GET"}
    # The page of people makes and ends keys alone, by what the routes of keys call; tests/service/sign_on does so.
    known -= {(method, path) for method, path in known if path.startswith("/you/")}
    assert ask.sent == known, "every request that may change something was looked at"
    balance = ask.balance()
    assert (balance.spent_nano, balance.reserved_nano) == (ask.spent_nano, 0)


def test_no_month_or_year_returns_what_was_spent(served, settings, watched):
    watch, _release = watched
    before = watch.balance()
    for days in (31, 366, 36_500):
        reconcile(settings, served.factory, send=lambda *_: None, now=utc_now() + timedelta(days=days))
        assert watch.balance() == before, days


def test_no_command_returns_what_was_spent(served, watched, tmp_path):
    """Commands send the requests above. Those which work on the database itself are run here."""
    watch, _release = watched
    before = watch.balance()

    def run(*arguments: str) -> int:
        code = CliRunner().invoke(app, ["--data-dir", str(served.data_dir), *arguments]).exit_code
        assert watch.balance() == before, arguments
        return code

    for arguments in (["verify"], ["verify", "--clear"], ["status"], ["checkpoint"], ["public-key"], ["accept-clock"]):
        run("ledger", *arguments)
    assert run("ledger", "accept", watch.account_id, "--reason", "nothing is missing") != 0
    commands = {"accept", "accept-clock", "checkpoint", "public-key", "status", "verify"}
    assert {command.name for command in ledger_commands.ledger.registered_commands} == commands

    assert run("admins", "restore", "operator", "--out", str(tmp_path / "operator.key")) == 0
    restored = served.client().get("/v1/admins").json()["items"][-1]
    assert (restored["name"], restored["admission"]) == ("operator", "machine")
    restore = inspect.getsource(machine.restore)
    assert "open_database(" in restore

    folders = (Path(package.__file__).parent for package in (obscura.cli, service.cli))
    for module in sorted(module for folder in folders for module in folder.glob("*.py")):
        if module.stem not in ("ledger", "serving"):  # restores: tests/service/backups
            text = module.read_text()
            # It uses the database, but neither the ledger nor jobs, and only in the command that was run here.
            if module.stem == "machine":
                assert restore in text
                text = text.replace(restore, re.sub(r"service\.db\b|open_database\(", "", restore))
                text = re.sub(r"service\.db\.(schema|session)\b", "", text)  # doctor asks for the schema's revision
            uses = r"service\.(db|ledger|jobs)\b|service import .*(db|ledger|jobs)|open_database\("
            assert not re.search(uses, text), module
