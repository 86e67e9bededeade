"""One request of a webhook: resolved, checked, signed, sent, and its answer's status, all within ten seconds."""

from __future__ import annotations

import functools
import json
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio
import httpx
import standardwebhooks

from service.dependencies import in_web_request, require_place
from service.webhooks.addresses import AddressRefused, checked, read_url

SECONDS_MAX = 10.0  # from the look-up of the name to the status of the answer
AT_A_TIME_MAX = 20
ADDRESSES_TRIED_MAX = 3
Resolve = Callable[[str, int], Awaitable[list[str]]]


@dataclass(frozen=True)
class Outgoing:
    """A request to be sent: its id, where to, its body, and the secret that signs it."""

    id: str
    url: str
    body: str
    secret: str


@dataclass(frozen=True)
class Answer:
    """What came of a request: the status of the answer, or why there was none."""

    status: int | None = None
    reason: str | None = None

    @property
    def delivered(self) -> bool:
        """Whether it was answered with 2xx."""
        return self.status is not None and 200 <= self.status < 300


@functools.cache
def _trusted_by_machine() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # takes tens of milliseconds


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def signature_headers(request: Outgoing) -> dict[str, str]:
    """Return the headers that sign a request which is sent now (Standard Webhooks); its id is that of the event."""
    now, event_id = datetime.now(UTC), json.loads(request.body)["id"]
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": standardwebhooks.Webhook(request.secret).sign(event_id, now, request.body),
    }


@dataclass(frozen=True)
class Sender:
    """Sends requests.

    Attributes:
        private: whether addresses that are not public may be reached.
        resolve: finds the addresses of a host.
        trusted: whose certificates are; None for those that the machine trusts.
        seconds_max: for a request.
    """

    private: bool
    resolve: Resolve = resolve
    trusted: ssl.SSLContext | None = None
    seconds_max: float = SECONDS_MAX

    def send(self, requests: Sequence[Outgoing]) -> dict[str, Answer]:
        """Send requests, some at a time, and return what came of each, by its id."""
        if in_web_request():
            raise RuntimeError("A web request must await send_all: it would hold a thread until the last answer.")
        return anyio.run(self.send_all, requests) if requests else {}

    async def send_all(self, requests: Sequence[Outgoing]) -> dict[str, Answer]:
        """As `send`, on the caller's event loop."""
        require_place("webhooks")
        answers: dict[str, Answer] = {}
        places = anyio.CapacityLimiter(AT_A_TIME_MAX)
        trusted = self.trusted or _trusted_by_machine()
        # Neither a proxy of the environment, nor an address that an answer names: what was checked is what is asked.
        async with httpx.AsyncClient(trust_env=False, follow_redirects=False, verify=trusted) as client:

            async def send_one(request: Outgoing) -> None:
                async with places:
                    answers[request.id] = await self._answer(client, request)

            async with anyio.create_task_group() as group:
                for request in requests:
                    group.start_soon(send_one, request)
        return answers

    async def _answer(self, client: httpx.AsyncClient, request: Outgoing) -> Answer:
        try:
            with anyio.fail_after(self.seconds_max):
                return await self._request(client, request)
        except AddressRefused as error:
            return Answer(reason=error.message)
        except TimeoutError:
            return Answer(reason=f"There was no answer within {self.seconds_max:g} seconds.")
        except (OSError, httpx.HTTPError, ssl.SSLError, ValueError) as error:
            return Answer(reason=f"It could not be sent: {type(error).__name__}.")

    async def _request(self, client: httpx.AsyncClient, request: Outgoing) -> Answer:
        """Send to the first checked address that takes a connection; only the status of the answer is read."""
        target = read_url(request.url, private=self.private)
        addresses = checked(await self.resolve(target.host, target.port), private=self.private)
        headers = {"Content-Type": "application/json", "User-Agent": "obscura-webhooks", **signature_headers(request)}
        headers["Host"] = target.url.netloc.decode("ascii")
        for place, address in enumerate(addresses[:ADDRESSES_TRIED_MAX], start=1):
            asked = client.stream(
                "POST",
                target.url.copy_with(host=address),
                content=request.body,
                headers=headers,
                timeout=self.seconds_max,
                extensions={"sni_hostname": target.host},  # certificates are compared with the name, not the address
            )
            try:
                async with asked as answer:
                    return Answer(status=answer.status_code)
            except httpx.ConnectError:
                if place == min(len(addresses), ADDRESSES_TRIED_MAX):
                    raise
        return Answer(reason="The host has no address.")
