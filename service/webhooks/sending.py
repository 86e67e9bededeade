"""Requests of webhooks: resolve, check, sign and send within ten seconds; only the status of the answer is read."""

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
    """A request to send."""

    id: str
    url: str
    body: str
    secret: str


@dataclass(frozen=True)
class Answer:
    """The status of an answer, or the reason why there is none."""

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
    infos = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in infos))


def signature_headers(request: Outgoing) -> dict[str, str]:
    """Return the headers of Standard Webhooks for a request that is sent now."""
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
        private: allow addresses that are not public.
        resolve: returns the addresses of a host.
        trusted: certificate authorities; None for those of the machine.
        seconds_max: for a request.
    """

    private: bool
    resolve: Resolve = resolve
    trusted: ssl.SSLContext | None = None
    seconds_max: float = SECONDS_MAX

    def send(self, requests: Sequence[Outgoing]) -> dict[str, Answer]:
        """Send requests, several at a time, and return the answers by id."""
        if in_web_request():
            raise RuntimeError("A web request must await send_all: it would hold a thread until the last answer.")
        return anyio.run(self.send_all, requests) if requests else {}

    async def send_all(self, requests: Sequence[Outgoing]) -> dict[str, Answer]:
        """Do as `send`, on the caller's event loop."""
        require_place("webhooks")
        answers: dict[str, Answer] = {}
        places = anyio.CapacityLimiter(AT_A_TIME_MAX)
        trusted = self.trusted or _trusted_by_machine()
        # No proxy and no redirect: only checked addresses are asked.
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
        """Send to the first checked address that accepts a connection."""
        target = read_url(request.url, private=self.private)
        addresses = checked(await self.resolve(target.host, target.port), private=self.private)
        headers = {"Content-Type": "application/json", "User-Agent": "obscura-webhooks", **signature_headers(request)}
        headers["Host"] = target.url.netloc.decode("ascii")
        for place, address in enumerate(addresses[:ADDRESSES_TRIED_MAX], start=1):
            response = client.stream(
                "POST",
                target.url.copy_with(host=address),
                content=request.body,
                headers=headers,
                timeout=self.seconds_max,
                extensions={"sni_hostname": target.host},  # certificates are compared with the name, not the address
            )
            try:
                async with response as answer:
                    return Answer(status=answer.status_code)
            except httpx.ConnectError:
                if place == min(len(addresses), ADDRESSES_TRIED_MAX):
                    raise
        return Answer(reason="The host has no address.")
