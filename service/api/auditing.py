"""Middleware and writer of the audit log: every request to a route creates exactly one event.

For a request that changes nothing, the event is written before the response starts; many such events share one
transaction. For a change, the event is written in the transaction of the change. An upload is logged when it starts, so
that neither the time nor the position of its event reveals the duration of the upload.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime
from http import HTTPStatus

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from obscura.wire.words import Outcome
from service.api.limits import client_address
from service.api.middleware import NOT_ANSWERED, Middleware, caller_of, method_of, route_of
from service.api.problems import problem_response
from service.api.uploading import PARTS_PATH
from service.background import Background
from service.db.session import SessionFactory, transaction
from service.identity import recording
from service.identity.recording import AuditLogUnavailable, Event, Recorder
from service.settings import Settings

# Routes without private data that proxies request every few seconds, or browsers with every page; parts of uploads.
UNLOGGED = (PARTS_PATH, "/v1/health/", "/v1/openapi.json", "/static/", "/reference", "/docs")


@dataclass(frozen=True)
class LogLimits:
    """Bounds of the audit log's writer.

    In a window of `flood_seconds`, the first `alike_max` refusals of one kind for one sender create an event each; all
    further refusals create one event together.
    """

    gather_seconds: float = 0.25  # events within this time share a transaction if no response waits for them
    waiting_max: int = 10_000
    per_transaction_max: int = 500
    retry_seconds: float = 5.0  # between attempts to write
    flood_seconds: float = 60.0
    alike_max: int = 20
    floods_max: int = 10_000  # counted at the same time


@dataclass
class Flood:
    """Refusals of one kind for one sender, within a window that ends at `until` (monotonic time)."""

    first: Event
    until: float
    count: int = 0
    written: int = 0  # refusals with an event of their own


class EventWriter(Background):
    """Writes the events of requests that change nothing, in one thread. Floods of refusals are only counted."""

    def __init__(
        self,
        factory: SessionFactory,
        settings: Settings,
        clock: Callable[[], datetime],
        limits: LogLimits,
    ) -> None:
        super().__init__("obscura-audit-log")
        self._limits = limits
        self.required, self.clock = settings.audit_log == "required", clock
        self._factory = factory
        self._waiting: deque[tuple[Event, Future[None]]] = deque()
        self._floods: dict[tuple[str, int, str], Flood] = {}  # by sender, status and action; oldest first
        self._written = False  # the last attempt succeeded
        self._lock = threading.Lock()

    def put(self, event: Event) -> Future[None]:
        """Enqueue an event. The future resolves once it is durable, or fails with AuditLogUnavailable."""
        written = Future[None]()
        written.set_running_or_notify_cancel()  # so that a client's disconnect cannot cancel it
        with self._lock:
            full = len(self._waiting) >= self._limits.waiting_max
            if not full:
                self._waiting.append((event, written))
        if full:
            written.set_exception(AuditLogUnavailable())
            recording.not_written(1, AuditLogUnavailable())
        self._noted.set()
        return written

    def put_refusal(self, event: Event, whose: str, status: int) -> Future[None] | None:
        """Enqueue the event of a refusal. During a flood of refusals, only count the refusal and return None.

        Rate-limited requests (status 429) are counted together, others by action. `whose` is the key's id, or the
        client's address.
        """
        limited = status == HTTPStatus.TOO_MANY_REQUESTS
        kind = (whose, status, "*" if limited else event.action)
        now = time.monotonic()
        with self._lock:
            flood = self._floods.get(kind)
            if flood is None or flood.until <= now:
                self._end_flood(kind)
                while len(self._floods) >= self._limits.floods_max:
                    self._end_flood(next(iter(self._floods)))
                flood = self._floods[kind] = Flood(event, now + self._limits.flood_seconds)
            flood.count += 1
            if flood.count > (1 if limited else self._limits.alike_max):
                return None
            flood.written += 1
        return self.put(event)

    def _end_flood(self, kind: tuple[str, int, str]) -> None:
        # The caller holds the lock.
        flood = self._floods.pop(kind, None)
        if flood is not None and flood.count > flood.written:
            action = f"{kind[2]} ({flood.count - flood.written} more)"
            self._waiting.append((replace(flood.first, at=self.clock(), action=action, object_id=None), Future()))

    def _end_floods(self, until: float) -> float:
        with self._lock:
            while self._floods:
                kind, flood = next(iter(self._floods.items()))
                if flood.until > until:
                    return flood.until
                self._end_flood(kind)
        return float("inf")

    def trouble(self) -> str:
        """Return why requests cannot be served, or "". If the last write failed, probe with an insert."""
        if not self.required or self._written:
            return ""
        trial = recording.event_of(None, "GET /v1/health/ready", None, Outcome.ALLOWED, at=self.clock())
        try:
            with transaction(self._factory) as session:
                recording.append(session, [trial])
                session.rollback()
        except SQLAlchemyError:
            return "The audit log cannot be written to, and this service rejects all requests that it cannot log."
        self._written = True
        return ""

    def stop(self) -> None:
        super().stop()
        self._end_floods(float("inf"))
        while self._waiting and self._write():
            pass

    def _work(self) -> None:
        while not self._stopping.is_set():
            next_end = self._end_floods(time.monotonic())
            if not self._waiting:
                self._noted.wait(max(0.0, min(next_end - time.monotonic(), self._limits.flood_seconds)))
            if not self.required:
                self._stopping.wait(self._limits.gather_seconds)
            self._noted.clear()
            while self._waiting and not self._stopping.is_set():
                if not self._write():
                    self._stopping.wait(self._limits.retry_seconds)

    def _write(self) -> bool:
        with self._lock:
            some = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._limits.per_transaction_max))]
        try:
            with transaction(self._factory) as session:
                rows = recording.append(session, [event for event, _ in some])
        except Exception as error:  # on any error, no request may wait forever
            self._written = False
            recording.not_written(len(some), error)
            if self.required:
                for _, written in some:
                    written.set_exception(AuditLogUnavailable())
                return True
            with self._lock:
                self._waiting.extendleft(reversed(some))
            return False
        self._written = True
        for _, written in some:
            written.set_result(None)
        recording.write_lines(rows)
        return True


@dataclass
class Note(Recorder):
    """The audit event of one request, written in the first transaction that changes data, or before the response.

    Handlers store the caller in the request's scope (`state.known`), and may override the outcome (`state.outcome`).
    """

    scope: Scope = field(default_factory=dict)
    requested_at: datetime = field(kw_only=True)
    written: bool = False
    _writing: bool = False

    def event(self, outcome: Outcome) -> Event:
        object_id = next(iter(self.scope.get("path_params", {}).values()), None)
        action = f"{method_of(self.scope)} {route_of(self.scope)}"
        whose, what = caller_of(self.scope), recording.id_in(object_id)
        return recording.event_of(whose, action, what, outcome, at=self.requested_at)

    def events(self, session: Session) -> list[Event]:
        """Return a transaction's events: one for each `Act`, and the request's event in its first transaction."""
        changes = self.scope["method"] not in ("GET", "HEAD", "OPTIONS")
        self._writing = changes and not self.written and is_logged(self.scope)
        own = [self.event(Outcome.ALLOWED)] if self._writing else []
        return own + super().events(session)

    def committed(self, session: Session) -> None:
        self.written = self.written or self._writing
        super().committed(session)


@dataclass(eq=False)
class Audit(Middleware):
    """Middleware that logs one event per request. It responds 503 if the log is required and cannot be written."""

    writer: EventWriter

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        state, clock = scope.setdefault("state", {}), self.writer.clock
        note = Note(self.writer.required, clock, lambda: caller_of(scope), scope=scope, requested_at=clock())
        state["note"] = note
        status, refused = NOT_ANSWERED, False

        async def send_noting(message: Message) -> None:
            nonlocal status, refused
            if message["type"] == "http.response.start":
                status = message["status"]
                outcome = state.get("outcome") or _outcome_of(status)
                refused = not await self._write(note, outcome, status)
                if refused:
                    why = AuditLogUnavailable()
                    await problem_response(Request(scope), why.code, why.message)(scope, receive, send)
            if not refused:
                await send(message)

        try:
            await self.app(scope, receive, send_noting)
        except Exception:  # outer middleware responds, without details
            await self._write(note, Outcome.FAILED, status)
            raise
        finally:
            self._put(note, Outcome.FAILED, status)  # the client disconnected before a response
            del state["note"]  # breaks a reference cycle

    async def _write(self, note: Note, outcome: Outcome, status: int) -> bool:
        written = self._put(note, outcome, status)
        if written is None or not self.writer.required:
            return True
        try:
            await asyncio.wrap_future(written)
        except AuditLogUnavailable:
            return False
        return True

    def _put(self, note: Note, outcome: Outcome, status: int) -> Future[None] | None:
        if note.written or not is_logged(note.scope):
            return None
        note.written = True
        event = note.event(outcome)
        if status == HTTPStatus.TOO_MANY_REQUESTS or (event.key_id is None and outcome is not Outcome.ALLOWED):
            whose = event.key_id or client_address(Request(note.scope))
            return self.writer.put_refusal(event, whose, status)
        return self.writer.put(event)


def is_logged(scope: Scope) -> bool:
    """Return whether a request creates an event: only requests to routes that can show private data do."""
    return "route" in scope and not route_of(scope).startswith(UNLOGGED)


def _outcome_of(status: int) -> Outcome:
    if status >= 500:
        return Outcome.FAILED
    if status == 404:
        return Outcome.MISSING
    return Outcome.REFUSED if status >= 400 else Outcome.ALLOWED
