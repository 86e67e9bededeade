"""HTTP with bounded retries, and server-sent events that resume where they broke off."""

from __future__ import annotations

import secrets
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from json import dumps
from typing import Any, TypeVar

import httpx
from httpx_sse import EventSource, ServerSentEvent
from pydantic import BaseModel

from obscura.errors import ConnectionFailed, error_of
from obscura.stopping import go_on

RETRIES_MAX = 5
BACKOFF_SECONDS_MAX = 8.0
RETRY_AFTER_SECONDS_MAX = 60.0
RETRY_STATUSES = frozenset({429, 502, 503, 504})
EVENT_SILENCE_SECONDS = 60.0  # the service sends a heartbeat comment every 15 seconds
ITEMS_A_PAGE = 100

Record = TypeVar("Record", bound=BaseModel)


@cache
def trusted() -> ssl.SSLContext:
    """Return whose certificates are trusted: read once, for reading them takes longer than many a request."""
    return httpx.create_ssl_context()


class Transport:
    """A connection to one service.

    Requests that may be repeated safely (GET, and POST with an Idempotency-Key, which is the same key on each try)
    are retried on broken connections and on 429, 502, 503 and 504, honouring Retry-After up to a minute.
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
            headers["Authorization"] = f"Bearer {token}"
        self._http = http or httpx.Client(
            base_url=base_url,
            headers=headers,
            timeout=httpx.Timeout(timeout_seconds, connect=10.0),
            verify=trusted(),
        )
        self.sleep = sleep
        self.base_url = base_url.rstrip("/")

    def close(self) -> None:
        """Close the connections."""
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
            ApiError: The service answered with an error that retrying does not cure.
            ConnectionFailed: No answer after the retries.
        """
        content = None if json is None else dumps(json).encode()  # NaN goes out too: the service says what is wrong
        if content is not None:
            headers = {"Content-Type": "application/json", **(headers or {})}
        may_repeat = repeatable if repeatable is not None else method == "GET" or "Idempotency-Key" in (headers or {})
        for attempt in range(RETRIES_MAX):
            last = attempt == RETRIES_MAX - 1 or not may_repeat
            try:
                response = self._http.request(method, path, content=content, params=params, headers=headers)
            except httpx.TransportError as error:
                if last:
                    raise ConnectionFailed(self.base_url, f"No answer from {self.base_url}: {error}") from error
                self.sleep(backoff_seconds(attempt))
                continue
            if is_worth_waiting(response) and not last:
                self.sleep(retry_after_seconds(response, attempt))
                continue
            if response.status_code >= 400:
                raise error_of(response)
            return response
        raise AssertionError("unreachable: the last attempt returns or raises")

    def create(self, path: str, body: dict[str, Any], idempotency_key: str | None) -> bytes:
        """POST with an Idempotency-Key, so that a retry after a broken connection starts nothing twice."""
        headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
        return self.request("POST", path, json=body, headers=headers).content

    def pages(self, record: type[Record], path: str, **wanted: str | None) -> Iterator[Record]:
        """Yield every item of a list, page by page; of those that are wanted, where that is said."""
        chosen = {name: value for name, value in wanted.items() if value is not None}
        cursor: str | None = None
        while True:
            params = {"limit": ITEMS_A_PAGE} | chosen | ({"cursor": cursor} if cursor else {})
            page = self.request("GET", path, params=params).json()
            yield from (record.model_validate(item) for item in page["items"])
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def upload(
        self, path: str, *, body: Iterable[bytes], params: dict[str, Any], timeout_seconds: float
    ) -> httpx.Response:
        """PUT a streamed body once. An upload is never repeated silently: its body may not be repeatable."""
        timeout = httpx.Timeout(timeout_seconds, connect=10.0)
        headers = {"Content-Type": "application/octet-stream"}
        try:
            response = self._http.put(
                path, content=_while_awaited(body), params=params, headers=headers, timeout=timeout
            )
        except httpx.TransportError as error:
            raise ConnectionFailed(self.base_url, f"The upload to {self.base_url} broke: {error}") from error
        if response.status_code >= 400:
            raise error_of(response)
        return response

    @contextmanager
    def stream(self, path: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
        """Open a streamed GET once; the body of the response is unread. The connection closes with the block."""
        with self._http.stream("GET", path, headers=headers) as response:
            if response.status_code >= 400:
                response.read()
                raise error_of(response)
            yield response

    def events(self, path: str, last_event_id: str | None = None) -> Iterator[ServerSentEvent]:
        """Yield server-sent events until the service says there are no more, reconnecting with Last-Event-ID.

        Raises:
            ApiError: The service refused the stream for good.
            ConnectionFailed: The stream could not be opened again within the retries.
        """
        failures = 0
        timeout = httpx.Timeout(EVENT_SILENCE_SECONDS, connect=10.0)
        while True:
            headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
            if last_event_id is not None:
                headers["Last-Event-ID"] = last_event_id
            try:
                with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
                    if response.status_code == 204:
                        return
                    if is_worth_waiting(response) and failures < RETRIES_MAX:
                        delay = retry_after_seconds(response, failures)
                        failures += 1
                    elif response.status_code >= 400:
                        response.read()
                        raise error_of(response)
                    else:
                        delay = 1.0
                        for event in EventSource(response).iter_sse():
                            if not event.data:
                                continue  # a comment, which keeps the connection open
                            failures, delay = 0, 0.1
                            last_event_id = event.id or last_event_id
                            yield event
            except httpx.TransportError as error:
                failures += 1
                if failures >= RETRIES_MAX:
                    raise ConnectionFailed(
                        self.base_url, f"The event stream from {self.base_url} broke: {error}"
                    ) from error
                delay = backoff_seconds(failures)
            self.sleep(delay)


def _while_awaited(body: Iterable[bytes]) -> Iterator[bytes]:
    for part in body:
        go_on()
        yield part


def backoff_seconds(attempt: int) -> float:
    """Seconds to wait before try `attempt` + 2: 0.25, 0.5, 1, ..."""
    return float(min(0.25 * 2**attempt, BACKOFF_SECONDS_MAX))


def is_worth_waiting(response: httpx.Response) -> bool:
    """Whether the same request may be answered soon: after too many wrong keys, for one, it is not."""
    return response.status_code in RETRY_STATUSES and retry_after_seconds(response, 0) <= RETRY_AFTER_SECONDS_MAX


def retry_after_seconds(response: httpx.Response, attempt: int) -> float:
    """The service's Retry-After in seconds; else the back-off."""
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdigit() else backoff_seconds(attempt)
