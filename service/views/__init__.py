"""The records that the API and the pages show, built from database rows.

Each module has the records of some resources; `newest` loads their rows in pages. Amounts of a budget are compared
with the log before they are shown. Nothing here writes, commits, or loads a job's secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, select, tuple_
from sqlalchemy.orm import Session, joinedload
from sqlalchemy.orm.interfaces import ORMOption

from service.db.job_tables import Job
from service.errors import NotFound
from service.identity.access import visible

ROWS_MAX = 200


def with_job(made: Any) -> ORMOption:
    """Return the option that loads the job of a result in the same query, without the job's secret."""
    return joinedload(made.job).defer(Job.secret, raiseload=True)


def newest(
    session: Session,
    table: Any,
    *conditions: ColumnElement[bool],
    limit: int,
    before: str | None,
    columns: Select[*tuple[Any, ...]] | None = None,
    moment: str = "created_at",
) -> tuple[Sequence[Any], str | None]:
    """Return a page of the visible rows, newest first by column `moment`, and the id of the page's last row.

    The page starts after the row with the id `before`. The returned id is None on the last page. `columns` is a query
    for whole rows (or None), or for columns including `id`.
    """
    at = getattr(table, moment)
    query = (visible(session, table) if columns is None else visible(session, table, columns)).where(*conditions)
    if before is not None:
        place = session.execute(visible(session, table, select(at, table.id)).where(table.id == before)).first()
        if place is None:
            raise NotFound(f"There is no such {table.__name__.lower()}.")
        query = query.where(tuple_(at, table.id) < tuple_(*place))
    # Query one row more than the page, to detect another page.
    found = session.execute(query.order_by(at.desc(), table.id.desc()).limit(limit + 1))
    rows: Sequence[Any] = found.scalars().all() if len(found.keys()) == 1 else found.all()
    return rows[:limit], rows[limit - 1].id if len(rows) > limit else None
