"""Lists of rows in pages, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, select, tuple_
from sqlalchemy.orm import Session

from service.errors import NotFound

ROWS_MAX = 200


def newest(
    session: Session, query: Select[Any], table: Any, *, limit: int, before: str | None, moment: str = "created_at"
) -> tuple[Sequence[Any], str | None]:
    """Return a page of what a query finds in a table, newest first, and the last one's id where there are more.

    Args:
        session: Any transaction.
        query: Of whole rows, or of columns with `id` among them.
        table: Whose rows these are.
        limit: Of the page.
        before: Id of the last row of the page before; None for the first page.
        moment: The column to sort by.

    Raises:
        NotFound: There is no such row.
    """
    at = getattr(table, moment)
    if before is not None:
        place = session.execute(select(at, table.id).where(table.id == before)).first()
        if place is None:
            raise NotFound(f"There is no such {table.__name__.lower()}.")
        query = query.where(tuple_(at, table.id) < tuple_(*place))
    # One row more than the page holds tells whether there is another page.
    found = session.execute(query.order_by(at.desc(), table.id.desc()).limit(limit + 1))
    rows: Sequence[Any] = found.scalars().all() if len(found.keys()) == 1 else found.all()
    return rows[:limit], rows[limit - 1].id if len(rows) > limit else None
