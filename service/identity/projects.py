"""Projects: departments of one installation. While only the default project exists, requests need not name it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import func, select, union_all
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.db.access_tables import Admin, Project
from service.db.base import new_id
from service.db.ledger_tables import Account
from service.errors import Conflict, InvalidInput, require_name
from service.identity.access import find, visible
from service.identity.recording import Act, record

PROJECTS_MAX = 1000


def create(session: Session, *, name: str, now: datetime) -> Project:
    name = require_name(name, "A project's name")
    if (session.scalar(select(func.count()).select_from(Project)) or 0) >= PROJECTS_MAX:
        raise Conflict(f"There are {PROJECTS_MAX} projects, which is the limit.")
    project = Project(id=new_id("prj"), name=name, created_at=now)
    session.add(project)
    record(session, Act.PROJECT_MADE, project.id, project_id=project.id)
    return _named(session, project)


def rename(session: Session, project_id: str, *, name: str) -> Project:
    name = require_name(name, "A project's name")
    project = find(session, Project, project_id, lock=True)
    project.name = name
    record(session, Act.PROJECT_RENAMED, project.id, project_id=project.id)
    return _named(session, project)


def choose(session: Session, project_id: str | None = None) -> str:
    """Return the project id for a new row: the requested project, or the only project that the caller may see."""
    if project_id is not None:
        return find(session, Project, project_id).id
    seen = session.scalars(visible(session, Project, select(Project.id)).limit(2)).all()
    if len(seen) != 1:
        raise InvalidInput(
            "There are several projects. Name the project of this request, or use a key of that project."
        )
    return seen[0]


def names(session: Session, ids: Collection[str | None]) -> dict[str, str]:
    """Return names of projects, accounts and admins by id. Visibility is not checked: pass ids from visible rows."""
    named = union_all(
        select(Project.id, Project.name).where(Project.id.in_(ids)),
        select(Account.id, Account.name).where(Account.id.in_(ids)),
        select(Admin.id, Admin.name).where(Admin.id.in_(ids)),
    )
    return {row.id: row.name for row in session.execute(named)} if ids else {}


def _named(session: Session, project: Project) -> Project:
    name = project.name
    try:
        with session.begin_nested():
            session.flush()
    except IntegrityError:
        raise Conflict(f"A project named '{name}' already exists. Choose another name.") from None
    return project
