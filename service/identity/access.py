"""The caller of a request, and the rows that they may see: the only place that isolates projects from each other.

`on_behalf` opens a session for a caller, who is stored in it. All queries for callers start with `visible` or `find`,
which apply the filter `seen_by`. Sessions of the service, its workers and the audit have no caller and see everything.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, overload

from sqlalchemy import ColumnElement, Select, and_, exists, or_, select
from sqlalchemy.orm import Session, aliased
from sqlalchemy.orm.interfaces import ORMOption

from obscura.wire.words import JobState
from service.db.access_tables import DEFAULT_PROJECT, EVERY_PROJECT, ONE_PROJECT, Project
from service.db.base import Base
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Made, Release, Share, Sweep
from service.db.ledger_tables import Account
from service.db.session import LAST, Last, SessionFactory, with_info
from service.errors import Forbidden, NotFound

Row = TypeVar("Row", bound=Base)
Query = TypeVar("Query", bound=Select[*tuple[Any, ...]])
_CALLER = "obscura_caller"
CONTENT: tuple[type[Base], ...] = (Dataset, Job, Release, Share, Sweep, *get_args(Made))


class Scope(enum.StrEnum):
    """Permissions of a key. `admin` includes every other scope, and `read` includes `releases`."""

    ADMIN = "admin"
    DATA = "data"
    TRAIN = "train"
    READ = "read"
    RELEASES = "releases"
    AUDIT = "audit"
    METRICS = "metrics"


# Roles in a project: named sets of scopes.
ROLES = {
    "owner": (Scope.ADMIN,),
    "steward": (Scope.DATA, Scope.READ),
    "analyst": (Scope.TRAIN, Scope.READ),
    "auditor": (Scope.AUDIT, Scope.READ),
    "viewer": (Scope.RELEASES,),
}
# Key in `Session.info`: only people of the sign-in provider may request and approve two-person decisions.
PEOPLE_DECIDE = "obscura_people_decide"


def covers(held: frozenset[Scope], scope: Scope) -> bool:
    """Return whether a set of scopes includes another scope."""
    return bool(held & {scope, Scope.ADMIN}) or (scope is Scope.RELEASES and Scope.READ in held)


@dataclass(frozen=True)
class Principal:
    """A caller: a key with its scopes, admin, project (None: the installation) and person."""

    id: str
    scopes: frozenset[Scope]
    admin_id: str | None = None
    project_id: str | None = None
    person_id: str | None = None

    def require(self, scope: Scope) -> None:
        """Raise Forbidden unless the key covers a scope."""
        # Metrics cover all projects, so a project owner's scope `admin` does not include the scope `metrics`.
        of_all_projects = scope is Scope.METRICS and self.project_id is not None
        if not (scope in self.scopes if of_all_projects else covers(self.scopes, scope)):
            has = ", ".join(sorted(self.scopes)) or "none"
            raise Forbidden(f"This needs a key with the scope {scope.value!r}; this key has {has}.", needed=scope.value)

    def require_installation(self) -> None:
        """Raise Forbidden unless the caller is an admin of the installation."""
        self.require(Scope.ADMIN)
        if self.project_id is not None:
            raise Forbidden("This needs an admin's key that belongs to no project.", needed=Scope.ADMIN.value)


def seen_by(caller: Principal | None, table: type[Base]) -> ColumnElement[bool] | None:
    """Return the condition that selects the rows that a caller may see; None for all rows.

    A project's key sees the project's rows and the releases that other projects share with it. It also sees the samples
    and evaluations of these releases that their own projects made. An admin of the installation sees accounts,
    requests, keys, webhooks and audit events of all projects. While there is only one project, such an admin and
    readers without a key (None) also see datasets, jobs and their results. Erased datasets are always hidden.
    """
    project_id = None if caller is None else caller.project_id
    return _rule(table, project_id, alone=caller is None or (project_id is None and table in CONTENT))


@functools.lru_cache(maxsize=1024)  # every page needs about twelve conditions
def _rule(table: Any, project_id: str | None, *, alone: bool) -> ColumnElement[bool] | None:
    existing = [Dataset.erased_at.is_(None)] if table is Dataset else []
    if alone:
        return and_(*existing, ONE_PROJECT)
    if project_id is None:
        return and_(*existing) if existing else None
    accounts = select(Account.id).where(Account.project_id == project_id)
    maker = aliased(Job)
    condition: ColumnElement[bool]
    if table is Project:
        condition = Project.id == project_id
    elif table is Share:  # its project is the one that the release is shared with
        condition = Share.release_id.in_(select(Release.id).where(Release.account_id.in_(accounts)))
    elif hasattr(table, "project_id"):
        condition = table.project_id == project_id
    elif table in get_args(Made):
        condition = exists().where(maker.id == table.job_id, maker.project_id == project_id)
    else:
        condition = table.account_id.in_(accounts)
    open_to = Share.project_id.in_([project_id, EVERY_PROJECT])
    shared = select(Share.release_id).where(Share.ended_at.is_(None), open_to)
    if table is Release:
        condition = or_(condition, Release.id.in_(shared))
    elif hasattr(table, "release_id") and table in get_args(Made):
        # Finished results of a shared release, if the sharing project made them: only its jobs name an account.
        there = maker.id == table.job_id, maker.account_id.is_not(None), maker.state == JobState.SUCCEEDED
        condition = or_(condition, table.release_id.in_(shared) & exists().where(*there))
    return and_(*existing, condition)


def project_of(session: Session, account_id: str | None) -> str:
    """Return a new row's project: the account's project; otherwise the caller's; otherwise the default project."""
    if account_id is not None:
        return projects_of(session, [account_id])[account_id]
    caller = _caller(session)
    return DEFAULT_PROJECT if caller is None or caller.project_id is None else caller.project_id


