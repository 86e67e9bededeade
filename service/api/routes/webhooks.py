"""Webhooks: notify addresses of stops, pending decisions, and ended jobs."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from obscura.wire.admin_schemas import NewWebhookRecord, WebhookRecord, WebhookRequest, WebhookTestRecord
from obscura.wire.schemas import Identifier, Page
from service.api.answers import answer, answer_newest
from service.api.deps import ADMIN, PROBLEMS, Admin, ApiRoute, Paging, Running
from service.db.session import transaction
from service.db.webhook_tables import Webhook
from service.dependencies import SECONDS_MAX
from service.identity.access import find
from service.views import admins as views
from service.webhooks import delivering, hooks
from service.webhooks.sending import Sender

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], responses=PROBLEMS, route_class=ApiRoute)
WebhookId = Annotated[Identifier, Path()]


@router.post("", status_code=201, response_model=NewWebhookRecord, summary="Create a webhook")
def create_webhook(service: Running, admin: Admin, body: WebhookRequest) -> Response:
    """Notify an address of events in the key's project, or in the installation for an admin without a project.

    The signing secret is in this answer only. Revoking the key revokes the webhook.
    """
    private, now = service.settings.webhooks_private, service.clock()
    with transaction(service.factory) as session:
        webhook = hooks.create(session, admin, **body.model_dump(), private=private, now=now)
        record = NewWebhookRecord(**dict(views.webhooks(session, [webhook], now)[0]), secret=webhook.secret)
    headers = {"Location": "/v1/webhooks", "Cache-Control": "no-store"}
    return Response(record.model_dump_json(), status_code=201, headers=headers, media_type="application/json")


@router.get("", dependencies=[ADMIN], response_model=Page[WebhookRecord], summary="List webhooks")
def list_webhooks(service: Running, request: Request, page: Paging) -> Response:
    """List the webhooks of the key's project, newest first, inactive ones included."""
    return answer_newest(service, request, page, Webhook, partial(views.webhooks, now=service.clock()))


@router.post("/{webhook_id}/test", dependencies=[ADMIN], response_model=WebhookTestRecord, summary="Try a webhook")
async def try_webhook(service: Running, request: Request, webhook_id: WebhookId) -> Response:
    """Send a request of type `test` now, and return its result."""
    sender = Sender(service.settings.webhooks_private, seconds_max=SECONDS_MAX)
    sent = await delivering.try_out(service.factory, sender, webhook_id, service.clock)
    return answer(request, WebhookTestRecord(delivered=sent.delivered, status=sent.status, reason=sent.reason))


@router.delete("/{webhook_id}", dependencies=[ADMIN], response_model=WebhookRecord, summary="Remove a webhook")
def remove_webhook(service: Running, request: Request, webhook_id: WebhookId) -> Response:
    """Send nothing more to an address, pending deliveries included."""
    with transaction(service.factory) as session:
        (record,) = views.webhooks(session, [find(session, Webhook, webhook_id)], service.clock())
        hooks.remove(session, webhook_id)
    return answer(request, record)
