"""Admins, projects, people, and API keys."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from obscura.wire.admin_schemas import (
    AdminAnswer,
    AdminList,
    AdmissionRequest,
    DecisionRecord,
    KeyRecord,
    KeyRequest,
    NewKeyRecord,
    PersonRecord,
    ProjectRecord,
    ProjectRequest,
    ProjectUseRecord,
    QuotaRequest,
    RevocationRequest,
    RevokedKeyRecord,
    RotationRequest,
)
from obscura.wire.schemas import Identifier, Page, ReasonRequest
from service import quotas
from service.api.answers import answer, answer_newest, each
from service.api.deps import ADMIN, INSTALLATION, PROBLEMS, READ, Admin, ApiRoute, Paging, Running
from service.api.routes.decisions import answer_asked
from service.db.access_tables import Admin as AdminRow
from service.db.access_tables import ApiKey, Decision
from service.db.project_tables import Project
from service.db.session import transaction
from service.identity import admins, auth, projects
from service.identity.access import find
from service.views import admins as views

router = APIRouter(prefix="/v1", tags=["admins"], responses=PROBLEMS, route_class=ApiRoute)
AdminId = Annotated[str, Path(max_length=64)]
KeyId = Annotated[Identifier, Path()]


@router.get("/admins", dependencies=[ADMIN], response_model=AdminList, summary="List admins")
def list_admins(service: Running, request: Request) -> Response:
    """List everybody who is or was an admin, owners of projects as well, in the order of their admission.

    An owner sees those of the project.
    """
    with transaction(service.factory, read_only=True) as session:
        record = AdminList(items=[views.admin(row) for row in admins.admins(session)])
    return answer(request, record)


@router.post("/admins", status_code=201, response_model=AdminAnswer, summary="Ask for an admin to be admitted")
def ask_admission(service: Running, admin: Admin, request: Request, body: AdmissionRequest) -> Response:
    """Ask for a person to be admitted, which another admin must approve; the second person is admitted at once.

    With a project the person becomes its owner. The first one an admin of the installation names alone: that owner's
    keys are revoked with the one that named them, and where two people must agree the two count as one. The person
    makes the token and hands on its introduction only (`obscura admins introduce`): nobody else sees it.
    """
    with transaction(service.factory) as session:
        now = service.clock()
        made = admins.ask_admission(session, **body.model_dump(), asked_with=admin.id, now=now)
        record = AdminAnswer(
            admin=views.admin(made) if isinstance(made, AdminRow) else None,
            request=views.decision(session, made, now) if isinstance(made, Decision) else None,
        )
    location = "/v1/admins" if record.request is None else f"/v1/decisions/{record.request.id}"
    return answer(request, record, status_code=201, headers={"Location": location})


@router.post("/admins/{admin_id}/remove", status_code=201, response_model=DecisionRecord, summary="Ask for a removal")
def ask_removal(service: Running, admin: Admin, request: Request, admin_id: AdminId, body: ReasonRequest) -> Response:
    """Ask for an admin to be removed, which another must approve: the one who is to go, for instance.

    With the person go all their keys, the keys that these have made, and so on, and owners of projects whom the person
    has named alone. 409 where fewer than two admins of the installation would be left.
    """
    ask = partial(admins.ask_removal, admin_id=admin_id, reason=body.reason, asked_with=admin.id)
    return answer_asked(service, request, ask)


project_router = APIRouter(prefix="/v1/projects", tags=["projects"], responses=PROBLEMS, route_class=ApiRoute)
ProjectId = Annotated[Identifier, Path()]


@project_router.post(
    "", dependencies=[INSTALLATION], status_code=201, response_model=ProjectRecord, summary="Create a project"
)
def create_project(service: Running, request: Request, body: ProjectRequest) -> Response:
    """Create a project for a department. Accounts are opened in it, and keys made for it, by naming it there.

    The second project hides the datasets, jobs and releases of every project from keys without a project.
    """
    with transaction(service.factory) as session:
        record = views.project(projects.create(session, name=body.name, now=service.clock()))
    return answer(request, record, status_code=201, headers={"Location": f"/v1/projects/{record.id}"})


@project_router.get("", dependencies=[READ], response_model=Page[ProjectRecord], summary="List projects")
def list_projects(service: Running, request: Request, page: Paging) -> Response:
    """List the projects that the key opens, newest first: its own, or all for an admin's that belongs to none."""
    return answer_newest(service, request, page, Project, each(views.project))


@project_router.get("/{project_id}", dependencies=[READ], response_model=ProjectUseRecord, summary="Read a project")
def read_project(service: Running, request: Request, project_id: ProjectId) -> Response:
    """Read a project: its name, its quota of jobs and how many unfinished jobs it has."""
    with transaction(service.factory, read_only=True) as session:
        (record,) = views.project_uses(session, [find(session, Project, project_id)])
    return answer(request, record)


