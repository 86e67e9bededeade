"""While an external service hangs, requests that need it are refused, and all others are answered."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from obscura.client.transport import trusted
from service.dependencies import _request
from service.settings import Settings
from service.webhooks.sending import Sender
from tests.service.api.conftest import SCOPES, OwnSettings, Served, serving
from tests.service.reading_routes import address, reading_routes, stocked
from tests.service.storage.memory_bucket import MEMORY_URL, MemoryBucket
from tests.service.test_dependencies import in_request
from tests.together import wait_until

CROWD = 45  # more than there are threads


class Watched(MemoryBucket):
    """Waits while its gate is closed, and notes which web requests have come without a place."""

    gate: ClassVar[threading.Event] = threading.Event()

    def __init__(self) -> None:
        super().__init__()
        self.gate.set()
        self.inside: set[int] = set()
        self.without_slot: list[str] = []
        self.most = self.reached = 0

    def _ask(self) -> None:
        request = _request.get()
        if request is None:  # a background task
            self.gate.wait()
        else:
            self.reached += 1
            if "storage" not in request.held:
                self.without_slot.append(threading.current_thread().name)
            me = threading.get_ident()
            self.inside.add(me)
            self.most = max(self.most, len(self.inside))
            self.gate.wait()
            self.inside.discard(me)
        super()._ask()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.dependencies.SECONDS_MAX", 1.0)
    monkeypatch.setattr("service.api.routes.admins.SECONDS_MAX", 1.0)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Watched]:
    bucket = Watched()
    bucket.serve(monkeypatch, tmp_path / "storage")
    yield bucket
    bucket.gate.set()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        yield listener


@pytest.fixture
def silent(listener: socket.socket) -> str:
    """A server that accepts connections and never answers."""
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def crowding(served: Served, method: str, path: str, scope: str | None = "admin") -> Iterator[list[httpx.Response]]:
    """Send the same request from a crowd at once; the answers come into the list."""
    answers: list[httpx.Response] = []
    token = {"Authorization": f"Bearer {served.tokens[scope]}"} if scope else {}

    def ask() -> None:
        answers.append(httpx.request(method, f"{served.url}{path}", headers=token, timeout=120, verify=trusted()))

    with ThreadPoolExecutor(CROWD) as pool:
        asked = [pool.submit(ask) for _ in range(CROWD)]
        try:
            yield answers
        finally:
            Watched.gate.set()  # nobody waits for ever
        for each in asked:
            each.result()


def refused(answers: list[httpx.Response]) -> list[httpx.Response]:
    found = [answer for answer in answers if answer.status_code == 503]
    assert all("Retry-After" in answer.headers for answer in found)
    return found


def test_while_the_storage_hangs_others_are_answered(own_settings: OwnSettings, watched: Watched) -> None:
    with serving(own_settings(storage=MEMORY_URL), *SCOPES) as served:
        account = served.account()
        job = served.train(served.ready_dataset(account["id"])["id"]).json()
        release_id = served.publish(job["id"], served.claim(job["id"]))
        storage = served.app.state.service.dependencies.storage
        watched.most = 0
        watched.gate.clear()
        with crowding(served, "GET", f"/v1/releases/{release_id}/report.html") as answers:
            wait_until(lambda: len(refused(answers)) >= CROWD - storage.slots, "the crowd was not refused")
            assert len(storage._calls) == watched.most == storage.slots
            assert served.read("accounts")["items"]  # although the storage hangs still
            wait_until(lambda: served.read("health/ready", scope=None)["unavailable"] == ["storage"], "it is not said")
            answer = served.client().get(f"/v1/releases/{release_id}/report.html")  # at once, as the breaker is open
            assert (answer.status_code, answer.json()["code"]) == (503, "busy")
        assert served.read("health/ready", scope=None)["unavailable"] is None
        assert watched.without_slot == []


def test_a_storage_that_does_not_answer_is_reported_without_particulars(
    own_settings: OwnSettings, watched: Watched
) -> None:
    with serving(own_settings(storage=MEMORY_URL), *SCOPES) as served:
        dataset = served.dataset()
        watched.is_away = True
        answer = served.client("data").delete(f"/v1/datasets/{dataset['id']}")
        watched.is_away = False
        assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
        assert "Retry-After" in answer.headers
        assert "secret-bucket" not in answer.text


def test_every_route_that_reaches_the_storage_holds_a_slot(own_settings: OwnSettings, watched: Watched) -> None:
    with stocked(own_settings(storage=MEMORY_URL)) as (client, ids):
        for path in reading_routes():
            client.get(address(path, ids))
        for path, operations in client.get("/v1/openapi.json").json()["paths"].items():
            for method in {"post", "put", "delete", "patch"} & operations.keys():
                body = {"subjects": ["one"], "cancel_jobs": True} if path.endswith("withdrawals") else {}
                client.request(method, address(path, ids), json=body, headers={"Idempotency-Key": "walk"})
    assert watched.reached > 5
    assert watched.without_slot == []


def test_while_the_provider_hangs_others_are_answered(
    own_settings: OwnSettings, silent: str, listener: socket.socket
) -> None:
    changes = {"oidc_issuer": silent, "oidc_client_id": "obscura", "oidc_admin_group": "platform"}
    changes |= {"public_url": "http://127.0.0.1:8420"}
    settings = Settings.model_validate(
        own_settings().model_dump() | changes | {"oidc_client_secret": "secret of a test"}
    )
    with serving(settings, *SCOPES) as served:
        provider = served.app.state.service.dependencies.provider
        with crowding(served, "GET", "/login/provider", scope=None) as answers:
            wait_until(lambda: len(answers) >= CROWD // 2, "the crowd was not refused")
            assert len(provider._calls) <= provider.slots
            assert served.read("jobs")["items"] == []
        assert len(refused(answers)) == CROWD
        assert served.read("health/ready", scope=None)["unavailable"] == ["sign-in provider"]
    listener.setblocking(False)
    with listener.accept()[0], pytest.raises(BlockingIOError):
        listener.accept()  # everyone who got a slot shared one request for the metadata


def test_while_a_webhook_is_silent_others_are_answered(own_settings: OwnSettings, silent: str) -> None:
    with serving(own_settings(webhooks_private=True), *SCOPES) as served:
        made = served.send("webhooks", {"url": silent}, status=201)
        with crowding(served, "POST", f"/v1/webhooks/{made['id']}/test") as answers:
            wait_until(lambda: len(refused(answers)) >= CROWD - 20, "the crowd was not refused")
            assert served.read("jobs")["items"] == []
        assert len(refused(answers)) < CROWD
        assert next(answer.json()["delivered"] for answer in answers if answer.status_code == 200) is False
        with pytest.raises(RuntimeError, match="await send_all"):
            in_request(served.app.state.service.dependencies, lambda: Sender(private=True).send([]))
