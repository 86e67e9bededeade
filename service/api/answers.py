"""`ApiRoute`, the class of the API's routes, and its responses: records, files and pages of lists.

Records and files have ETags for conditional requests; files support byte ranges (RFC 9110, sections 8.8.3, 13 and 14).
Pages are bounded and have opaque cursors (keyset pagination, which is stable while rows are added).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from fastapi.routing import APIRoute
from sqlalchemy import ColumnElement, Select
from sqlalchemy.orm import Session
from starlette import responses

from obscura.wire.schemas import ApiRecord, Page
from service.api.deps import PageRequest, Service, authenticate_request, bearer
from service.api.problems import RangeNotSatisfiable
from service.db.base import Base
from service.db.session import transaction
from service.errors import InvalidInput, NotFound
from service.identity.access import find
from service.views import newest

CHUNK_BYTES = 1 << 18
JSON_VALUES_MAX = 12_000  # each value takes up to 10 microseconds of the event loop
REVALIDATE = "private, no-cache"
_FOREIGN_CURSOR = "This list did not issue this cursor. Start again without a cursor."
Position = TypeVar("Position", str, int)


def is_fresh(request: Request, etag: str) -> bool:
    """Return whether If-None-Match contains this ETag (weak comparison)."""
    header = request.headers.get("if-none-match")
    if header is None:
        return False
    candidates = {candidate.strip().removeprefix("W/") for candidate in header.split(",")}
    return "*" in candidates or etag in candidates


class ApiRoute(APIRoute):
    """A route that authenticates before it reads a body, rejects JSON with too many values, and sends ETags."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if self.body_field is not None:
                service, credentials = request.app.state.service, await bearer(request)
                await run_in_threadpool(authenticate_request, service, request, credentials)
                if (await request.body()).count(b",") >= JSON_VALUES_MAX:
                    raise InvalidInput(f"The body holds more than {JSON_VALUES_MAX:,} values. Send fewer at a time.")
            response = await handler(request)
            # FastAPI sends a returned record as a plain Response; handlers that return a Response set its headers.
            is_record = type(response) is Response and response.body and "Cache-Control" not in response.headers
            return with_etag(request, response) if is_record else response

        return handle


def with_etag(request: Request, response: Response) -> Response:
    """Add an ETag to a response, or return 304 if the client already has its body."""
    etag = response.headers["ETag"] = f'"{hashlib.sha256(response.body).hexdigest()}"'
    response.headers["Cache-Control"] = REVALIDATE
    if request.method != "GET" or not is_fresh(request, etag):
        return response
    del response.headers["Content-Length"], response.headers["Content-Type"]
    return Response(status_code=304, headers=dict(response.headers))


class _Download(FileResponse):
    """A file, or one range of it, without Last-Modified.

    For an invalid range, or several ranges, the whole file is sent (RFC 9110, section 14.2).
    """

    chunk_size = CHUNK_BYTES
    max_ranges = 1

    def set_stat_headers(self, stat_result: os.stat_result) -> None:
        self.headers["Content-Length"] = str(stat_result.st_size)

    def _should_use_range(self, http_if_range: str) -> bool:
        return http_if_range == self.headers["ETag"]

    @classmethod
    def _parse_range_header(cls, http_range: str, file_size: int) -> list[tuple[int, int]]:
        try:
            return super()._parse_range_header(http_range, file_size)
        except responses.MalformedRangeHeader:
            return []
        except responses.RangeNotSatisfiable:
            raise RangeNotSatisfiable(file_size) from None


def send_file(request: Request, path: Path, *, sha256: str, media_type: str, filename: str | None = None) -> Response:
    """Stream a file with its SHA-256 as strong ETag. Apply If-None-Match, Range and If-Range of the request."""
    etag = f'"{sha256}"'
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "Cache-Control": REVALIDATE}
    if is_fresh(request, etag):
        return Response(status_code=304, headers=headers)
    return _Download(path, headers=headers, media_type=media_type, filename=filename)


def encode_cursor(value: str | int) -> str:
    return base64.urlsafe_b64encode(json.dumps([value]).encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None, kind: type[Position]) -> Position | None:
    """Decode a cursor; return None for None. Raise InvalidInput if a database cannot compare the cursor's value."""
    if cursor is None:
        return None
    try:
        (value,) = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, TypeError, ValueError):
        value = None
    if type(value) is kind and isinstance(value, int) and 0 <= value < 2**63:
        return value
    if type(value) is kind and isinstance(value, str) and len(value) <= 64 and value.isascii() and value.isprintable():
        return value
    raise InvalidInput(_FOREIGN_CURSOR)


def newest_page(
    service: Service,
    page: PageRequest,
    table: Any,
    show: Callable[[Session, Sequence[Any]], Sequence[ApiRecord]],
    *conditions: ColumnElement[bool],
    of: tuple[type[Base], str] | None = None,
    columns: Select[*tuple[Any, ...]] | None = None,
    moment: str = "created_at",
    **equal: Any,
) -> Page[Any]:
    """Return a page of a table's visible rows, newest first.

    `of` is the table and id of the row that the page is about. Raise NotFound if that row is hidden from the caller.
    `show` builds the records. `equal` filters by columns: each name is a column and each value the required one; None
    means no filter. A cursor contains an id, not a time, because times are only shown to the minute.
    """
    narrowed = [getattr(table, name) == value for name, value in equal.items() if value is not None]
    with transaction(service.factory, read_only=True) as session:
        before = decode_cursor(page.cursor, str)
        try:
            where = *conditions, *narrowed
            rows, last = newest(session, table, *where, limit=page.limit, before=before, columns=columns, moment=moment)
        except NotFound:
            raise InvalidInput(_FOREIGN_CURSOR) from None
        if of is not None:
            find(session, *of)
        return Page[Any](items=list(show(session, rows)), next_cursor=last and encode_cursor(last))
