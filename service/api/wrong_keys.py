"""Keys that open nothing: how many an address may send before it is told to wait.

A valid key passes however many wrong ones came from its address, so nobody locks out anybody who shares one. That tells
a guesser nothing new: a token has 256 random bits, and at a billion guesses a second the first of a million keys would
be found after 10^54 years. What the limit holds back is the log, and programs that repeat what cannot succeed.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from fastapi import Request

ADDRESS_BITS_V6 = 64  # of an IPv6 address: what one customer of a provider gets at least


def client_address(request: Request) -> str:
    """Return the address that a client is counted by: as a trusted proxy names it, see `Settings.trusted_proxies`."""
    host = request.client.host if request.client is not None else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), ADDRESS_BITS_V6), strict=False))


@dataclass
class WrongKeys:
    """Counts wrong keys within windows of time: for each address, and for each key that an address claims to hold.

    So whoever mistypes one key on an address from which somebody tries many others is told what is wrong with it. The
    memory is bounded: where too many addresses or keys are counted, the oldest are forgotten.
    """

    of_one_key_max: int = 10
    of_address_max: int = 100
    window_seconds: float = 300.0
    counts_max: int = 20_000
    _counts: OrderedDict[tuple[str, ...], tuple[float, int]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, address: str, claimed_id: str, *, now_seconds: float | None = None) -> float:
        """Count a wrong key, and return how many seconds its sender should wait; 0 where it need not.

        Args:
            address: of the client.
            claimed_id: the id in the token; empty where the text has not the form of one.
            now_seconds: on a clock that never goes back.
        """
        now = time.monotonic() if now_seconds is None else now_seconds
        with self._lock:
            waits = [
                self._wait((address,), self.of_address_max, now),
                self._wait((address, claimed_id), self.of_one_key_max, now),
            ]
            while len(self._counts) > self.counts_max:
                self._counts.popitem(last=False)
        return max(waits)

    def _wait(self, counted: tuple[str, ...], most: int, now: float) -> float:
        since, count = self._counts.get(counted, (now, 0))
        if now - since >= self.window_seconds:
            since, count = now, 0
        self._counts[counted] = since, count + 1
        self._counts.move_to_end(counted)
        return 0.0 if count < most else since + self.window_seconds - now
