"""Requests to webhooks: resolve, check, sign and send within ten seconds. Only the status of the response is read.

Webhooks can only reach public addresses, unless the operator allows others. A name is resolved once, all its addresses
are checked, and the connection uses one of them. This prevents DNS rebinding.
"""

from __future__ import annotations

import functools
import ipaddress
import json
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

import anyio
import httpx
import standardwebhooks

from obscura.wire.admin_schemas import URL_CHARACTERS_MAX
from service.dependencies import in_web_request, require_slot
from service.errors import InvalidInput

SECONDS_MAX = 10.0  # from the look-up of the name to the status of the response
AT_A_TIME_MAX = 20
ADDRESSES_TRIED_MAX = 3
Resolve = Callable[[str, int], Awaitable[list[str]]]

# `ipaddress` counts these as public: Azure's metadata, protocol assignments (Oracle's metadata), 6to4 relays.
_INSIDE = tuple(map(ipaddress.ip_network, ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24")))
_UNICAST_V6 = ipaddress.ip_network("2000::/3")
_PORTS = {"https": 443, "http": 80}
_PORT_MAX = 65_535
_HOST_CHARACTERS_MAX = 253
_LABEL = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
# The last label must not be a number: resolvers parse 127.1 and 0x7f.1 as addresses, but `ipaddress` does not.
_HOST_NAME = re.compile(rf"(?:{_LABEL}\.)*(?!\d+\.?$|0x[0-9a-f]*\.?$){_LABEL}\.?")


class AddressRefused(InvalidInput):
    """The service must not send requests to this URL."""

    code: ClassVar[str] = "address_refused"


def read_url(url: str, *, private: bool) -> tuple[httpx.URL, str, int]:
    """Parse a webhook's URL; return it with its host and port. Host names are checked only when they are resolved.

    Raise AddressRefused if the URL is malformed, or, unless `private`, if its address is not public or it has no TLS.
    """
    schemes = ("https", "http") if private else ("https",)
    refused = AddressRefused(
        f"A webhook's URL must look like https://hooks.example.org/obscura. It needs the scheme {' or '.join(schemes)} "
        f"and a valid host name or address, and has at most {URL_CHARACTERS_MAX} characters. It may have a port from "
        "1 to 65535, but no user and no fragment."
    )
    if len(url) > URL_CHARACTERS_MAX or not url.isprintable() or any(mark in url for mark in " \\#"):
        raise refused
    try:
        parsed = httpx.URL(url)
        has_user = "@" in re.split("[/?]", url.partition("://")[2], maxsplit=1)[0]
        has_host = bool(parsed.host)  # decodes punycode, and raises UnicodeError if malformed
    except (httpx.InvalidURL, ValueError):
        raise refused from None
    if parsed.scheme not in schemes or not has_host or has_user:
        raise refused
    port = _PORTS[parsed.scheme] if parsed.port is None else parsed.port
    if not 1 <= port <= _PORT_MAX:
        raise refused
    host = parsed.raw_host.decode("ascii").strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _HOST_NAME.fullmatch(host) or len(host.rstrip(".")) > _HOST_CHARACTERS_MAX:
            raise refused from None
    else:
        checked([host], private=private)
    return parsed, host, port


def checked(addresses: list[str], *, private: bool) -> list[str]:
    """Return the addresses of a host; raise AddressRefused if one is not public."""
    if not private and not all(map(is_public, addresses)):
        raise AddressRefused(
            "This host has an address that is not public: this machine, a private network, or a cloud's metadata. "
            "Use a public address, or ask the operator to set OBSCURA_WEBHOOKS_PRIVATE."
        )
    return addresses


def is_public(address: str) -> bool:
    """Return whether an address is public. IPv6 must be global unicast and not embed IPv4 (6to4, Teredo, NAT64)."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip not in _UNICAST_V6 or ip.sixtofour is not None or ip.teredo is not None:
            return False
    elif ip.is_reserved or any(ip in network for network in _INSIDE):
        return False
    return ip.is_global and not ip.is_multicast


@dataclass(frozen=True)
class Outgoing:
    id: str
    url: str
    body: str
    secret: str


@dataclass(frozen=True)
class Answer:
    """The status of a response, or the reason why there is none."""

    status: int | None = None
    reason: str | None = None

    @property
    def delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


async def resolve(host: str, port: int) -> list[str]:
    infos = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


def signature_headers(request: Outgoing) -> dict[str, str]:
    """Return the Standard Webhooks headers for a request that is sent now."""
    now, event_id = datetime.now(UTC), json.loads(request.body)["id"]
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": standardwebhooks.Webhook(request.secret).sign(event_id, now, request.body),
    }


_machine_trust = functools.cache(httpx.create_ssl_context)  # takes tens of milliseconds


@dataclass(frozen=True)
class Sender:
    private: bool  # allow addresses that are not public
    resolve: Resolve = resolve
    trusted: ssl.SSLContext | None = None  # certificate authorities; None means those of the machine
    seconds_max: float = SECONDS_MAX

    def send(self, requests: Sequence[Outgoing]) -> dict[str, Answer]:
        """Send requests, several at a time, and return the responses by id."""
        if in_web_request():
            raise RuntimeError("A web request must await send_all, because `send` blocks a thread.")
        return anyio.run(self.send_all, requests) if requests else {}

    async def send_all(self, requests: Sequence[Outgoing]) -> dict[str, Answer]:
        """Send requests like `send`, on the caller's event loop."""
        require_slot("webhooks")
        answers: dict[str, Answer] = {}
        places = anyio.CapacityLimiter(AT_A_TIME_MAX)
        trusted = self.trusted or _machine_trust()
        # No proxy and no redirects, so that only checked addresses are contacted.
        async with (
            httpx.AsyncClient(trust_env=False, follow_redirects=False, verify=trusted) as client,
            anyio.create_task_group() as group,
        ):

            async def send_one(request: Outgoing) -> None:
                async with places:
                    answers[request.id] = await self._answer(client, request)

            for request in requests:
                group.start_soon(send_one, request)
        return answers

    async def _answer(self, client: httpx.AsyncClient, request: Outgoing) -> Answer:
        reason = "The host has no address."
        try:
            with anyio.fail_after(self.seconds_max):
                url, host, port = read_url(request.url, private=self.private)
                addresses = checked(await self.resolve(host, port), private=self.private)
                headers = {"Content-Type": "application/json", "User-Agent": "obscura-webhooks"}
                headers |= signature_headers(request) | {"Host": url.netloc.decode("ascii")}
                for address in addresses[:ADDRESSES_TRIED_MAX]:
                    response = client.stream(
                        "POST",
                        url.copy_with(host=address),
                        content=request.body,
                        headers=headers,
                        timeout=self.seconds_max,
                        extensions={"sni_hostname": host},  # the certificate must match the name
                    )
                    try:
                        async with response as answer:
                            return Answer(status=answer.status_code)
                    except httpx.ConnectError as error:
                        reason = f"The request could not be sent: {type(error).__name__}."
        except AddressRefused as error:
            reason = error.message
        except TimeoutError:
            reason = f"There was no answer within {self.seconds_max:g} seconds."
        except (OSError, httpx.HTTPError, ssl.SSLError, ValueError) as error:
            reason = f"The request could not be sent: {type(error).__name__}."
        return Answer(reason=reason)
