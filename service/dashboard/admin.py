"""Pages for admins: decisions, and the settings: members, keys, projects, webhooks and the audit log."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import select

from obscura.wire.admin_schemas import AdminRecord
from obscura.wire.schemas import record_of
from service.api.deps import Running
from service.dashboard.access import Reader, find_viewer
from service.dashboard.pages import PageRoute, page
from service.dashboard.sign_in import DAYS
from service.db.access_tables import ApiKey, Delivery, Invitation, Project, Webhook
from service.db.session import transaction
from service.identity import admins, decisions, invitations, people, projects
from service.identity.access import Scope, visible
from service.identity.auth import is_usable
from service.views import accounts
from service.views import admins as views
from service.webhooks.delivering import WEBHOOKS_MAX

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])
RECENT_REQUESTS = 50
MEMBERS_SHOWN_MAX = 500
SHOWN_MAX = 100  # projects or events
KEYS_SHOWN_MAX = 40
INVITATIONS_SHOWN_MAX = 50
DELIVERIES_SHOWN_MAX = 10  # of each webhook


@router.get("/settings/members")
def show_members(request: Request, service: Running, viewer: Reader) -> HTMLResponse:
    """Show admins, invitations, and people of the sign-in provider. An owner sees those of their project."""
    viewer.signed_in(Scope.ADMIN)
    now, host = service.clock(), urlsplit(service.settings.public_url or str(request.base_url)).hostname
    with transaction(service.factory, read_only=True) as session:
        rows = admins.admins(session)
        records = [record_of(AdminRecord, row) for row in rows]
        names = projects.names(session, {id for row in rows for id in (row.id, row.requested_by, row.approved_by)})
        newest = visible(session, Invitation).order_by(Invitation.created_at.desc(), Invitation.id)
        invited = views.invitations(session, session.scalars(newest.limit(INVITATIONS_SHOWN_MAX)).all(), now)
        theirs = ApiKey.id.in_({row.key_id for row in invited if row.key_id is not None}), is_usable(now)
        usable = set(session.scalars(visible(session, ApiKey, select(ApiKey.id)).where(*theirs)))
        roles = visible(session, ApiKey).where(*people.IS_ROLE).order_by(ApiKey.created_at, ApiKey.id)
        members = views.people(session, session.scalars(roles.limit(MEMBERS_SHOWN_MAX)).all())
    return page(
        request,
        "members.html",
        admins=records,
        members=sorted(members, key=lambda person: person.name),
        names=names,
        invitations=invited,
        usable=usable,
        provider=service.provider is not None,
        local_host=host if host in ("127.0.0.1", "localhost", "::1") else None,
    )


@router.get("/settings/keys")
def show_keys(request: Request, service: Running, viewer: Reader) -> HTMLResponse:
    viewer.signed_in(Scope.ADMIN)
    now = service.clock()
    with transaction(service.factory, read_only=True) as session:
        order = is_usable(now).desc(), ApiKey.created_at.desc(), ApiKey.id
        rows = session.scalars(visible(session, ApiKey).order_by(*order).limit(KEYS_SHOWN_MAX)).all()
        keys = views.keys(session, rows)
        roles = {row.id for row in rows if row.person_id is not None and row.created_by is None}
    return page(
        request,
        "keys.html",
        keys=keys,
        roles=roles,
        ends=[((now + timedelta(days=days)).isoformat(timespec="minutes"), f"{days} days") for days in DAYS],
        shown_max=KEYS_SHOWN_MAX,
        now=now,
    )


@router.get("/decisions")
def show_decisions(request: Request, service: Running, viewer: Reader) -> HTMLResponse:
    now = service.clock()
    with transaction(service.factory, read_only=True) as session:
        chosen = decisions.readable_by(viewer.principal)
        rows = decisions.pending_first(session, *chosen, limit=RECENT_REQUESTS)
        requests = views.decisions(session, rows, now)
        waiting = invitations.awaiting_admission(session, now) if viewer.may(Scope.ADMIN) else []
        invited = views.invitations(session, waiting, now)
        alone = sum(row.project_id is None for row in admins.admins(session)) == 1
        odds_of = accounts.effects_of(session, requests)
    return page(request, "decisions.html", requests=requests, odds_of=odds_of, invited=invited, sole_admin=alone)


@router.get("/settings/projects")
def show_projects(request: Request, service: Running, viewer: Reader) -> HTMLResponse:
    viewer.signed_in(Scope.READ)
    with transaction(service.factory, read_only=True) as session:
        rows = session.scalars(visible(session, Project).order_by(Project.name).limit(SHOWN_MAX)).all()
        shown = views.project_uses(session, rows)
    return page(request, "projects.html", projects=shown, shown_max=SHOWN_MAX)


@router.get("/settings/webhooks")
def show_webhooks(request: Request, service: Running, viewer: Reader) -> HTMLResponse:
    viewer.signed_in(Scope.ADMIN)
    with transaction(service.factory, read_only=True) as session:
        newest = visible(session, Webhook).order_by(Webhook.created_at.desc(), Webhook.id).limit(WEBHOOKS_MAX)
        hooks = views.webhooks(session, session.scalars(newest).all(), service.clock())
        sent: dict[str, list[tuple[str, Delivery]]] = {}
        for hook in hooks:
            latest = select(Delivery).where(Delivery.webhook_id == hook.id).order_by(Delivery.created_at.desc())
            rows = session.scalars(latest.limit(DELIVERIES_SHOWN_MAX)).all()
            sent[hook.id] = [(json.loads(row.body)["type"], row) for row in rows]
    return page(request, "webhooks.html", webhooks=hooks, deliveries=sent)


@router.get("/settings/audit")
def show_audit_log(
    request: Request, service: Running, viewer: Reader, before: Annotated[str | None, Query(max_length=64)] = None
) -> HTMLResponse:
    viewer.signed_in(Scope.AUDIT)
    with transaction(service.factory, read_only=True) as session:
        shown = views.events(session, newest=True, before=before, limit=SHOWN_MAX + 1)
        asked = {event.key_id for event in shown}
        keys = session.scalars(visible(session, ApiKey).where(ApiKey.id.in_(asked))).all()
    return page(
        request,
        "audit.html",
        events=shown[:SHOWN_MAX],
        names={key.id: key.name for key in keys},
        older=shown[SHOWN_MAX - 1].id if len(shown) > SHOWN_MAX else None,
        kept=viewer.keeps_audit_log,
    )