@project_router.post(
    "/{project_id}/rename", dependencies=[ADMIN], response_model=ProjectRecord, summary="Rename a project"
)
def rename_project(service: Running, request: Request, project_id: ProjectId, body: ProjectRequest) -> Response:
    """Give a project another name. What belongs to it stays as it is."""
    with transaction(service.factory) as session:
        record = views.project(projects.rename(session, project_id, name=body.name))
    return answer(request, record)


@project_router.post(
    "/{project_id}/quota", dependencies=[INSTALLATION], response_model=ProjectUseRecord, summary="Set a project's quota"
)
def set_quota(service: Running, request: Request, project_id: ProjectId, body: QuotaRequest) -> Response:
    """Limit the jobs of a project that wait or run. Jobs beyond a new limit go on."""
    with transaction(service.factory) as session:
        project = quotas.set_quota(session, project_id, jobs_max=body.jobs_max)
        (record,) = views.project_uses(session, [project])
    return answer(request, record)


key_router = APIRouter(prefix="/v1/keys", tags=["keys"], responses=PROBLEMS, route_class=ApiRoute)


@key_router.post("", status_code=201, response_model=NewKeyRecord, summary="Create a key")
def create_key(service: Running, admin: Admin, body: KeyRequest) -> Response:
    """Create a key. Its token is in this answer and nowhere else: only a hash is kept.

    One with the scope `admin` is another key of yours: it decides as you, never as a second person.
    """
    with transaction(service.factory) as session:
        key, token = auth.create_key(
            session, **body.model_dump(), created_by=admin.id, admin_id=admin.admin_id, now=service.clock()
        )
        record = NewKeyRecord(**dict(views.keys(session, [key])[0]), token=token)
    return _fresh(record)


def _fresh(record: NewKeyRecord) -> Response:
    headers = {"Location": f"/v1/keys/{record.id}", "Cache-Control": "no-store"}
    return Response(record.model_dump_json(), status_code=201, headers=headers, media_type="application/json")


@key_router.get("", dependencies=[ADMIN], response_model=Page[KeyRecord], summary="List keys")
def list_keys(
    service: Running,
    request: Request,
    page: Paging,
    made_by: Annotated[
        Identifier | None, Query(description="Only what this key has made, what that has made, and so on.")
    ] = None,
) -> Response:
    """List the keys, those that were revoked or have expired too, newest first."""
    asked = [] if made_by is None else [ApiKey.id.in_(auth.with_all_made(ApiKey.created_by == made_by))]
    return answer_newest(service, request, page, ApiKey, views.keys, *asked)


@router.get("/people", dependencies=[ADMIN], response_model=Page[PersonRecord], summary="List people")
def list_people(service: Running, request: Request, page: Paging) -> Response:
    """List whom the sign-in provider knows, with a line for each role that its groups give them, newest first."""
    roles = ApiKey.person_id.is_not(None), ApiKey.created_by.is_(None), ApiKey.revoked_at.is_(None)
    return answer_newest(service, request, page, ApiKey, views.people, *roles)


@key_router.post("/{key_id}/revoke", response_model=RevokedKeyRecord, summary="Revoke a key")
def revoke_key(
    service: Running, admin: Admin, request: Request, key_id: KeyId, body: RevocationRequest | None = None
) -> Response:
    """Revoke a key at once and for good, with all that it has made unless the body says otherwise.

    One admin alone may revoke keys of their own, and those without the scope `admin`, whoever made them. 403 for keys
    of another admin: those take two people. Revoking twice keeps the first time.
    """
    given = (body or RevocationRequest()).model_dump()
    with transaction(service.factory) as session:
        key, others = auth.revoke_key(session, key_id=key_id, admin_id=admin.admin_id, now=service.clock(), **given)
        record = RevokedKeyRecord(**dict(views.keys(session, [key])[0]), others_revoked=others)
    return answer(request, record)


@key_router.post("/{key_id}/rotate", status_code=201, response_model=NewKeyRecord, summary="Rotate a key")
def rotate_key(service: Running, admin: Admin, key_id: KeyId, body: RotationRequest) -> Response:
    """Make a key with the name, scopes and project of another one, which ends after the overlap, or before.

    403 for another admin's key, 409 for one that opens nothing any more. The token is in this answer and nowhere else.
    """
    with transaction(service.factory) as session:
        wish = {"key_id": key_id, **body.model_dump()}
        key, token = auth.rotate_key(session, **wish, created_by=admin.id, admin_id=admin.admin_id, now=service.clock())
        record = NewKeyRecord(**dict(views.keys(session, [key])[0]), token=token)
    return _fresh(record)


@key_router.post(
    "/{key_id}/ask-revocation", status_code=201, response_model=DecisionRecord, summary="Ask for a revocation"
)
def ask_revocation(service: Running, admin: Admin, request: Request, key_id: KeyId, body: ReasonRequest) -> Response:
    """Ask for another admin's key to be revoked, with all that it has made. A second admin, or its owner, approves.

    409 for a key that you can revoke alone.
    """
    ask = partial(admins.ask_revocation, key_id=key_id, reason=body.reason, asked_with=admin.id)
    return answer_asked(service, request, ask)
