"""ETags, conditional answers and byte ranges (RFC 9110, sections 8.8.3, 13 and 14)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from obscura.wire.words import DecisionAction
from service.api.deps import Service
from service.api.problems import RangeNotSatisfiable
from service.auth import Principal
from service.db.access_tables import Decision
from service.db.session import transaction
from service.decisions import Effect, decide
from service.storage.files import open_regular

CHUNK_BYTES = 1 << 18
REVALIDATE = "private, no-cache"
_BYTE_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def is_fresh(request: Request, etag: str) -> bool:
    """Whether If-None-Match says that the client already has this representation (weak comparison)."""
    header = request.headers.get("if-none-match")
    if header is None:
        return False
    candidates = {candidate.strip().removeprefix("W/") for candidate in header.split(",")}
    return "*" in candidates or etag in candidates


def answer(
    request: Request, record: BaseModel, *, status_code: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Send a resource with its ETag, or 304 when the client has it."""
    body = record.model_dump_json().encode()
    return answer_bytes(request, body, "application/json", status_code=status_code, headers=headers)


def answer_decision(
    service: Service,
    request: Request,
    admin: Principal,
    request_id: str,
    *,
    approved: bool,
    effects: Mapping[DecisionAction, Effect],
    show: Callable[[Decision, datetime], BaseModel],
) -> Response:
    """Approve or decline what another admin has asked for, and send the decided request."""
    with transaction(service.factory) as session:
        now = service.clock()
        record = show(decide(session, request_id, admin.id, now, effects, approved=approved), now)
    return answer(request, record)


def answer_bytes(
    request: Request, body: bytes, media_type: str, *, status_code: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """As `answer`, for a representation that is there already."""
    etag = f'"{hashlib.sha256(body).hexdigest()}"'
    common = {"ETag": etag, "Cache-Control": REVALIDATE, **(headers or {})}
    if request.method == "GET" and is_fresh(request, etag):
        return Response(status_code=304, headers=common)
    return Response(body, status_code=status_code, headers=common, media_type=media_type)


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Read a Range header as (first, last) byte, inclusive; None means the whole content.

    A malformed header or one with several ranges is ignored, as RFC 9110 allows.

    Raises:
        RangeNotSatisfiable: The range lies outside the content.
    """
    match = _BYTE_RANGE.fullmatch(header.strip()) if header else None
    if match is None or match.groups() == ("", ""):
        return None
    first_text, last_text = match.groups()
    if not first_text:
        suffix = int(last_text)
        if suffix == 0 or size == 0:
            raise RangeNotSatisfiable(size)
        return max(size - suffix, 0), size - 1
    first = int(first_text)
    last = min(int(last_text), size - 1) if last_text else size - 1
    if last_text and int(last_text) < first:
        return None
    if first >= size:
        raise RangeNotSatisfiable(size)
    return first, last


def send_file(request: Request, path: Path, *, sha256: str, media_type: str, filename: str | None = None) -> Response:
    """Stream a file with a strong ETag (its SHA-256), If-None-Match, Range and If-Range.

    Raises:
        RangeNotSatisfiable: The requested range lies outside the file.
    """
    etag = f'"{sha256}"'
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "Cache-Control": REVALIDATE}
    if is_fresh(request, etag):
        return Response(status_code=304, headers=headers)
    if filename is not None:
        headers["Content-Disposition"] = f'attachment; filename="{filename}"'
    size = path.stat().st_size
    condition = request.headers.get("if-range")
    wanted = request.headers.get("range") if condition in (None, etag) else None
    part = byte_range(wanted, size)
    first, last = part if part is not None else (0, size - 1)
    headers["Content-Length"] = str(last - first + 1)
    if part is not None:
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
    return StreamingResponse(
        _read(path, first, last - first + 1),
        status_code=206 if part is not None else 200,
        headers=headers,
        media_type=media_type,
    )


def _read(path: Path, offset: int, count: int) -> Iterator[bytes]:
    with open_regular(path) as file:
        file.seek(offset)
        while count > 0:
            chunk = file.read(min(CHUNK_BYTES, count))
            if not chunk:
                return
            count -= len(chunk)
            yield chunk
