"""Admins, decisions, projects, people, API keys, invitations, and webhooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from obscura.wire import admin_schemas as wire
from obscura.wire.schemas import Identifier, Page, ReasonRequest, record_of
from obscura.wire.words import DecisionAction
from service import jobs, ledger, quotas
from service.api.answers import ApiRoute, newest_page
from service.api.deps import ADMIN, INSTALLATION, READ, Admin, OfAccount, Paging, Reader, Running, Service
from service.db.access_tables import Admin as AdminRow
from service.db.access_tables import ApiKey, Decision, Invitation, Project, Webhook
from service.db.session import transaction
from service.dependencies import SECONDS_MAX
from service.errors import NotFound
from service.identity import access, admins, auth, decisions, invitations, people, projects
from service.views import admins as views
from service.webhooks import delivering, sending

router = APIRouter(prefix="/v1", tags=["admins"], route_class=ApiRoute)
AdminId = Annotated[str, Path(max_length=64, description="The admin.")]
KeyId = Annotated[Identifier, Path(description="The key.")]


def request_decision(service: Service, response: Response, ask: Callable[..., Decision]) -> wire.DecisionRecord:
    """Create a request that another admin must approve, and return it."""
    with transaction(service.factory) as session:
        now = service.clock()
        (record,) = views.decisions(session, [ask(session, now=now)], now)
    response.headers["Location"] = f"/v1/decisions/{record.id}"
    return record


@router.get("/admins", dependencies=[ADMIN], summary="List admins")
def list_admins(service: Running) -> wire.AdminList:
    """List all current and former admins and project owners, oldest first. An owner sees those of their project."""
    with transaction(service.factory, read_only=True) as session:
        return wire.AdminList(items=[record_of(wire.AdminRecord, row) for row in admins.admins(session)])


@router.post("/admins", status_code=201, summary="Request an admission")
def request_admission(
    service: Running, response: Response, admin: Admin, body: wire.AdmissionRequest
) -> wire.AdminAnswer:
    """Request the admission of a person, which another admin must approve. A sole admin can admit a second one alone.

    With a project, the person becomes the project's owner. An admin of the installation can name a project's first
    owner alone. Then revoking the admin's key also revokes the owner's keys, and both count as one person in two-person
    decisions. The person creates the token and passes on only its introduction (`obscura admins introduce`).
    """
    with transaction(service.factory) as session:
        now = service.clock()
        made = admins.request_admission(session, **body.model_dump(), requested_with=admin.id, now=now)
        record = wire.AdminAnswer(
            admin=record_of(wire.AdminRecord, made) if isinstance(made, AdminRow) else None,
            request=views.decisions(session, [made], now)[0] if isinstance(made, Decision) else None,
        )
    place = "/v1/admins" if record.request is None else f"/v1/decisions/{record.request.id}"
    response.headers["Location"] = place
    return record


@router.post("/admins/{admin_id}/remove", status_code=201, summary="Request a removal")
def request_removal(
    service: Running, admin: Admin, response: Response, admin_id: AdminId, body: ReasonRequest
) -> wire.DecisionRecord:
    """Request the removal of an admin, which another admin must approve. The admin to be removed may also approve it.

    The removal revokes all keys of the person, and all keys created with them, directly or indirectly. It also removes
    project owners whom the person named alone. 409 if fewer than two admins of the installation would be left.
    """
    ask = partial(admins.request_removal, admin_id=admin_id, reason=body.reason, requested_with=admin.id)
    return request_decision(service, response, ask)


project_router = APIRouter(prefix="/v1/projects", tags=["projects"], route_class=ApiRoute)
ProjectId = Annotated[Identifier, Path(description="The project.")]


@project_router.post("", dependencies=[INSTALLATION], status_code=201, summary="Create a project")
def create_project(service: Running, response: Response, body: wire.ProjectRequest) -> wire.ProjectRecord:
    """Create a project for a department. Name the project when you open accounts and create keys.

    Once there are two projects, keys without a project cannot see datasets, jobs and releases of any project.
    """
    with transaction(service.factory) as session:
        record = record_of(wire.ProjectRecord, projects.create(session, name=body.name, now=service.clock()))
    response.headers["Location"] = f"/v1/projects/{record.id}"
    return record


@project_router.get("", dependencies=[READ], summary="List projects")
def list_projects(service: Running, page: Paging) -> Page[wire.ProjectRecord]:
    """List the projects that the key can see, newest first. An admin of the installation sees all projects."""
    return newest_page(service, page, Project, lambda _, rows: [record_of(wire.ProjectRecord, row) for row in rows])


@project_router.get("/{project_id}", dependencies=[READ], summary="Read a project")
def read_project(service: Running, project_id: ProjectId) -> wire.ProjectUseRecord:
    """Return a project: its name, its job quota and its number of unfinished jobs."""
    with transaction(service.factory, read_only=True) as session:
        return views.project_uses(session, [access.find(session, Project, project_id)])[0]


@project_router.post("/{project_id}/rename", dependencies=[ADMIN], summary="Rename a project")
def rename_project(service: Running, project_id: ProjectId, body: wire.ProjectRequest) -> wire.ProjectRecord:
    """Rename a project. Nothing else changes."""
    with transaction(service.factory) as session:
        return record_of(wire.ProjectRecord, projects.rename(session, project_id, name=body.name))


@project_router.post("/{project_id}/quota", dependencies=[INSTALLATION], summary="Set a project's quota")
def set_quota(service: Running, project_id: ProjectId, body: wire.QuotaRequest) -> wire.ProjectUseRecord:
    """Limit the unfinished jobs of a project. Existing jobs above a new limit continue."""
    with transaction(service.factory) as session:
        project = quotas.set_quota(session, project_id, jobs_max=body.jobs_max)
        return views.project_uses(session, [project])[0]


key_router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=ApiRoute)


@key_router.post("", status_code=201, summary="Create a key")
def create_key(service: Running, response: Response, admin: Admin, body: wire.KeyRequest) -> wire.NewKeyRecord:
    """Create a key. Only this response contains its token: the service stores a hash.

    A key with the scope `admin` is another key of yours: it approves as you, never as a second person.
    """
    with transaction(service.factory) as session:
        key, token = auth.create_key(session, **body.model_dump(), by=admin, now=service.clock())
        record = wire.NewKeyRecord(**dict(views.keys(session, [key])[0]), token=token)
    response.headers.update({"Location": f"/v1/keys/{record.id}", "Cache-Control": "no-store"})
    return record


@key_router.get("", dependencies=[ADMIN], summary="List keys")
def list_keys(
    service: Running,
    page: Paging,
    created_by: Annotated[
        Identifier | None, Query(description="Only keys that this key created, directly or indirectly.")
    ] = None,
) -> Page[wire.KeyRecord]:
    """List keys, newest first, including revoked and expired keys."""
    asked = [] if created_by is None else [ApiKey.id.in_(auth.with_created(ApiKey.created_by == created_by))]
    return newest_page(service, page, ApiKey, views.keys, *asked)


@router.get("/people", dependencies=[ADMIN], summary="List people")
def list_people(service: Running, page: Paging) -> Page[wire.PersonRecord]:
    """List the people who signed in with the sign-in provider, newest first, with one item per role."""
    return newest_page(service, page, ApiKey, views.people, *people.IS_ROLE)


@key_router.post("/{key_id}/revoke", summary="Revoke a key")
def revoke_key(
    service: Running, admin: Admin, key_id: KeyId, body: wire.RevocationRequest | None = None
) -> wire.RevokedKeyRecord:
    """Revoke a key immediately and permanently. By default, also revoke all keys that it has created.

    One admin alone may revoke their own keys, and any key without the scope `admin`. 403 for another admin's key:
    request its revocation instead. Idempotent: the time of the first revocation remains.
    """
    given = (body or wire.RevocationRequest()).model_dump()
    with transaction(service.factory) as session:
        key, others = auth.revoke_key(session, key_id=key_id, admin_id=admin.admin_id, now=service.clock(), **given)
        return wire.RevokedKeyRecord(**dict(views.keys(session, [key])[0]), others_revoked=others)


@router.post("/invitations", status_code=201, summary="Invite a person")
def invite(
    service: Running, request: Request, response: Response, admin: Admin, body: wire.InvitationRequest
) -> wire.NewInvitationRecord:
    """Create a link that gives a person a role once, within seven days. Only this response contains the link.

    The person enters their name and receives a key, which counts as created by your key. A future admin or owner
    receives no permissions: their browser makes a token and sends only its introduction. Compare it with the person,
    and request the admission. 409 with a sign-in provider.
    """
    now = service.clock()
    with transaction(service.factory) as session:
        row, secret = invitations.invite(session, admin, **body.model_dump(), now=now)
        (record,) = views.invitations(session, [row], now)
    response.headers.update({"Location": "/v1/invitations", "Cache-Control": "no-store"})
    link = f"{service.settings.public_url or str(request.base_url).rstrip('/')}/invitations/{secret}"
    return wire.NewInvitationRecord(**dict(record), link=link)


@router.get("/invitations", dependencies=[ADMIN], summary="List invitations")
def list_invitations(service: Running, page: Paging) -> Page[wire.InvitationRecord]:
    """List invitations, newest first, including used, revoked and expired invitations."""
    return newest_page(service, page, Invitation, partial(views.invitations, now=service.clock()))


@router.post("/invitations/{invitation_id}/revoke", dependencies=[ADMIN], summary="Revoke an invitation")
def revoke_invitation(
    service: Running, invitation_id: Annotated[Identifier, Path(description="The invitation.")]
) -> wire.InvitationRecord:
    """Revoke a link that was not used, or that a future admin used. Idempotent.

    409 if it gave a person a key: revoke the key.
    """
    now = service.clock()
    with transaction(service.factory) as session:
        return views.invitations(session, [invitations.revoke(session, invitation_id, now=now)], now)[0]


@key_router.post("/{key_id}/rotate", status_code=201, summary="Rotate a key")
def rotate_key(
    service: Running, response: Response, admin: Admin, key_id: KeyId, body: wire.RotationRequest
) -> wire.NewKeyRecord:
    """Replace a key: create a key with the same name, scopes and project.

    The old key expires after the overlap, or at its own expiry if that is earlier. 403 for another admin's key, 409 for
    a revoked or expired key. Only this response contains the token.
    """
    with transaction(service.factory) as session:
        key, token = auth.rotate_key(session, key_id=key_id, **body.model_dump(), by=admin, now=service.clock())
        record = wire.NewKeyRecord(**dict(views.keys(session, [key])[0]), token=token)
    response.headers.update({"Location": f"/v1/keys/{record.id}", "Cache-Control": "no-store"})
    return record


@key_router.post("/{key_id}/request-revocation", status_code=201, summary="Request a revocation")
def request_revocation(
    service: Running, admin: Admin, response: Response, key_id: KeyId, body: ReasonRequest
) -> wire.DecisionRecord:
    """Request the revocation of another admin's key, with all keys that it has created. A second admin, or the key's
    owner, must approve.

    409 for a key that you can revoke alone.
    """
    ask = partial(admins.request_revocation, key_id=key_id, reason=body.reason, requested_with=admin.id)
    return request_decision(service, response, ask)


decision_router = APIRouter(prefix="/v1/decisions", tags=["decisions"], route_class=ApiRoute)
RequestId = Annotated[Identifier, Path(description="The request.")]
EFFECTS = {**ledger.limits.LIMIT_EFFECTS, **admins.EFFECTS, **jobs.SHARE_EFFECTS}


@decision_router.get("", summary="List decisions")
def list_decisions(
    service: Running,
    reader: Reader,
    page: Paging,
    action: Annotated[DecisionAction | None, Query(description="Only requests for this action.")] = None,
    account_id: OfAccount = None,
) -> Page[wire.DecisionRecord]:
    """List pending and decided requests, newest first. Without the scope `admin`, list only raises of limits."""
    show = partial(views.decisions, now=service.clock())
    mine, order = decisions.readable_by(reader), "requested_at"
    return newest_page(service, page, Decision, show, *mine, moment=order, action=action, account_id=account_id)


@decision_router.get("/{request_id}", summary="Read a decision")
def read_decision(service: Running, reader: Reader, request_id: RequestId) -> wire.DecisionRecord:
    """Return a request for a decision: its requester, terms, reason and outcome."""
    with transaction(service.factory, read_only=True) as session:
        chosen = Decision.id == request_id, *decisions.readable_by(reader)
        row = session.scalar(access.visible(session, Decision).where(*chosen))
        if row is None:
            raise NotFound("There is no such decision.", decision_id=request_id)
        return views.decisions(session, [row], service.clock())[0]


@decision_router.post("/{request_id}/approve", summary="Approve a request")
def approve(service: Running, admin: Admin, request_id: RequestId) -> wire.DecisionRecord:
    """Approve another admin's request and carry it out. 403 if you made the request, with any of your keys.

    The ledger records a raise with its reason and both people. A frozen account stays frozen.
    """
    return _decide(service, admin, request_id, approved=True)


@decision_router.post("/{request_id}/decline", summary="Decline a request")
def decline(service: Running, admin: Admin, request_id: RequestId) -> wire.DecisionRecord:
    """Decline a request. Nothing else changes. Requesters can withdraw their own request this way."""
    return _decide(service, admin, request_id, approved=False)


def _decide(service: Service, admin: access.Principal, request_id: str, *, approved: bool) -> wire.DecisionRecord:
    with transaction(service.factory) as session:
        now = service.clock()
        row = decisions.decide(session, request_id, admin.id, now, EFFECTS, approved=approved)
        return views.decisions(session, [row], now)[0]


webhook_router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=ApiRoute)
WebhookId = Annotated[Identifier, Path(description="The webhook.")]


@webhook_router.post("", status_code=201, summary="Create a webhook")
def create_webhook(
    service: Running, response: Response, admin: Admin, body: wire.WebhookRequest
) -> wire.NewWebhookRecord:
    """Create a webhook for events in the key's project. Without a project, the events are the installation's.

    Only this response contains the signing secret. Revoking the key revokes the webhook.
    """
    private, now = service.settings.webhooks_private, service.clock()
    with transaction(service.factory) as session:
        webhook = delivering.create(session, admin, **body.model_dump(), private=private, now=now)
        record = wire.NewWebhookRecord(**dict(views.webhooks(session, [webhook], now)[0]), secret=webhook.secret)
    response.headers.update({"Location": "/v1/webhooks", "Cache-Control": "no-store"})
    return record


@webhook_router.get("", dependencies=[ADMIN], summary="List webhooks")
def list_webhooks(service: Running, page: Paging) -> Page[wire.WebhookRecord]:
    """List the webhooks of the key's project, newest first, including inactive webhooks."""
    return newest_page(service, page, Webhook, partial(views.webhooks, now=service.clock()))


@webhook_router.post("/{webhook_id}/test", dependencies=[ADMIN], summary="Try a webhook")
async def send_test(service: Running, webhook_id: WebhookId) -> wire.WebhookTestRecord:
    """Send a request of type `test` to a webhook now, and return the result."""
    sender = sending.Sender(service.settings.webhooks_private, seconds_max=SECONDS_MAX)
    sent = await delivering.try_out(service.factory, sender, webhook_id, service.clock)
    return wire.WebhookTestRecord(delivered=sent.delivered, status=sent.status, reason=sent.reason)


@webhook_router.delete("/{webhook_id}", dependencies=[ADMIN], summary="Remove a webhook")
def remove_webhook(service: Running, webhook_id: WebhookId) -> wire.WebhookRecord:
    """Remove a webhook and its pending deliveries."""
    with transaction(service.factory) as session:
        (record,) = views.webhooks(session, [access.find(session, Webhook, webhook_id)], service.clock())
        delivering.remove(session, webhook_id)
    return record
