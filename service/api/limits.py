"""Limits on callers: requests per minute, invalid keys, and concurrent requests of one kind.

Rates are counted in moving windows. Every response reports the remaining requests in the headers of
draft-ietf-httpapi-ratelimit-headers-10. Requests from this machine, by loopback or a Unix socket, are not limited. So a
proxy on this machine must send the addresses of its clients. Clients that the proxy does not identify by an address
share one limit.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar, Generic, NamedTuple, TypeVar

from fastapi import Request
from limits import RateLimitItem, RateLimitItemPerMinute, RateLimitItemPerSecond
from limits.errors import StorageError
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import MovingWindowRateLimiter
from sqlalchemy import make_url
from starlette.datastructures import Headers

from service.api.problems import TooManyRequests
from service.errors import ObscuraError
from service.logs import get_logger
from service.settings import Settings

ADDRESS_BITS_V6 = 64  # IPv6 prefix: providers assign at least this much to each customer
WINDOW_SECONDS = 60
PROJECT_KEYS = 2  # the limit of a project, as a multiple of a key's limit
NAMES_MAX = 20_000  # in memory; above this number, all counts are reset
REDIS_SECONDS = 0.25  # timeout of a request to Redis
REDIS_PAUSE_SECONDS = 30.0  # after a timeout
REDIS_SCHEMES = ("redis://", "rediss://", "unix://")  # Celery may have another broker
UNKNOWN = "unknown"  # a proxy identifies the client by something other than an address
UNIX_SOCKET = "unix"


def client_address(request: Request) -> str:
    """Return the address by which a client is limited. Trusted proxies report it (`Settings.trusted_proxies`)."""
    if request.client is None:
        return UNIX_SOCKET
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:
        return UNKNOWN
    forwarded_for = Headers(raw=request.scope.get("headers", [])).getlist("x-forwarded-for")
    if address.is_loopback and forwarded_for and not forwarded_for[-1].rpartition(",")[2].strip():
        return UNKNOWN  # a proxy on this machine sends no client address
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), ADDRESS_BITS_V6), strict=False))


def is_own_machine(request: Request) -> bool:
    address = client_address(request)
    return address in (UNIX_SOCKET, "::/64") or address.startswith("127.")


class Window(NamedTuple):
    """The remaining requests of a rate limit after one request."""

    allowed: bool
    remaining: int
    seconds: float  # until the oldest hit no longer counts


class Limiter:
    """Counts hits in this process, or, with a URL, in Redis for all processes of an installation.

    While Redis does not answer, each process counts alone. Nothing is written to disk. `installation` is a text shared
    by the processes of one installation, and unique to it.
    """

    def __init__(self, url: str = "", installation: str = "", *, names_max: int = NAMES_MAX) -> None:
        self._memory, self._names_max, self._paused_until = MemoryStorage(), names_max, float("-inf")
        self._shared: MovingWindowRateLimiter | None = None
        if url:
            prefix = f"obscura:{hashlib.sha256(installation.encode()).hexdigest()[:16]}"
            waits = {"socket_timeout": REDIS_SECONDS, "socket_connect_timeout": REDIS_SECONDS}
            self._shared = MovingWindowRateLimiter(
                RedisStorage(url, key_prefix=prefix, wrap_exceptions=True, **waits)  # type: ignore[arg-type]
            )

    def hit(self, limit: RateLimitItem, name: str) -> Window:
        """Count a hit unless the limit is reached."""
        if self._shared is not None and time.monotonic() >= self._paused_until:
            try:
                return self._hit(self._shared, limit, name)
            except StorageError as error:
                self._paused_until = time.monotonic() + REDIS_PAUSE_SECONDS
                get_logger(__name__).warning("counts_not_shared", error=type(error.storage_error).__name__)
        if len(self._memory.events) >= self._names_max:
            self._memory.reset()
        return self._hit(MovingWindowRateLimiter(self._memory), limit, name)

    @staticmethod
    def _hit(limiter: MovingWindowRateLimiter, limit: RateLimitItem, name: str) -> Window:
        allowed = limiter.hit(limit, name)
        stats = limiter.get_window_stats(limit, name)
        return Window(allowed, stats.remaining, max(stats.reset_time - time.time(), 0.0))


def limiter_of(settings: Settings) -> Limiter:
    """Return the limiter. It uses Redis if workers run elsewhere, because there may be several API processes."""
    if settings.mode == "embedded" or not settings.redis_url.startswith(REDIS_SCHEMES):
        return Limiter()
    database = make_url(settings.database_url)
    return Limiter(settings.redis_url, f"{database.host}:{database.port}/{database.database}")


@dataclass(frozen=True)
class Rates:
    """Limits requests per minute: by key, by project, and, without a key, by address.

    `requests_max` applies to a key or an address; 0 is no limit. A project may send PROJECT_KEYS times as many.
    """

    requests_max: int
    limiter: Limiter = field(default_factory=Limiter)

    def pass_key(self, request: Request, key_id: str, project_id: str | None = None) -> None:
        """Count a request with a valid key, or raise TooManyRequests."""
        self._pass(request, "key", key_id, self.requests_max)
        if project_id is not None:
            self._pass(request, "project", project_id, PROJECT_KEYS * self.requests_max)

    def pass_address(self, request: Request) -> None:
        """Count a request without a key, or raise TooManyRequests."""
        self._pass(request, "address", client_address(request), self.requests_max)

    def _pass(self, request: Request, policy: str, whose: str, requests_max: int) -> None:
        if not requests_max or is_own_machine(request):
            return
        window = self.limiter.hit(RateLimitItemPerMinute(requests_max), f"{policy}:{whose}")
        seconds = max(math.ceil(window.seconds), 1)
        if policy != "project" or not window.allowed:
            request.state.rate_headers = {
                "RateLimit-Policy": f'"{policy}";q={requests_max};w={WINDOW_SECONDS}',
                "RateLimit": f'"{policy}";r={window.remaining};t={seconds}',
            }
        if not window.allowed:
            raise TooManyRequests(policy, requests_max, seconds)


@dataclass(frozen=True)
class WrongKeys:
    """Limits invalid keys by address, and more strictly by address and claimed key id.

    A valid key always works, so no client can lock out others at its address. The limits protect the log from programs
    that repeat failing requests. Guessing a 256-bit token is infeasible even without limits.
    """

    limiter: Limiter = field(default_factory=Limiter)
    of_one_key_max: int = 10
    of_address_max: int = 100
    window_seconds: int = 300

    def count(self, address: str, claimed_id: str) -> float:
        """Count an invalid key; return the seconds that its sender must wait, or 0.

        `claimed_id` is the id in the token, or empty if the text is not a token.
        """
        limits = {address: self.of_address_max, f"{address}:{claimed_id}": self.of_one_key_max}
        windows = [
            self.limiter.hit(RateLimitItemPerSecond(most, self.window_seconds), f"wrong:{name}")
            for name, most in limits.items()
        ]
        return max(0.0 if window.allowed else window.seconds for window in windows)


@dataclass(frozen=True)
class SlotLimits:
    """Maximum numbers of concurrent requests of one kind."""

    noun: ClassVar[str]
    advice: ClassVar[str]
    process_max: int
    per_project_max: int
    per_key_max: int


OfKind = TypeVar("OfKind", bound=SlotLimits)


class NoSlot(ObscuraError):
    """The key, its project or the service has reached its limit of concurrent requests of one kind."""

    code: ClassVar[str] = "busy"

    def __init__(self, limits: SlotLimits, whose: str, most: int) -> None:
        kind = f"{limits.noun.split()[-1]}s"
        if whose != "service":
            self.code = f"too_many_{kind}_for_{whose}"  # type: ignore[misc]  # one error with several codes
        elif kind == "streams":
            self.code = "too_many_streams"  # type: ignore[misc]
        owner = "The service" if whose == "service" else f"This {whose}"
        super().__init__(
            f"{owner} has {most} {limits.noun}s under way, which is the limit. {limits.advice}", **{f"{kind}_max": most}
        )


@dataclass(eq=False)
class Slots(Generic[OfKind]):
    """Counts the requests of one kind in progress in this process."""

    limits: OfKind
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _taken: Counter[tuple[str, str | None]] = field(default_factory=Counter)  # by key id and project id

    def take(self, key_id: str, project_id: str | None = None) -> None:
        limits = self.limits
        with self._lock:
            of_project = sum(count for (_, other), count in self._taken.items() if other == project_id)
            if self._taken[key_id, project_id] >= limits.per_key_max:
                raise NoSlot(limits, "key", limits.per_key_max)
            if project_id is not None and of_project >= limits.per_project_max:
                raise NoSlot(limits, "project", limits.per_project_max)
            if self._taken.total() >= limits.process_max:
                raise NoSlot(limits, "service", limits.process_max)
            self._taken[key_id, project_id] += 1

    def give_back(self, key_id: str, project_id: str | None = None) -> None:
        with self._lock:
            self._taken -= Counter({(key_id, project_id): 1})  # also removes zero counts