def projects_of(session: Session, account_ids: Iterable[str]) -> dict[str, str]:
    """Return the projects of accounts, by account id."""
    query = select(Account.id, Account.project_id).where(Account.id.in_(set(account_ids)))
    return {row.id: row.project_id for row in session.execute(query)}


def is_own(session: Session, project_id: str) -> bool:
    """Return whether rows of a project belong to the caller, instead of being shared with them."""
    caller = _caller(session)
    return caller is None or caller.project_id in (None, project_id)


def _caller(session: Session) -> Principal | None:
    caller = session.info.get(_CALLER)
    return None if caller is None else caller()


def on_behalf(
    factory: SessionFactory, caller: Callable[[], Principal | None], last: Last | None = None
) -> SessionFactory:
    """Return a factory of sessions for a caller. `last` writes the audit log (`service.identity.recording`)."""
    return with_info(factory, **{_CALLER: caller}, **({LAST: last} if last is not None else {}))


@overload
def visible(session: Session, table: type[Row]) -> Select[Row]: ...
@overload
def visible(session: Session, table: type[Base], query: Query) -> Query: ...
def visible(session: Session, table: type[Base], query: Any = None) -> Any:
    """Return a query for the rows of a table that the session's caller may see, or restrict `query` to them."""
    query = select(table) if query is None else query
    condition = _condition(session, table)
    return query if condition is None else query.where(condition)


def find(
    session: Session, table: type[Row], row_id: str, *, lock: bool = False, options: Sequence[ORMOption] = ()
) -> Row:
    """Return a row by its id; if `lock`, lock and reload it.

    Raises:
        NotFound: the row does not exist, or the caller may not see it.
    """
    require_visible(session, table, row_id)
    row = session.get(table, row_id, options=options, with_for_update=lock or None, populate_existing=lock)
    if row is None:
        raise _not_found(table, row_id)
    return row


def require_visible(session: Session, table: Any, row_id: str) -> None:
    """Raise NotFound if the caller's filter hides a row. For a caller without a filter, even a missing row passes."""
    condition = _condition(session, table)
    if condition is not None and session.scalar(select(table.id).where(table.id == row_id, condition)) is None:
        raise _not_found(table, row_id)


def require_project(session: Session) -> None:
    """Raise Forbidden unless the caller works in a project, or there is only one."""
    caller = _caller(session)
    if caller is None or caller.project_id is not None:
        return
    if not session.scalar(select(ONE_PROJECT)):
        raise Forbidden("There are several projects: declare datasets with a key of the project that pays for them.")


def _condition(session: Session, table: type[Base]) -> ColumnElement[bool] | None:
    caller = session.info.get(_CALLER)
    return None if caller is None else seen_by(caller(), table)


def _not_found(table: type[Base], row_id: str) -> NotFound:
    noun = table.__name__.removeprefix("Api").removesuffix("Row").lower()
    return NotFound(f"There is no such {noun}.", **{f"{noun}_id": row_id})
