"""Bounded pages with opaque cursors (keyset pagination, stable while rows are added)."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import Request, Response
from sqlalchemy import ColumnElement, Select
from sqlalchemy.orm import Session

from obscura.wire.schemas import ApiRecord, Page
from service.api.conditional import answer
from service.api.deps import PageRequest, Service
from service.db.session import transaction
from service.errors import InvalidInput, NotFound
from service.views.rows import newest


def encode_cursor(values: Sequence[str | int]) -> str:
    """Encode the position after a row."""
    return base64.urlsafe_b64encode(json.dumps(list(values)).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, kinds: Sequence[type]) -> list[Any]:
    """Decode a cursor of `encode_cursor` with values of these types; raise InvalidInput otherwise."""
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError):
        values = None
    matches = isinstance(values, list) and [type(value) for value in values] == list(kinds)
    if not matches or not all(map(_is_plain, values)):
        raise _foreign_cursor()
    return list(values)


def answer_newest(
    service: Service,
    request: Request,
    page: PageRequest,
    table: Any,
    show: Callable[[Session, Sequence[Any]], Sequence[ApiRecord]],
    *conditions: ColumnElement[bool],
    columns: Select[*tuple[Any, ...]] | None = None,
    moment: str = "created_at",
) -> Response:
    """Send a page of a table's rows that the caller may see, newest first.

    `show` makes the records. A cursor holds an id, not a time: times are shown to the minute only.
    """
    with transaction(service.factory, read_only=True) as session:
        before = None if page.cursor is None else decode_cursor(page.cursor, [str])[0]
        try:
            rows, last = newest(
                session, table, *conditions, limit=page.limit, before=before, columns=columns, moment=moment
            )
        except NotFound:
            raise _foreign_cursor() from None
        shown = Page[Any](items=list(show(session, rows)), next_cursor=last and encode_cursor([last]))
    return answer(request, shown)


def narrowed(table: Any, **wanted: Any) -> list[ColumnElement[bool]]:
    """Return equality conditions for the values that are not None."""
    return [getattr(table, name) == value for name, value in wanted.items() if value is not None]


def each(show: Callable[[Any], ApiRecord]) -> Callable[[Session, Sequence[Any]], list[ApiRecord]]:
    """Return a `show` for records that need nothing but their row."""
    return lambda _session, rows: [show(row) for row in rows]


def _is_plain(value: str | int) -> bool:
    if isinstance(value, int):
        return 0 <= value < 2**63
    return len(value) <= 64 and value.isascii() and value.isprintable()


def _foreign_cursor() -> InvalidInput:
    return InvalidInput("This cursor is not one that this list gave out. Start again without a cursor.")
