"""How many requests a minute a key may send, and an address without one; what is left stands in every answer.

The headers are those of the IETF's draft (draft-ietf-httpapi-ratelimit-headers-10). What comes from the machine itself
is not counted: by the loopback interface or a socket of its own. So a proxy on it has to say whom it asks for.
"""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, field

from fastapi import Request

from service.api.counts import Counts, ProcessCounts
from service.api.problems import TooManyRequests

ADDRESS_BITS_V6 = 64  # of an IPv6 address: what one customer of a provider gets at least
WINDOW_SECONDS = 60
UNKNOWN = "unknown"


def client_address(request: Request) -> str:
    """Return the address that a client is counted by: as a trusted proxy names it, see `Settings.trusted_proxies`."""
    host = request.client.host if request.client is not None else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return UNKNOWN
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), ADDRESS_BITS_V6), strict=False))


def is_own_machine(request: Request) -> bool:
    """Tell whether a request comes from the machine itself."""
    address = client_address(request)
    return address == UNKNOWN or ipaddress.ip_network(address).is_loopback or address == "::/64"


@dataclass(frozen=True)
class Rates:
    """Counts requests: of a key by its id, and without one of an address. So nobody uses up what another one has.

    Attributes:
        requests_max: a minute; 0 counts nothing.
    """

    requests_max: int
    counts: Counts = field(default_factory=ProcessCounts)

    def pass_key(self, request: Request, key_id: str) -> None:
        """Count a request with a valid key.

        Raises:
            TooManyRequests: there were as many in this minute as it may send.
        """
        self._pass(request, "key", key_id)

    def pass_address(self, request: Request) -> None:
        """Count a request without a key.

        Raises:
            TooManyRequests: there were as many in this minute as its address may send.
        """
        self._pass(request, "address", client_address(request))

    def _pass(self, request: Request, policy: str, whose: str) -> None:
        if not self.requests_max or is_own_machine(request):
            return
        count, seconds_left = self.counts.count(f"requests:{policy}:{whose}", WINDOW_SECONDS)
        seconds = max(math.ceil(seconds_left), 1)
        request.state.rate_headers = {
            "RateLimit-Policy": f'"{policy}";q={self.requests_max};w={WINDOW_SECONDS}',
            "RateLimit": f'"{policy}";r={max(self.requests_max - count, 0)};t={seconds}',
        }
        if count > self.requests_max:
            raise TooManyRequests(policy, self.requests_max, seconds)
