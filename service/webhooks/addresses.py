"""Protection against request forgery: webhooks reach public addresses only, unless the operator allows others.

A name is resolved once, all its addresses are checked, and the connection is made to one of these. So DNS rebinding
gains nothing, and neither the machine, its network nor a cloud's metadata can be reached.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import ClassVar

import httpx

from obscura.wire.admin_schemas import URL_CHARACTERS_MAX
from service.errors import InvalidInput

# Not recognised as private: Azure's metadata, protocol assignments (with Oracle's metadata), and 6to4 relays.
_INSIDE = tuple(map(ipaddress.ip_network, ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24")))
_UNICAST_V6 = ipaddress.ip_network("2000::/3")
_PORTS = {"https": 443, "http": 80}
_PORT_MAX = 65_535
_HOST_CHARACTERS_MAX = 253
_LABEL = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
# The last label must not be a number: resolvers read 127.1 and 0x7f.1 as addresses, but ipaddress does not.
_HOST_NAME = re.compile(rf"(?:{_LABEL}\.)*(?!\d+\.?$|0x[0-9a-f]*\.?$){_LABEL}\.?")


class AddressRefused(InvalidInput):
    """Requests are not sent to this URL."""

    code: ClassVar[str] = "address_refused"


@dataclass(frozen=True)
class Target:
    """A parsed URL."""

    url: httpx.URL
    host: str
    port: int


def read_url(url: str, *, private: bool) -> Target:
    """Parse a webhook's URL. A literal address is checked at once, a name each time that it is used.

    Args:
        private: allow addresses that are not public, and no TLS.

    Raises:
        AddressRefused: the URL is malformed, or its address is not public.
    """
    schemes = ("https", "http") if private else ("https",)
    refused = AddressRefused(
        f"A webhook's URL must look like https://hooks.example.org/obscura: {' or '.join(schemes)}, a valid host name "
        f"or address, a port from 1 to 65535 or none, neither a user nor a fragment, and at most {URL_CHARACTERS_MAX} "
        "characters."
    )
    if len(url) > URL_CHARACTERS_MAX or not url.isprintable() or any(mark in url for mark in " \\#"):
        raise refused
    try:
        read = httpx.URL(url)
        has_user = "@" in re.split("[/?]", url.partition("://")[2], maxsplit=1)[0]
        named = bool(read.host)  # decodes punycode, and raises UnicodeError where that is malformed
    except (httpx.InvalidURL, ValueError):
        raise refused from None
    if read.scheme not in schemes or not named or has_user:
        raise refused
    port = _PORTS[read.scheme] if read.port is None else read.port
    if not 1 <= port <= _PORT_MAX:
        raise refused
    host = read.raw_host.decode("ascii").strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _HOST_NAME.fullmatch(host) or len(host.rstrip(".")) > _HOST_CHARACTERS_MAX:
            raise refused from None
    else:
        checked([host], private=private)
    return Target(read, host, port)


def checked(addresses: list[str], *, private: bool) -> list[str]:
    """Return the addresses of a host; raise AddressRefused if one is not public."""
    if not private and not all(is_public(address) for address in addresses):
        raise AddressRefused(
            "This host has an address that is not public: this machine, a private network, or a cloud's metadata. "
            "Use a public address, or ask the operator to set OBSCURA_WEBHOOKS_PRIVATE."
        )
    return addresses


def is_public(address: str) -> bool:
    """Return whether an address is public. IPv6 must be global unicast and embed no IPv4 (6to4, Teredo, NAT64)."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip not in _UNICAST_V6 or ip.sixtofour is not None or ip.teredo is not None:
            return False
    elif ip.is_reserved or any(ip in network for network in _INSIDE):
        return False
    return ip.is_global and not ip.is_multicast
