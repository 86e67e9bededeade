"""How many requests a minute a key may send, and an address without one; what is left stands in every answer.

The headers are those of the IETF's draft (draft-ietf-httpapi-ratelimit-headers-10). Requests of the machine itself,
by the loopback interface or a Unix socket, are not counted. So a proxy on it has to name its clients; clients that it
names by something other than an address are counted together.
"""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, field

from fastapi import Request
from starlette.datastructures import Headers

from service.api.counts import Counts, ProcessCounts
from service.api.problems import TooManyRequests

ADDRESS_BITS_V6 = 64  # of an IPv6 address: what one customer of a provider gets at least
WINDOW_SECONDS = 60
PROJECT_KEYS = 2  # how many times what one key may take all keys of a project may take together
UNKNOWN = "unknown"  # a proxy names the client by something other than an address
UNIX_SOCKET = "unix"


def client_address(request: Request) -> str:
    """Return the address that a client is counted by: as a trusted proxy names it, see `Settings.trusted_proxies`."""
    if request.client is None:
        return UNIX_SOCKET
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:
        return UNKNOWN
    forwarded_for = Headers(raw=request.scope.get("headers", [])).getlist("x-forwarded-for")
    if address.is_loopback and forwarded_for and not forwarded_for[-1].rpartition(",")[2].strip():
        return UNKNOWN  # a proxy on this machine names nobody
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), ADDRESS_BITS_V6), strict=False))


def is_own_machine(request: Request) -> bool:
    """Return whether a request comes from the machine itself."""
    address = client_address(request)
    if address in (UNIX_SOCKET, UNKNOWN):
        return address == UNIX_SOCKET
    return ipaddress.ip_network(address).is_loopback or address == "::/64"


@dataclass(frozen=True)
class Rates:
    """Counts requests: of a key, of all keys of a project, and without a key of an address.

    Attributes:
        requests_max: A minute of a key or an address; 0 counts nothing. A project may send PROJECT_KEYS times as many.
    """

    requests_max: int
    counts: Counts = field(default_factory=ProcessCounts)

    def pass_key(self, request: Request, key_id: str, project_id: str | None = None) -> None:
        """Count a request with a valid key."""
        self._pass(request, "key", key_id, self.requests_max)
        if project_id is not None:
            self._pass(request, "project", project_id, PROJECT_KEYS * self.requests_max)

    def pass_address(self, request: Request) -> None:
        """Count a request without a key."""
        self._pass(request, "address", client_address(request), self.requests_max)

    def _pass(self, request: Request, policy: str, whose: str, requests_max: int) -> None:
        if not requests_max or is_own_machine(request):
            return
        count, seconds_left = self.counts.count(f"requests:{policy}:{whose}", WINDOW_SECONDS)
        seconds = max(math.ceil(seconds_left), 1)
        if policy != "project" or count > requests_max:
            request.state.rate_headers = {
                "RateLimit-Policy": f'"{policy}";q={requests_max};w={WINDOW_SECONDS}',
                "RateLimit": f'"{policy}";r={max(requests_max - count, 0)};t={seconds}',
            }
        if count > requests_max:
            raise TooManyRequests(policy, requests_max, seconds)
