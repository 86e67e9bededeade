"""ETags, conditional answers and byte ranges (RFC 9110, sections 8.8.3, 13 and 14)."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from fastapi import Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel
from starlette import responses

from service.api.problems import RangeNotSatisfiable

CHUNK_BYTES = 1 << 18
REVALIDATE = "private, no-cache"


def is_fresh(request: Request, etag: str) -> bool:
    """Return whether If-None-Match names this representation (weak comparison)."""
    header = request.headers.get("if-none-match")
    if header is None:
        return False
    candidates = {candidate.strip().removeprefix("W/") for candidate in header.split(",")}
    return "*" in candidates or etag in candidates


def answer(
    request: Request, record: BaseModel, *, status_code: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Send a record with its ETag, or 304 if the client already has it."""
    body = record.model_dump_json().encode()
    return answer_bytes(request, body, "application/json", status_code=status_code, headers=headers)


def answer_bytes(
    request: Request, body: bytes, media_type: str, *, status_code: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Send a representation with its ETag, or 304 if the client already has it."""
    etag = f'"{hashlib.sha256(body).hexdigest()}"'
    common = {"ETag": etag, "Cache-Control": REVALIDATE, **(headers or {})}
    if request.method == "GET" and is_fresh(request, etag):
        return Response(status_code=304, headers=common)
    return Response(body, status_code=status_code, headers=common, media_type=media_type)


class _Download(FileResponse):
    """A file, whole or one range, without Last-Modified.

    An unreadable range, or several, means the whole file (RFC 9110, section 14.2).
    """

    chunk_size = CHUNK_BYTES

    def set_stat_headers(self, stat_result: os.stat_result) -> None:
        self.headers["Content-Length"] = str(stat_result.st_size)

    def _should_use_range(self, http_if_range: str) -> bool:
        return http_if_range == self.headers["ETag"]

    @classmethod
    def _parse_range_header(cls, http_range: str, file_size: int) -> list[tuple[int, int]]:
        try:
            return [] if "," in http_range else super()._parse_range_header(http_range, file_size)
        except responses.MalformedRangeHeader:
            return []
        except responses.RangeNotSatisfiable:
            raise RangeNotSatisfiable(file_size) from None


def send_file(request: Request, path: Path, *, sha256: str, media_type: str, filename: str | None = None) -> Response:
    """Stream a file with a strong ETag (its SHA-256), If-None-Match, Range and If-Range."""
    etag = f'"{sha256}"'
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "Cache-Control": REVALIDATE}
    if is_fresh(request, etag):
        return Response(status_code=304, headers=headers)
    return _Download(path, headers=headers, media_type=media_type, filename=filename)
