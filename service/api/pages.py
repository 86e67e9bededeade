"""Bounded pages with opaque cursors (keyset pagination: stable while rows are added)."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, and_, or_
from sqlalchemy.orm import InstrumentedAttribute

from service.errors import InvalidInput


def encode_cursor(values: Sequence[str | int]) -> str:
    """Write the position after a row as an opaque text."""
    return base64.urlsafe_b64encode(json.dumps(list(values)).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, kinds: Sequence[type]) -> list[Any]:
    """Read a cursor made by `encode_cursor`.

    Raises:
        InvalidInput: It is not one of ours for this list.
    """
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError):
        values = None
    matches = isinstance(values, list) and [type(value) for value in values] == list(kinds)
    if not matches or not all(map(_is_plain, values)):
        raise _foreign_cursor()
    return list(values)


def newest_first(
    query: Select[Any],
    created_at: InstrumentedAttribute[datetime],
    row_id: InstrumentedAttribute[str],
    cursor: str | None,
    limit: int,
) -> Select[Any]:
    """Order a query by age, start it after `cursor`, and ask for one row more than the page holds."""
    if cursor is not None:
        moment, last_id = decode_cursor(cursor, [str, str])
        try:
            before = datetime.fromisoformat(moment)
            if before.tzinfo is None:
                raise ValueError("no time zone")
            before = before.astimezone(UTC)
        except (ValueError, OverflowError):
            raise _foreign_cursor() from None
        query = query.where(or_(created_at < before, and_(created_at == before, row_id < last_id)))
    return query.order_by(created_at.desc(), row_id.desc()).limit(limit + 1)


def cut(rows: Sequence[Any], limit: int, *, moment: str = "created_at") -> tuple[Sequence[Any], str | None]:
    """Split the extra row off and make the cursor of the next page from the last row shown.

    Args:
        rows: as the query of `newest_first` found them.
        limit: of the page.
        moment: the column that they are ordered by.
    """
    if len(rows) <= limit:
        return rows, None
    shown = rows[:limit]
    return shown, encode_cursor([getattr(shown[-1], moment).isoformat(), shown[-1].id])


def _is_plain(value: str | int) -> bool:
    """Tell whether both databases can compare with a value: no text but ids and moments, no number above 63 bits."""
    if isinstance(value, int):
        return 0 <= value < 2**63
    return len(value) <= 64 and value.isascii() and value.isprintable()


def _foreign_cursor() -> InvalidInput:
    return InvalidInput("This cursor is not one that this list gave out. Start again without a cursor.")
