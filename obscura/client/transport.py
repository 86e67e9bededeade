"""HTTP with bounded retries, and server-sent events that resume after a broken connection."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from json import dumps
from typing import Any, ClassVar, Self, TypeVar, cast
from urllib.parse import quote
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

import httpx
from httpx_sse import EventSource
from pydantic import BaseModel, PrivateAttr, RootModel, ValidationError

from obscura import errors
from obscura.client.display import Displayed
from obscura.stopping import go_on
from obscura.wire.schemas import IdRecord, NamedRecord, Page

RETRIES_MAX = 5
BACKOFF_SECONDS_MAX = 8.0
RETRY_AFTER_SECONDS_MAX = 60.0
RETRY_STATUSES = frozenset({429, 502, 503, 504})
EVENT_SILENCE_SECONDS = 60.0  # the service sends a heartbeat comment every 15 seconds
UPLOAD_SECONDS_MAX = 3600.0  # the service answers an upload after decoding every image
ITEMS_A_PAGE = 100
ANSWER_BYTES_MAX = 64 * 2**20  # bytes of an answer that is read into memory

GONE = ("deleting", "deleted")

Document = RootModel[dict[str, Any]]
Named = str | IdRecord  # an argument: a record, its name or its id
Record = TypeVar("Record", bound=BaseModel)
_ID = re.compile(r"prj_default|[a-z]{2,4}_[a-z2-7]{20}")
_logger = logging.getLogger("obscura")


@cache
def trusted() -> ssl.SSLContext:
    """Return the trusted certificates. Cached, because reading them takes longer than most requests."""
    for variable, exists in (("SSL_CERT_FILE", os.path.isfile), ("SSL_CERT_DIR", os.path.isdir)):
        path = os.environ.get(variable)
        if path and not exists(path):
            raise errors.ConnectionSettingsError(f"{variable} is {path}, which does not exist. Correct or unset it.")
    try:
        return httpx.create_ssl_context()
    except OSError as error:  # includes SSLError
        raise errors.ConnectionSettingsError(
            f"SSL_CERT_FILE is {os.environ.get('SSL_CERT_FILE')}, which cannot be read as certificates "
            f"({type(error).__name__}). Correct or unset it."
        ) from error


def is_here(url: str) -> bool:
    """Return whether an address is localhost or an IP address of this machine."""
    try:
        host = httpx.URL(url).host.rstrip(".").lower()
        if host == "localhost" or host.endswith(".localhost"):
            return True
        address = ipaddress.ip_address(host.partition("%")[0])
    except (ValueError, httpx.InvalidURL):
        return False
    if address.version == 6 and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((str(address), 0))  # succeeds only for an address of this machine, and sends nothing
        return True
    return False


def service_address(url: str) -> httpx.URL:
    """Parse an http or https address; raise ConnectionSettingsError for anything else."""
    with suppress(httpx.InvalidURL, ValueError):
        parsed = httpx.URL(url)
        if parsed.scheme in ("http", "https") and parsed.host:
            return parsed
    raise errors.ConnectionSettingsError(
        f"{url!r} is not the address of a service. Write it as https://obscura.example.org or http://127.0.0.1:8420."
    )


def environment_proxy(url: httpx.URL) -> httpx.Proxy | None:
    """Return the proxy that the environment sets for an address; None for a direct connection.

    Connections to this machine never use a proxy, which would see the admin key and private images.
    """
    if is_here(str(url)):
        return None
    settings = getproxies_environment()
    name = url.scheme if settings.get(url.scheme) else "all"
    value = settings.get(name, "").strip()
    exceptions = settings.get("no", "")
    if not value or proxy_bypass_environment(url.host, {"no": exceptions}):
        return None
    with suppress(ValueError):  # the host is a name, not an IP address
        address = ipaddress.ip_address(url.host)
        for entry in exceptions.split(","):
            with suppress(ValueError):
                if address in ipaddress.ip_network(entry.strip().strip("[]"), strict=False):
                    return None
    variable = f"{name.upper()}_PROXY"
    try:
        proxy = httpx.Proxy(value if "://" in value else f"http://{value}")
        valid = bool(proxy.url.host)
    except (httpx.InvalidURL, ValueError):
        valid = False
    if not valid:  # the message omits the value, which may contain a password
        raise errors.ConnectionSettingsError(
            f"{variable} is not the address of a proxy. Write it as http://HOST:PORT, https://HOST:PORT or "
            f"socks5://HOST:PORT. Or unset it, or add {url.host} to NO_PROXY."
        )
    if proxy.url.scheme.startswith("socks") and find_spec("socksio") is None:
        raise errors.ConnectionSettingsError(
            f"{variable} names a SOCKS proxy, which needs another package. Unset it, or run: pip install 'httpx[socks]'"
        )
    return proxy


class Transport:
    """A connection to one service.

    `proxy` is the address of the proxy in use, without its password. `route` names service and proxy, for messages.

    Retries idempotent requests (GET, and POST with an Idempotency-Key) on broken connections and on 429, 502, 503 and
    504, honouring Retry-After up to a minute. Raises ConnectionSettingsError if address, key, proxy or certificates are
    invalid.
    """

    def __init__(
        self,
        base_url: str,
        token: str | None,
        *,
        timeout_seconds: float = 60.0,
        sleep: Callable[[float], None] = time.sleep,
        http: httpx.Client | None = None,
    ) -> None:
        headers = {"Accept": "application/json", "User-Agent": "obscura-sdk"}
        if token:
            if not token.isascii() or not token.isprintable() or " " in token:
                raise errors.ConnectionSettingsError("The API key contains characters that no key has. Copy it again.")
            headers["Authorization"] = f"Bearer {token}"
        self.proxy: str | None = None
        if http is None:
            url = service_address(base_url)
            proxy = environment_proxy(url)
            if proxy is not None:
                self.proxy = f"{proxy.url.scheme}://{proxy.url.netloc.decode('ascii')}"
                _logger.info("Connecting to %s through the proxy %s", base_url, self.proxy)
            encrypted = url.scheme == "https" or (proxy is not None and proxy.url.scheme == "https")
            http = httpx.Client(
                base_url=url,
                headers=headers,
                timeout=httpx.Timeout(timeout_seconds, connect=10.0),
                proxy=proxy,
                trust_env=False,
                verify=trusted() if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # an empty trust store
            )
        self._http = http
        self.sleep = sleep
        self.base_url = base_url.rstrip("/")
        self.route = self.base_url if self.proxy is None else f"{self.base_url} through the proxy {self.proxy}"

    def close(self) -> None:
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        repeatable: bool | None = None,
    ) -> httpx.Response:
        """Send a request and return the answer.

        Raises:
            ApiError: The service answered with a permanent error.
            UnexpectedAnswer: Something other than the service answered, or the answer is too large.
            ConnectionFailed: There was no answer after the retries.
        """
        content = None if json is None else dumps(json).encode()  # NaN is sent too; the service's error explains it
        if content is not None:
            headers = {"Content-Type": "application/json", **(headers or {})}
        may_repeat = repeatable if repeatable is not None else method == "GET" or "Idempotency-Key" in (headers or {})
        for attempt in range(RETRIES_MAX):
            last = attempt == RETRIES_MAX - 1 or not may_repeat
            try:
                with self._http.stream(method, path, content=content, params=params, headers=headers) as response:
                    self._read(response)
            except httpx.RequestError as error:
                if last:
                    raise self._failure("No answer from", error) from error
                self.sleep(backoff_seconds(attempt))
                continue
            if is_worth_waiting(response) and not last:
                self.sleep(retry_after_seconds(response, attempt))
                continue
            return self._expected(response)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _failure(self, what: str, error: Exception) -> errors.ConnectionFailed:
        refused = self.proxy is None and isinstance(error, httpx.ConnectError)
        return errors.ConnectionFailed(
            self.base_url, f"{what} {self.route}: {error or type(error).__name__}", refused=refused
        )

    def _read(self, response: httpx.Response) -> None:
        parts, size = [], 0
        for part in response.iter_bytes():
            parts.append(part)
            size += len(part)
            if size > ANSWER_BYTES_MAX:
                raise errors.UnexpectedAnswer(self.route, response, f"of more than {ANSWER_BYTES_MAX // 2**20} MiB")
        response._content = b"".join(parts)

    def _expected(self, response: httpx.Response, *statuses: int) -> httpx.Response:
        if response.status_code >= 400:
            raise errors.error_of(response, self.route)
        if not (response.status_code in statuses if statuses else response.is_success):
            raise errors.UnexpectedAnswer(self.route, response)
        return response

    def parse(self, record: type[Record], response: httpx.Response, content: bytes | str | None = None) -> Record:
        """Parse an answer, or one of its events; raise UnexpectedAnswer if it does not match the record's schema."""
        try:
            return self._bound(record.model_validate_json(response.content if content is None else content))
        except ValidationError as error:
            raise errors.UnexpectedAnswer(self.route, response, f"in place of {record.__name__}") from error

    def _bound(self, record: Record) -> Record:
        if isinstance(record, Live):
            record._transport = self
        return record

    def get(self, record: type[Record], path: str) -> Record:
        return self.parse(record, self.request("GET", path))

    def post(self, record: type[Record], path: str, body: Any = None, *, repeatable: bool = False) -> Record:
        """POST and parse the answer. `repeatable` allows retries, because the route is idempotent."""
        return self.parse(record, self.request("POST", path, json=body, repeatable=repeatable))

    def document(self, path: str) -> dict[str, Any]:
        """Read a JSON object without a schema; raise UnexpectedAnswer for anything else."""
        return self.get(Document, path).root

    def create(self, record: type[Record], path: str, body: dict[str, Any], idempotency_key: str | None) -> Record:
        """POST with an Idempotency-Key, so that a retry creates nothing twice, and parse the answer."""
        headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
        return self.parse(record, self.request("POST", path, json=body, headers=headers))

    def pages(self, record: type[Record], path: str, **wanted: Any) -> Iterator[Record]:
        """Yield every item of a list, filtered by the given query parameters. `limit` None: it has only one page."""
        chosen = {name: value for name, value in ({"limit": ITEMS_A_PAGE} | wanted).items() if value is not None}
        cursor: str | None = None
        while True:
            params = chosen | ({"cursor": cursor} if cursor else {})
            response = self.request("GET", path, params=params)
            page = self.parse(Page[record], response)  # type: ignore[valid-type]
            for item in page.items:
                yield self._bound(item)
            if page.next_cursor is None:
                return
            if page.next_cursor == cursor:
                raise errors.UnexpectedAnswer(self.route, response, "and a list that does not end")
            cursor = page.next_cursor

    def id_of(self, record: type[BaseModel], path: str, which: Named, *, readable: bool = True, **paged: Any) -> str:
        """Return the id of a record that the caller gave as a record, a name or an id; see `find`."""
        if not isinstance(which, str):
            return which.id
        if _ID.fullmatch(which):
            return which
        found: Any = self.find(record, path, which, readable=readable, **paged)
        return str(found.id)

    def find(self, record: type[Record], path: str, which: Named, *, readable: bool = True, **paged: Any) -> Record:
        """Return the record of a list with this name or id; read a given record again.

        `readable` is False if the API can only list these records, with the query parameters `paged`. Raises
        NotFoundError for an unknown id, and NoSuchName for a name that no record, or several records, have.
        """
        name = which if isinstance(which, str) else which.id
        if readable and (_ID.fullmatch(name) or not issubclass(record, NamedRecord)):
            return self.get(record, f"{path}/{quote(name, safe='')}")
        listed: list[Any] = [*self.pages(record, path, **paged)]
        found = [each for each in listed if each.id == name]
        found = found or [
            each for each in listed if getattr(each, "name", None) == name and getattr(each, "state", "") not in GONE
        ]
        if len(found) == 1:
            return cast(Record, found[0])
        noun = path.rpartition("/")[2]
        if found:
            ids = ", ".join(each.id for each in found)
            raise errors.NoSuchName(f"{len(found)} {noun} are named {name!r}. Choose one by its id: {ids}.")
        raise errors.NoSuchName(f"There is no {noun.removesuffix('s')} {name!r}. To see all: obscura {noun} list")

    def upload(self, path: str, body: Iterable[bytes], params: dict[str, Any]) -> httpx.Response:
        """PUT a streamed body once. Never retries, because some bodies can be read only once."""

        def parts() -> Iterator[bytes]:
            for part in body:
                go_on()
                yield part

        timeout = httpx.Timeout(UPLOAD_SECONDS_MAX, connect=10.0)
        headers = {"Content-Type": "application/octet-stream"}
        try:
            response = self._http.put(path, content=parts(), params=params, headers=headers, timeout=timeout)
        except httpx.RequestError as error:
            raise self._failure("The connection broke during the upload to", error) from error
        return self._expected(response)

    @contextmanager
    def stream(self, path: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
        """Send a GET once and yield the response, whose body is unread. The end of the block closes the connection."""
        with self._http.stream("GET", path, headers=headers) as response:
            if response.status_code not in (200, 206):
                self._read(response)
                self._expected(response, 200, 206)
            yield response

    def events(self, record: type[Record], path: str) -> Iterator[Record]:
        """Yield server-sent events until the stream ends, reconnecting with Last-Event-ID; raise as `request` does."""
        failures, last_event_id = 0, ""
        timeout = httpx.Timeout(EVENT_SILENCE_SECONDS, connect=10.0)
        while True:
            headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
            if last_event_id:
                headers["Last-Event-ID"] = last_event_id
            try:
                with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
                    if response.status_code == 204:
                        return
                    if is_worth_waiting(response) and failures < RETRIES_MAX:
                        delay = retry_after_seconds(response, failures)
                        failures += 1
                    elif response.status_code != 200 or errors.content_type(response) != "text/event-stream":
                        self._read(response)
                        self._expected(response)
                        raise errors.UnexpectedAnswer(self.route, response)
                    else:
                        delay = 1.0
                        for event in EventSource(response).iter_sse():
                            if not event.data:
                                continue  # a comment, which keeps the connection open
                            failures, delay = 0, 0.1
                            last_event_id = event.id or last_event_id
                            yield self.parse(record, response, event.data)
            except httpx.RequestError as error:
                failures += 1
                if failures >= RETRIES_MAX:
                    raise self._failure("The connection broke while reading events from", error) from error
                delay = backoff_seconds(failures)
            self.sleep(delay)


def backoff_seconds(attempt: int) -> float:
    """Return the seconds before retry `attempt` + 1: 0.25, 0.5, 1, ..."""
    return float(min(0.25 * 2**attempt, BACKOFF_SECONDS_MAX))


def is_worth_waiting(response: httpx.Response) -> bool:
    """Return whether a retry can succeed within a minute. After too many wrong keys, the wait is longer."""
    return response.status_code in RETRY_STATUSES and retry_after_seconds(response, 0) <= RETRY_AFTER_SECONDS_MAX


def retry_after_seconds(response: httpx.Response, attempt: int) -> float:
    """Return the seconds in Retry-After, or the backoff if the header is missing."""
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdigit() else backoff_seconds(attempt)


class Live(Displayed):
    """A record that keeps its connection to the service.

    You cannot change its fields. Methods such as `refresh`, `wait` and `cancel` update it, and return it.
    """

    PATH: ClassVar[str]
    id: str
    _transport: Transport = PrivateAttr()

    @classmethod
    def read(cls, transport: Transport, id: str) -> Self:
        return transport.get(cls, f"{cls.PATH}/{id}")

    @property
    def _path(self) -> str:
        return f"{self.PATH}/{self.id}"

    def refresh(self) -> Self:
        """Read the record again."""
        return self._updated(self.read(self._transport, self.id))

    def _post(self, verb: str, body: Any = None, *, repeatable: bool = True) -> Self:
        return self._updated(self._transport.post(type(self), f"{self._path}/{verb}", body, repeatable=repeatable))

    def _updated(self, fresh: Self) -> Self:
        self.__dict__.update(fresh.__dict__)  # the model is frozen against assignments by callers
        return self
