"""Who asks, and which rows they may see: the one place where projects keep departments apart.

A session that is opened for a caller bears them (`on_behalf`). What is read for people starts at `visible` or `find`,
which leave out what `seen_by` hides from that caller. Sessions of the service itself, of its workers and of the
verification bear nobody, and see everything.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, overload

from sqlalchemy import ColumnElement, Select, and_, exists, not_, or_, select
from sqlalchemy.orm import Session, aliased
from sqlalchemy.orm.interfaces import ORMOption

from obscura.wire.words import JobState
from service.db.access_tables import Admin, ApiKey, Decision
from service.db.audit_tables import AuditEvent
from service.db.base import Base
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Made, Release, Share, Sweep
from service.db.ledger_tables import AccountRow
from service.db.project_tables import DEFAULT_PROJECT, EVERY_PROJECT, Project
from service.db.session import LAST, Last, SessionFactory, with_info
from service.db.webhook_tables import Webhook
from service.errors import Forbidden, NotFound

Row = TypeVar("Row", bound=Base)
Query = TypeVar("Query", bound=Select[*tuple[Any, ...]])
_CALLER = "obscura_caller"
CONTENT: tuple[type[Base], ...] = (Dataset, Job, Release, Share, Sweep, *get_args(Made))


class Scope(enum.StrEnum):
    """What a key may do. `admin` includes every other scope, and `read` includes `releases`."""

    ADMIN = "admin"
    DATA = "data"
    TRAIN = "train"
    READ = "read"
    RELEASES = "releases"
    AUDIT = "audit"
    METRICS = "metrics"


class Role(enum.StrEnum):
    """What somebody does in a project: each is a name for some scopes."""

    OWNER = "owner"
    STEWARD = "steward"
    ANALYST = "analyst"
    AUDITOR = "auditor"
    VIEWER = "viewer"


ROLES = {
    Role.OWNER: (Scope.ADMIN,),
    Role.STEWARD: (Scope.DATA, Scope.READ),
    Role.ANALYST: (Scope.TRAIN, Scope.READ),
    Role.AUDITOR: (Scope.AUDIT, Scope.READ),
    Role.VIEWER: (Scope.RELEASES,),
}
_WIDER = {Scope.RELEASES: frozenset({Scope.READ})}
# In the info of sessions: whether those who decide must be people whom the sign-in provider knows.
PEOPLE_DECIDE = "obscura_people_decide"


def covers(held: frozenset[Scope], scope: Scope) -> bool:
    """Tell whether whoever has some scopes may do what another one stands for."""
    return bool(held & {scope, Scope.ADMIN}) or bool(held & _WIDER.get(scope, frozenset()))


@dataclass(frozen=True)
class Principal:
    """Who is asking: a key's id and scopes, the person behind it where it is an admin's, and its project.

    Without a project it is the key of an admin of the installation. `person_id` is whom the sign-in provider vouches
    for, where there is one.
    """

    id: str
    scopes: frozenset[Scope]
    admin_id: str | None = None
    project_id: str | None = None
    person_id: str | None = None

    def require(self, scope: Scope) -> None:
        """Raise unless the key covers a scope. The metrics are of all projects, so no owner's `admin` covers them.

        Raises:
            Forbidden: the key has neither this scope nor `admin`.
        """
        of_all_projects = scope is Scope.METRICS and self.project_id is not None
        if not (scope in self.scopes if of_all_projects else covers(self.scopes, scope)):
            has = ", ".join(sorted(self.scopes)) or "none"
            raise Forbidden(f"This needs a key with the scope {scope.value!r}; this key has {has}.", needed=scope.value)

    def require_installation(self) -> None:
        """Let an admin of the installation pass, or not.

        Raises:
            Forbidden: the key belongs to a project.
        """
        self.require(Scope.ADMIN)
        if self.project_id is not None:
            raise Forbidden("This needs an admin's key that belongs to no project.", needed=Scope.ADMIN.value)


def seen_by(caller: Principal | None, table: type[Base]) -> ColumnElement[bool] | None:
    """Return the condition on a table's rows that a caller may see; None where these are all.

    Whoever has a key of a project sees its rows, and releases that are shared with it, with what their own project has
    drawn from them and measured. An admin of the installation sees the accounts, requests, keys, webhooks and audit
    events of every project, but datasets, jobs and what these made only as long as there is one project, and so does a
    reader without a key see anything. A dataset that was erased is seen by nobody.

    Args:
        caller: a key's holder, or None for a reader of the dashboard without one, where the settings allow that.
        table: one that belongs to an account, the accounts themselves, projects, people, requests, keys, webhooks
            or audit events.
    """
    project_id = None if caller is None else caller.project_id
    return _rule(table, project_id, alone=caller is None or (project_id is None and table in CONTENT))


@functools.lru_cache(maxsize=1024)
def _rule(table: type[Base], project_id: str | None, *, alone: bool) -> ColumnElement[bool] | None:
    """Build the condition of `seen_by`: once for a table and a project, for every page asks with a dozen of them.

    Args:
        project_id: whose rows are seen; None where it does not matter whose they are.
        alone: rows are seen only as long as there is one project.
    """
    rules: list[ColumnElement[bool]] = [Dataset.erased_at.is_(None)] if table is Dataset else []
    if alone:
        rules.append(not_(exists().where(Project.id != DEFAULT_PROJECT)))
    elif project_id is not None:
        rules.append(_of_project(table, project_id))
    return and_(*rules) if rules else None


def _of_project(table: Any, project_id: str) -> ColumnElement[bool]:
    """The condition that a row belongs to a project, by a column of its own, or by its account, release or job; or is
    shared with it.
    """
    accounts = select(AccountRow.id).where(AccountRow.project_id == project_id)
    maker = aliased(Job)
    condition: ColumnElement[bool]
    if table is Project:
        condition = Project.id == project_id
    elif table in (AccountRow, Admin, ApiKey, AuditEvent, Dataset, Decision, Job, Webhook):
        condition = table.project_id == project_id
    elif table is Share:
        condition = Share.release_id.in_(select(Release.id).where(Release.account_id.in_(accounts)))
    elif table in get_args(Made):
        condition = exists().where(maker.id == table.job_id, maker.project_id == project_id)
    else:
        condition = table.account_id.in_(accounts)
    if table is Release:
        condition = or_(condition, Release.id.in_(_shared_with(project_id)))
    elif hasattr(table, "release_id") and table in get_args(Made):
        # What its own project has made of a shared release, once it is there: a job that names an account is that's.
        there = maker.id == table.job_id, maker.account_id.is_not(None), maker.state == JobState.SUCCEEDED
        condition = or_(condition, table.release_id.in_(_shared_with(project_id)) & exists().where(*there))
    return condition


def _shared_with(project_id: str) -> Select[str]:
    """The query for the releases that other projects share with one."""
    return select(Share.release_id).where(Share.ended_at.is_(None), Share.project_id.in_([project_id, EVERY_PROJECT]))


def project_of(session: Session, account_id: str | None) -> str:
    """Return the project that something new belongs to: its account's, or else that of the caller, or the first."""
    if account_id is not None:
        return projects_of(session, [account_id])[account_id]
    return _own_project(session) or DEFAULT_PROJECT


def projects_of(session: Session, account_ids: Iterable[str]) -> dict[str, str]:
    """Return the projects that accounts belong to, by the accounts' ids."""
    asked = select(AccountRow.id, AccountRow.project_id).where(AccountRow.id.in_(set(account_ids)))
    return {row.id: row.project_id for row in session.execute(asked)}


def is_own(session: Session, project_id: str) -> bool:
    """Tell whether what the caller sees of a project is theirs, and not only shared with them."""
    return _own_project(session) in (None, project_id)


def _own_project(session: Session) -> str | None:
    caller = session.info.get(_CALLER)
    principal = None if caller is None else caller()
    return None if principal is None else principal.project_id


def on_behalf(
    factory: SessionFactory, caller: Callable[[], Principal | None], last: Last | None = None
) -> SessionFactory:
    """Return a factory of the same sessions that bear a caller, who is asked for when the first row is looked for.

    Args:
        last: what they write last, see `service.identity.recording`; None for as ever.
    """
    return with_info(factory, **{_CALLER: caller}, **({LAST: last} if last is not None else {}))


@overload
def visible(session: Session, table: type[Row]) -> Select[Row]: ...
@overload
def visible(session: Session, table: type[Base], query: Query) -> Query: ...
def visible(session: Session, table: type[Base], query: Any = None) -> Any:
    """Return a query for the rows of a table that the caller of a session may see.

    Args:
        session: bears the caller, or nobody.
        table: whose rows the query is about; what it joins belongs to them.
        query: of these rows or of columns of theirs; None for whole rows.
    """
    query = select(table) if query is None else query
    condition = _condition(session, table)
    return query if condition is None else query.where(condition)


def find(
    session: Session, table: type[Row], row_id: str, *, lock: bool = False, options: Sequence[ORMOption] = ()
) -> Row:
    """Return a row of a table by its id; as it is now, and locked until the transaction ends, if that is asked for.

    Raises:
        NotFound: there is none that the caller may see; the message says what was looked for.
    """
    require_visible(session, table, row_id)
    row = session.get(table, row_id, options=options, with_for_update=lock or None, populate_existing=lock)
    if row is None:
        raise _not_found(table, row_id)
    return row


def require_visible(session: Session, table: Any, row_id: str) -> None:
    """Let an id pass, unless its row is hidden from the caller; whether there is one is asked afterwards.

    Raises:
        NotFound: it is hidden, as if it were not there.
    """
    condition = _condition(session, table)
    if condition is not None and session.scalar(select(table.id).where(table.id == row_id, condition)) is None:
        raise _not_found(table, row_id)


def require_project(session: Session) -> None:
    """Let whoever works in a project pass, and an admin of the installation as long as there is one project.

    Raises:
        Forbidden: there are several, and the key belongs to none.
    """
    caller = session.info.get(_CALLER)
    principal = None if caller is None else caller()
    if principal is None or principal.project_id is not None:
        return
    if session.scalar(select(exists().where(Project.id != DEFAULT_PROJECT))):
        raise Forbidden("There are several projects: datasets are declared, and paid for, with a key of theirs.")


def _condition(session: Session, table: type[Base]) -> ColumnElement[bool] | None:
    caller = session.info.get(_CALLER)
    return None if caller is None else seen_by(caller(), table)


def _not_found(table: type[Base], row_id: str) -> NotFound:
    noun = table.__name__.removeprefix("Api").removesuffix("Row").lower()
    return NotFound(f"There is no such {noun}.", **{f"{noun}_id": row_id})
